"""What a saver has besides checkpoints: ledger, journal, streams, snapshots, lifetimes of threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import TypeVar

from langchain_core.runnables import RunnableConfig

from langgraph_resilient import configs, lifetimes, listing
from langgraph_resilient.engine import Engine
from langgraph_resilient.holding import Counts, Holder
from langgraph_resilient.journal import Journal, JournalBook
from langgraph_resilient.ledger import Book, Ledger, Reading
from langgraph_resilient.options import milliseconds
from langgraph_resilient.stream import Emitter, StreamChunk, StreamReader

T = TypeVar("T")


class Views:
    """The part of `ResilientSaver` that LangGraph does not know."""

    _engine: Engine
    _holder: Holder | None
    _ledger: tuple[Views, Ledger] | None
    _journal: tuple[Views, Journal] | None

    def _reader(self) -> listing.Reading:
        raise NotImplementedError

    async def _hop(self, function: Callable[[], T]) -> T:
        raise NotImplementedError

    @property
    def ledger(self) -> Ledger:
        """The tool calls of this database: what was called, what is unknown, and decisions."""
        found = self._ledger
        if found is None or found[0] is not self:  # a copy of a saver has its own serializer
            book = Book(self._engine, self._reading_now, self._engine.now)
            found = self._ledger = (self, Ledger(book))
        return found[1]

    @property
    def journal(self) -> Journal:
        """The model calls of this database: what was sent, what came back."""
        found = self._journal
        if found is None or found[0] is not self:
            found = (self, Journal(JournalBook(self.ledger.book, self._reading_now)))
            self._journal = found
        return found[1]

    def _takes(self, config: RunnableConfig) -> bool:
        """Whether a run begins with this config that takes its thread."""
        return self._engine.options.single_writer and configs.begins_run(config)

    def _take(self, config: RunnableConfig) -> None:
        """Where writers are fenced, a run that begins makes its thread this process's.

        Raises:
            ThreadBusy: another live process runs calls of it, for longer than ``lease_wait``.
        """
        if not self._takes(config):
            return
        thread_id = str(config["configurable"]["thread_id"])
        self._engine.runs.take(thread_id, None)
        claim = partial(self._engine.change, thread_id, self.ledger.book.claim)
        self._engine.runs.take(thread_id, self.journal.book.patiently(thread_id, claim))

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

    # --- how long threads live ------------------------------------------------------------------

    def set_ttl(self, thread_id: str, ttl: float | timedelta | None) -> None:
        """Say how long a thread lives: durable on return, and more than the option ``ttl``.

        The time counts from now or from its newest checkpoint, whichever is later. Nothing is deleted
        before somebody calls `langgraph_resilient.maintenance.expire`.

        Args:
            thread_id: the thread; it need not have run yet.
            ttl: seconds, a `timedelta`, or None for ever.

        Raises:
            ConfigurationError: the time is not positive.
            StorageError: the database could not store it.
        """
        wanted = None if ttl is None else milliseconds(ttl)
        lifetimes.set_lifetime(self._engine, str(thread_id), wanted)

    def get_ttl(self, thread_id: str) -> float | None:
        """How many seconds a thread lives after it was last written to; None for ever."""
        found = lifetimes.lifetime_of(self._engine, str(thread_id))
        return None if found is None else found.ttl / 1000

    async def aset_ttl(self, thread_id: str, ttl: float | timedelta | None) -> None:
        """`set_ttl`, for coroutines."""
        await self._hop(partial(self.set_ttl, thread_id, ttl))

    async def aget_ttl(self, thread_id: str) -> float | None:
        """`get_ttl`, for coroutines."""
        return await self._hop(partial(self.get_ttl, thread_id))

    def _reading_now(self) -> Reading:
        reader = self._reader()
        return Reading(reader.serde, reader.policy)
