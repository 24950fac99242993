"""The part of `verify` that looks at model calls and at what their streams have shown."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from langgraph_resilient import modelcalls
from langgraph_resilient.errors import DataCorrupt
from langgraph_resilient.maintenance.scanning import page
from langgraph_resilient.records import ModelCallState, ordinal
from langgraph_resilient.restoring import decoded, unpacked
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Row, Session

if TYPE_CHECKING:
    from langgraph_resilient.maintenance.verification import Check

Value = Callable[..., None]
Look = Callable[[Session, Row], None]
_ANSWERED = (ModelCallState.ENDED, ModelCallState.DISCARDED)

_ANYWHERE = -1
"""Where the block behind one that cannot be read begins."""


class JournalCheck:
    """Checks the model calls of one thread, and the blocks of their streams.

    Args:
        check: collects findings.
        number: the thread's.
        thread_id: its name, where that is known.
        value: checks a packed value: what it names is there, and it can be restored.
    """

    def __init__(self, check: Check, number: int, thread_id: str | None, value: Value):
        self._check = check
        self._engine = check.engine
        self._number = number
        self._thread_id = thread_id
        self._name = thread_id or f"number {number}"
        self._value = value
        self._position = (0, 0)
        """The call whose stream was looked at last, and where its next block begins."""

    def run(self, fresh: Callable[[], None]) -> None:
        """Everything.

        Args:
            fresh: called in each session, before anything is believed of earlier ones.
        """
        first, last = rows.call_bounds(self._number)
        self._walk("journal", "journal", (first - 1,), last, fresh, self._call)
        self._walk("chunks", "stream", (first - 1, 0), last, fresh, self._block)

    def _walk(
        self,
        table: str,
        kind: str,
        after: tuple[Any, ...],
        last: int,
        fresh: Callable[[], None],
        look: Look,
    ) -> None:
        done = False
        while not done:
            step: list[Any] = []

            def work(
                session: Session,
                start: tuple[Any, ...] = after,
                at: tuple[int, int] = self._position,
                out: list[Any] = step,
            ) -> None:
                fresh()
                self._position = at
                found = page(session, table, start, (last,))
                for key, error in found.unreadable:
                    self._found(
                        kind, f"model call {ordinal(key[0])} ({kind}) cannot be read: {error}"
                    )
                for row in found.rows:
                    one = partial(look, session, row)
                    self._check.guarded(kind, one, thread_id=self._thread_id)
                    self._check.count("model_calls" if table == "journal" else "chunk_blocks")
                out[:] = [found.after, found.done, len(found.rows)]

            self._check.look(kind, work, thread_id=self._thread_id)
            if not step:
                break  # not even the keys can be walked; that is a finding already
            after, done = step[0], step[1]
            self._check.step(step[2], "checking model calls")

    def _found(self, kind: str, what: str | Exception) -> None:
        self._check.found(kind, what, thread_id=self._thread_id)

    def _call(self, session: Session, row: Row) -> None:
        frame = modelcalls.opened_frame(self._engine.sealer, row, self._name)
        raw = decoded(self._engine, session, frame, self._number)
        record = modelcalls.model_call_from(raw, row, self._name)
        for item, packed in record.values:
            who = f"{item} of model call {ordinal(record.call)}"
            self._value(session, packed, who, kind="journal")
        if record.state in _ANSWERED and record.value("answer") is None:
            raise DataCorrupt(f"model call {ordinal(record.call)} has ended and has no answer")

    def _block(self, session: Session, row: Row) -> None:
        call, first = row[0], row[1]
        before, self._position = self._position, (call, _ANYWHERE)
        frame = modelcalls.opened_block(self._engine.sealer, row)
        items = unpacked(self._engine.frames.decode(frame))[0]
        self._position = (call, first + len(items))
        for kind, value in items:
            if type(value) is bytes:
                self._value(session, value, f"stream of model call {ordinal(call)}", kind="stream")
            elif not isinstance(value, (str, type(None))) or type(kind) is not int:
                raise DataCorrupt(
                    f"stream of model call {ordinal(call)}: a piece is of a wrong kind"
                )
        expected = before[1] if before[0] == call else 0
        if expected not in (first, _ANYWHERE):
            self._gap(session, call, first)

    def _gap(self, session: Session, call: int, first: int) -> None:
        """What came late for a call that is retired begins anywhere, and nobody needs it."""
        found = session.one("journal_in", call, call)
        if found is not None and found[1] < ModelCallState.RETIRED:
            raise DataCorrupt(
                f"stream of model call {ordinal(call)}: what came before {first} is missing"
            )
