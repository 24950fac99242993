"""`saver.stream`: what is stored of a thread's streaming answers, for clients that come back."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial

from langchain_core.messages import AIMessageChunk, BaseMessage

from langgraph_resilient._aio import pause
from langgraph_resilient.journal import JournalBook
from langgraph_resilient.records import ModelCallRecord, ModelCallState
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Session
from langgraph_resilient.stream.buffer import RESET, TEXT, stored

_POSITIONS = 32
_POLL = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamChunk:
    """A piece of a streaming answer.

    Attributes:
        offset: give the last one you have seen as ``after=`` to go on behind it.
        kind: ``text`` or ``chunk`` (show it), ``reset`` (forget what you have shown of this
            message: the answer begins anew), ``end`` (the message is whole: `message`).
        message_id: id of the message; the same before and after a crash.
        text: the text of the piece.
        chunk: the message chunk, where it is more than text.
        message: with ``end``, the whole message.
    """

    offset: int
    kind: str
    message_id: str
    text: str = ""
    chunk: AIMessageChunk | None = None
    message: BaseMessage | None = None


class StreamReader:
    """Reads the streams of one thread.

    Args:
        book: the journal.
        thread_id: the thread.
        after: offset of the last piece that was seen; 0 for all that is stored.
    """

    def __init__(self, book: JournalBook, thread_id: str, after: int = 0):
        self._book = book
        self._thread_id = thread_id
        self._after = after

    def more(self) -> list[StreamChunk]:
        """The pieces behind the last one."""
        found: list[StreamChunk] = []
        call = self._after >> _POSITIONS
        with self._book.engine.reading() as session:
            thread = rows.find_thread(session, self._book.engine.sealer, self._thread_id)
            if thread is None:
                return []
            first, last = rows.call_bounds(thread.number)
            for row in session.all("journal_in", max(first + call, first), last):
                record = self._book.record(session, row, self._thread_id)
                found.extend(self._pieces(session, record, row[0] - first))
        if found:
            self._after = found[-1].offset
        return found

    def _pieces(
        self, session: Session, record: ModelCallRecord, ordinal: int
    ) -> Iterator[StreamChunk]:
        base = ordinal << _POSITIONS
        end = base + (1 << _POSITIONS) - 1
        if self._after >= end:
            return
        seen = max(self._after - base, 0)
        for position, (kind, value, given_id) in stored(self._book, session, record, seen):
            whole = isinstance(value, AIMessageChunk)
            yield StreamChunk(
                offset=base + position + 1,
                kind="reset" if kind == RESET else "chunk" if whole else "text",
                message_id=(value.id if whole else given_id) or record.message_id,
                text=str(value.text) if whole else value if kind == TEXT else value or "",
                chunk=value if whole else None,
            )
        if record.state in (ModelCallState.FAILED, ModelCallState.DISCARDED) and self._after > base:
            # Whoever saw a part of it is told that there will be no more; others are told nothing.
            yield StreamChunk(offset=end, kind="reset", message_id=record.message_id)
        if record.state in (ModelCallState.ENDED, ModelCallState.RETIRED):
            answer = self._book.values(session, record, "answer").get("answer")
            if isinstance(answer, BaseMessage) and "streamed" in record.flags:
                yield StreamChunk(
                    offset=end,
                    kind="end",
                    message_id=answer.id or record.message_id,
                    message=answer,
                )

    def follow(self, silence: float | None) -> Iterator[StreamChunk]:
        """The pieces, and those that come; ends after so many seconds without one."""
        quiet = time.monotonic()
        while True:
            found = self.more()
            yield from found
            if found:
                quiet = time.monotonic()
            elif silence is None or time.monotonic() - quiet >= silence:
                return
            else:
                time.sleep(_POLL)

    async def afollow(self, silence: float | None) -> AsyncIterator[StreamChunk]:
        """`follow`, for coroutines."""
        quiet = time.monotonic()
        while True:
            found = await self._book.engine.offload.run(partial(self.more))
            for piece in found:
                yield piece
            if found:
                quiet = time.monotonic()
            elif silence is None or time.monotonic() - quiet >= silence:
                return
            else:
                await pause(_POLL)
