"""The part of `verify` that looks at tool calls and at who runs them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from langgraph_resilient import calls
from langgraph_resilient.errors import DataCorrupt
from langgraph_resilient.maintenance.scanning import page
from langgraph_resilient.records import CallRecord
from langgraph_resilient.restoring import decoded
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Row, Session

if TYPE_CHECKING:
    from langgraph_resilient.maintenance.verification import Check

Value = Callable[..., None]


class CallCheck:
    """Checks the tool calls of one thread, and its lease.

    Args:
        check: collects findings.
        number: the thread's; 0 for the calls whose business key holds for all threads.
        thread_id: its name, where that is known.
        value: checks a packed value: what it names is there, and it can be restored.
    """

    def __init__(self, check: Check, number: int, thread_id: str | None, value: Value):
        self._check = check
        self._engine = check.engine
        self._number = number
        self._thread_id = thread_id
        self._value = value

    def run(self, fresh: Callable[[], None]) -> None:
        """Everything.

        Args:
            fresh: called in each session, before anything is believed of earlier ones.
        """
        first, last = rows.call_bounds(self._number)
        after: tuple[Any, ...] = (first - 1,)
        done = False
        while not done:
            step: list[Any] = []

            def work(
                session: Session, start: tuple[Any, ...] = after, out: list[Any] = step
            ) -> None:
                fresh()
                found = page(session, "calls", start, (last,))
                for (call,), error in found.unreadable:
                    self._found("call", f"tool call at place {call} cannot be read: {error}")
                for row in found.rows:
                    self._check.guarded(
                        "call", partial(self._call, session, row), thread_id=self._thread_id
                    )
                    self._check.count("calls")
                out[:] = [found.after, found.done, len(found.rows)]

            self._check.look("call", work, thread_id=self._thread_id)
            if not step:
                break  # not even the keys can be walked; that is a finding already
            after, done = step[0], step[1]
            self._check.step(step[2], "checking tool calls")
        if self._number:
            self._check.look("lease", self._lease, thread_id=self._thread_id)

    def _found(self, kind: str, what: str | Exception) -> None:
        self._check.found(kind, what, thread_id=self._thread_id)

    def _call(self, session: Session, row: Row) -> None:
        name = self._thread_id or f"number {self._number}"
        frame = calls.opened_frame(self._engine.sealer, row, name)
        raw = decoded(self._engine, session, frame, self._number)
        record = calls.call_from(raw, row, name)
        self._place(session, record)
        for item, packed in record.values:
            who = f"{item} of tool call {record.key.hex()} ({record.name.tool})"
            self._value(session, packed, who, kind="call")

    def _place(self, session: Session, record: CallRecord) -> None:
        """Whether a call stands where whoever looks for it will look.

        Raises:
            DataCorrupt: it does not; it would be run again.
        """
        shown = f"tool call {record.key.hex()} ({record.name.tool})"
        everywhere = record.name.everywhere
        if self._thread_id is not None or everywhere:
            key = calls.key_of(record.name)
            if key != record.key:
                raise DataCorrupt(f"{shown}: its key is not that of what was called")
        if everywhere is bool(self._number) or (not everywhere and record.home != self._number):
            raise DataCorrupt(f"{shown}: it stands in a thread that is not its own")
        bounds = calls.slots(self._number, record.key)
        alike = [row[0] for row in session.all("calls_in", *bounds) if row[1] == record.key]
        if alike != [record.call]:
            raise DataCorrupt(f"{shown}: its key does not lead to its row, or to more than one")

    def _lease(self, session: Session) -> None:
        if calls.read_lease(session, self._engine.sealer, self._number) is not None:
            self._check.count("leases")
