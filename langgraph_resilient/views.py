"""What a saver shows besides checkpoints: its ledger, its journal, its streams, its snapshots."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from langgraph_resilient import listing
from langgraph_resilient.engine import Engine
from langgraph_resilient.holding import Counts, Holder
from langgraph_resilient.journal import Journal, JournalBook
from langgraph_resilient.ledger import Book, Ledger, Reading
from langgraph_resilient.stream import Emitter, StreamChunk, StreamReader


class Views:
    """The part of `ResilientSaver` that LangGraph does not know."""

    _engine: Engine
    _holder: Holder | None
    _ledger: tuple[Views, Ledger] | None
    _journal: tuple[Views, Journal] | None

    def _reader(self) -> listing.Reading:
        raise NotImplementedError

    @property
    def ledger(self) -> Ledger:
        """The tool calls of this database: what was called, what is unknown, and decisions."""
        found = self._ledger
        if found is None or found[0] is not self:  # a copy of a saver has its own serializer
            found = self._ledger = (self, Ledger(Book(self._engine, self._reading_now)))
        return found[1]

    @property
    def journal(self) -> Journal:
        """The model calls of this database: what was sent, what came back."""
        found = self._journal
        if found is None or found[0] is not self:
            found = (self, Journal(JournalBook(self.ledger.book, self._reading_now)))
            self._journal = found
        return found[1]

    @property
    def snapshots(self) -> Counts:
        """How many checkpoints a snapshot policy has stored, skipped and bridged in this process."""
        return Counts() if self._holder is None else self._holder.counts

    def stream(
        self, thread_id: str, *, after: int = 0, follow: float | None = None
    ) -> Iterator[StreamChunk]:
        """What is stored of a thread's streaming answers, for a client that comes back.

        Works before a run is resumed, and while it goes on in another process.

        Args:
            thread_id: the thread.
            after: offset of the last piece that the client has seen.
            follow: wait for more; end after so many seconds without a piece. None: what is there.
        """
        return StreamReader(self.journal.book, str(thread_id), after).follow(follow)

    def astream(
        self, thread_id: str, *, after: int = 0, follow: float | None = None
    ) -> AsyncIterator[StreamChunk]:
        """`stream`, for coroutines."""
        return StreamReader(self.journal.book, str(thread_id), after).afollow(follow)

    def emitter(self, thread_id: str) -> Emitter:
        """Stores tokens of a node that streams by itself, each before it is shown.

        What is stored can be read back with `stream` until the node's outcome is durable.
        """
        return Emitter(self.journal.book, str(thread_id))

    def _reading_now(self) -> Reading:
        reader = self._reader()
        return Reading(reader.serde, reader.policy)
