"""`saver.ledger`: what operators see of tool calls, and how they decide about unknown ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from langgraph_resilient.errors import CallNotFound, ConfigurationError, LostOwnership
from langgraph_resilient.ledger.answers import Answer, parse
from langgraph_resilient.ledger.book import Book
from langgraph_resilient.ledger.decision import Standing
from langgraph_resilient.ledger.entry import Entry, entry_of
from langgraph_resilient.records import CallRecord, CallState, Event
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Session

T = TypeVar("T")


class Ledger:
    """The tool calls of a database.

    Args:
        book: its rows.
    """

    def __init__(self, book: Book):
        self.book = book

    def entries(self, thread_id: str | None = None) -> list[Entry]:
        """The calls of a thread, or of all, in the order of their first beginning."""
        engine = self.book.engine
        with engine.reading() as session:
            if thread_id is None:
                return self._in_order(session, list(self.book.every(session)))
            thread = rows.find_thread(session, engine.sealer, str(thread_id))
            if thread is None:
                return []
            bounds = rows.call_bounds(thread.number)
            found = list(self.book.records(session, *bounds))
            for record in self.book.records(session, *rows.call_bounds(0)):
                if record.home == thread.number:
                    found.append(record)
            return self._in_order(session, found)

    def _in_order(self, session: Session, found: list[CallRecord]) -> list[Entry]:
        found.sort(key=lambda record: record.first_at)
        return [self._entry(session, record) for record in found]

    def unknown(self, thread_id: str | None = None) -> list[Entry]:
        """The calls whose outcome nobody knows, of one thread or of all."""
        with self.book.engine.reading() as session:
            records = list(self.book.open_of(session, thread_id))
            found = [self._entry(session, record) for record in records]
        return [
            entry
            for entry in found
            if entry.state == "unknown" and thread_id in (None, entry.thread_id)
        ]

    def get(self, key: str) -> Entry:
        """One call.

        Raises:
            CallNotFound: there is none with this key.
        """
        with self.book.engine.reading() as session:
            return self._entry(session, self._found(session, key))

    def resolve(
        self,
        key: str,
        action: str,
        *,
        result: Any = None,
        by: str = "",
        reason: str = "",
        version: int | None = None,
    ) -> Entry:
        """Decide about a call whose outcome is unknown; durable on return.

        Args:
            key: the call's key in hexadecimal.
            action: ``"succeeded"`` (it took effect: `result` is what the tool would have said),
                ``"retry"`` (it may run again) or ``"failed"`` (it must not: `result` is what to
                tell the model).
            result: see `action`.
            by: who decides, for the audit trail.
            reason: why.
            version: the version of the entry that you looked at; another one is refused.

        Raises:
            CallNotFound: there is no such call.
            LostOwnership: it has changed since you looked.
            ConfigurationError: the action is unknown, or the call's outcome is not.
        """
        answer = parse({"action": action, "result": result, "by": by, "reason": reason})
        if not isinstance(answer, Answer):
            raise ConfigurationError(answer)
        with self.book.engine.reading() as session:
            record = self._found(session, key)
            self._check(session, record, version)
        state, values = _settled(answer, record)
        event = Event(at=time.time(), what=answer.action, by=by or "operator", reason=reason)
        ended = self.book.settle(record, state, values, event=event, fenced=False)
        return self.book.entry(ended)

    def _check(self, session: Session, record: CallRecord, version: int | None) -> None:
        key, tool = record.key.hex(), record.name.tool
        if version is not None and version != record.version:
            raise LostOwnership(
                f"call {key} has version {record.version}, not {version}: it has changed since you "
                "looked; look again",
                key=key,
                tool=tool,
            )
        state = record.state
        if state is CallState.STARTED and self.book.standing(session, record) is Standing.GONE:
            return
        if state is not CallState.UNKNOWN:
            raise ConfigurationError(
                f"call {key} of {tool!r} is {state.name.lower()}; only a call whose outcome is "
                "unknown can be resolved"
            )

    def _found(self, session: Session, key: str) -> CallRecord:
        try:
            digest = bytes.fromhex(key)
        except ValueError:
            digest = b""
        record = self.book.find_by_key(session, digest)
        if record is None:
            raise CallNotFound(
                f"the ledger has no call {key!r}; `langgraph-resilient ledger list` shows all",
                key=key,
            )
        return record

    def _entry(self, session: Session, record: CallRecord) -> Entry:
        state = self.book.state_of(session, record)
        return entry_of(record, state, self.book.values(session, record))

    # --- coroutines: one hop each ---------------------------------------------------------------

    async def _hop(self, function: Callable[[], T]) -> T:
        return await self.book.engine.offload.run(function)

    async def aentries(self, thread_id: str | None = None) -> list[Entry]:
        """`entries`, for coroutines."""
        return await self._hop(partial(self.entries, thread_id))

    async def aunknown(self, thread_id: str | None = None) -> list[Entry]:
        """`unknown`, for coroutines."""
        return await self._hop(partial(self.unknown, thread_id))

    async def aget(self, key: str) -> Entry:
        """`get`, for coroutines."""
        return await self._hop(partial(self.get, key))

    async def aresolve(
        self,
        key: str,
        action: str,
        *,
        result: Any = None,
        by: str = "",
        reason: str = "",
        version: int | None = None,
    ) -> Entry:
        """`resolve`, for coroutines."""
        work = partial(
            self.resolve, key, action, result=result, by=by, reason=reason, version=version
        )
        return await self._hop(work)


def _settled(answer: Answer, record: CallRecord) -> tuple[CallState, dict[str, Any]]:
    if answer.action == "succeeded":
        return CallState.SUCCEEDED, {"result": answer.result}
    if answer.action == "retry":
        return CallState.FAILED, {"error": "cleared to run again"}
    told = answer.result or f"The call to {record.name.tool} failed. {answer.reason}".strip()
    return CallState.FAILED, {"result": told}
