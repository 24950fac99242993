"""The journal's rows: opened before a model is called, closed when it has answered.

Blocking; a coroutine's caller goes to another thread. Calls no model.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from langchain_core.messages import BaseMessage

from langgraph_resilient import calls, modelcalls
from langgraph_resilient.codec.keys import pack_name
from langgraph_resilient.codec.packed import pack
from langgraph_resilient.draft import Draft
from langgraph_resilient.errors import LostOwnership, ThreadBusy, ValueRefused
from langgraph_resilient.journal.matching import Found, Match, find
from langgraph_resilient.journal.request import Request
from langgraph_resilient.ledger import Book, Reading, ThreadHeld, flights
from langgraph_resilient.records import ModelCallRecord, ModelCallState, ordinal
from langgraph_resilient.restoring import Restorer, decoded
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Row, Session

T = TypeVar("T")
logger = logging.getLogger(__name__)

_POLL = 0.02
_OWN = -1
"""Stands for a namespace where a list of messages is remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Where a model call is made.

    Attributes:
        thread_id: the thread.
        parent: key of the tool call around it, or empty.
        task: id of the root graph's task it is made under.
        root: id of the root graph's checkpoint.
        place: where in the graph, without any id, and which call of its task's run it is.
    """

    thread_id: str
    parent: bytes
    task: str
    root: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A call that was opened: recorded now, or found recorded.

    Attributes:
        record: the row.
        found: what the journal knew.
        answer: the recorded answer; None when the model must be called.
        parameters: what the model must be called with instead of the code's own: those of the
            interrupted call.
    """

    record: ModelCallRecord
    found: Found
    answer: BaseMessage | None = None
    parameters: Mapping[str, Any] | None = None


class JournalBook:
    """The model calls of one database. Safe to use from any thread.

    Args:
        ledger: lends database, codec and the thread's lease.
        reading: what values are stored and restored with, asked for each time.
        clock: seconds since 1970.
        new_id: makes the ids of answers whose provider gives none.
    """

    def __init__(
        self,
        ledger: Book,
        reading: Callable[[], Reading] = Reading,
        clock: Callable[[], float] = time.time,
        new_id: Callable[[], str] = lambda: f"lc_run--{uuid4()}",
    ):
        self.engine = ledger.engine
        self._ledger = ledger
        self._reading = reading
        self._clock = clock
        self._new_id = new_id

    # --- looking ------------------------------------------------------------------------------

    def records(self, session: Session, thread_id: str, query: str) -> Iterator[ModelCallRecord]:
        """The calls of a thread that a query finds, in the order of their beginning."""
        thread = rows.find_thread(session, self.engine.sealer, thread_id)
        if thread is None:
            return
        for row in session.all(query, *rows.call_bounds(thread.number)):
            yield self.record(session, row, thread_id)

    def record(self, session: Session, row: Row, thread_id: str) -> ModelCallRecord:
        """The call of a row."""
        frame = modelcalls.opened_frame(self.engine.sealer, row, thread_id)
        raw = decoded(self.engine, session, frame, calls.thread_of(row[0]))
        return modelcalls.model_call_from(raw, row, thread_id)

    def values(self, session: Session, record: ModelCallRecord, *names: str) -> dict[str, Any]:
        """Restored values of a call, all or some.

        Raises:
            DataCorrupt: one is damaged.
        """
        reading = self._reading()
        number = calls.thread_of(record.call)
        restorer = Restorer(
            self.engine, session, record.thread_id, number, reading.serde, reading.policy
        )
        return {
            name: restorer.packed(packed)
            for name, packed in record.values
            if not names or name in names
        }

    def unpacked(self, session: Session, record: ModelCallRecord, packed: bytes) -> Any:
        """A value of a call that stands outside its row."""
        reading = self._reading()
        number = calls.thread_of(record.call)
        restorer = Restorer(
            self.engine, session, record.thread_id, number, reading.serde, reading.policy
        )
        return restorer.packed(packed)

    def reading(self) -> Reading:
        """What values are stored and restored with right now."""
        return self._reading()

    def match(self, spot: Spot, request: Request) -> Found:
        """What the journal knows of a call that is about to be made.

        Calls that ask something else are not decoded, unless nothing else is found: then every seal
        is looked at, so that a damaged column is no absent call.
        """
        runs, asked = self.engine.runs, request.identity
        look = partial(
            find, request=asked, sampling=request.sampling, parent=spot.parent, place=spot.place
        )
        with self.engine.reading() as session:
            thread = rows.find_thread(session, self.engine.sealer, spot.thread_id)
            if thread is None:
                return look(())
            free = [
                row
                for row in session.all("journal_open", *rows.call_bounds(thread.number))
                if not runs.is_used(spot.thread_id, row[0])
            ]
            same = [row for row in free if row[2] == asked and row[3] == spot.parent]
            found = look([self.record(session, row, spot.thread_id) for row in same])
            if found.record is None and len(same) < len(free):
                found = look([self.record(session, row, spot.thread_id) for row in free])
        return found

    def closed_like(self, thread_id: str, request: Request) -> int:
        """How many calls of a thread asked the same and will not be given back."""
        with self.engine.reading() as session:
            thread = rows.find_thread(session, self.engine.sealer, thread_id)
            if thread is None:
                return 0
            bounds = rows.call_bounds(thread.number)
            found = session.one("journal_closed_like", request.identity, *bounds)
            return int(found[0]) if found else 0

    def patiently(self, thread_id: str, attempt: Callable[[], T]) -> T:
        """Try until no other live process runs the thread.

        Raises:
            ThreadBusy: one does so for longer than ``lease_wait``.
        """
        wait = self.engine.options.lease_wait
        deadline = time.monotonic() + wait
        while True:
            try:
                return attempt()
            except ThreadHeld as held:
                if time.monotonic() > deadline:
                    raise ThreadBusy(
                        f"thread {thread_id!r}: {held.owner} is running it; waited {wait:g} s for a "
                        "model call. Let it finish, stop it, or raise lease_wait"
                    ) from None
            time.sleep(_POLL)

    # --- opening ------------------------------------------------------------------------------

    def answer(self, spot: Spot, record: ModelCallRecord) -> Any:
        """The recorded answer for this run; None when another call of the run took it."""
        if not self._use(spot, record.call):
            return None
        with self.engine.reading() as session:
            answer = self.values(session, record, "answer")["answer"]
        logger.info("model call %d was answered from the journal", ordinal(record.call))
        return answer

    def _use(self, spot: Spot, call: int) -> bool:
        """Take a recorded call for this run; False when another call of the run has it."""
        names = pack_name(spot.task), pack_name(spot.root)
        if spot.parent:
            self.engine.runs.enter(spot.parent)
        return self.engine.runs.use(spot.thread_id, call, *names)

    def begin(
        self,
        spot: Spot,
        request: Request,
        *,
        message_id: str = "",
        drift: Mapping[str, Any] | None = None,
        running: bool = True,
    ) -> ModelCallRecord:
        """Record a call that is about to be made; durable on return.

        Args:
            spot: where it is made.
            request: what it asks.
            message_id: id for its answer; a new one by default.
            drift: parameters of the code that are not used.
            running: False for a stream that belongs to no call of a model.
        """
        record = self._new(spot, request, message_id, running)
        values = {"sent": dict(request.sent), "messages": list(request.messages)}
        if drift:
            values["drift"] = dict(drift)
        number = [0]

        def build(draft: Draft) -> ModelCallRecord:
            if running:
                self._ledger.claim(draft)
            packed = self._packed(draft, values)
            made = replace(record, values=tuple(packed.items()))
            draft.then(self._inserting(draft, made, number))
            return made

        made = self.engine.change(spot.thread_id, build)
        if running:
            self._fly(number[0])
        return replace(made, call=number[0])

    def _new(self, spot: Spot, request: Request, message_id: str, running: bool) -> ModelCallRecord:
        return ModelCallRecord(
            thread_id=spot.thread_id,
            state=ModelCallState.STARTED if running else ModelCallState.INTERRUPTED,
            request=request.identity,
            sampling=request.sampling,
            parent=spot.parent,
            task=pack_name(spot.task),
            root=pack_name(spot.root),
            place=spot.place,
            provider=request.provider,
            model=request.model,
            message_id=message_id or self._new_id(),
            started_at=self._clock(),
        )

    def reopen(
        self, spot: Spot, record: ModelCallRecord, drift: Mapping[str, Any] | None = None
    ) -> ModelCallRecord | None:
        """An interrupted call is made again under its own number; durable on return.

        Returns:
            None when another call of this run goes on with it.

        Raises:
            LostOwnership: another process has changed it.
        """
        if not self._use(spot, record.call):
            return None
        try:
            return self._reopened(spot, record, drift)
        except BaseException:
            self.engine.runs.give_back(spot.thread_id, record.call)
            raise

    def _reopened(
        self, spot: Spot, record: ModelCallRecord, drift: Mapping[str, Any] | None
    ) -> ModelCallRecord:
        made = replace(
            record,
            state=ModelCallState.STARTED,
            task=pack_name(spot.task),
            root=pack_name(spot.root),
            started_at=self._clock(),
            attempt=record.attempt + 1,
        )
        columns = (made.state, made.request, made.parent, made.task, made.root)

        def build(draft: Draft) -> ModelCallRecord:
            self._ledger.claim(draft)
            kept = {name: value for name, value in record.values if name != "drift"}
            if drift:
                kept.update(self._packed(draft, {"drift": dict(drift)}))
            again = replace(made, values=tuple(kept.items()))
            frame = draft.frame(modelcalls.packed_model_call(again), "j")
            place = modelcalls.journal_place(record.call, *columns)
            stored = self.engine.sealer.seal(place, frame)

            def step(session: Session) -> None:
                calls.same_epoch(session, draft)
                moved = session.run(
                    "journal_reopen",
                    made.state,
                    made.task,
                    made.root,
                    stored,
                    record.call,
                    record.state,
                    record.task,
                )
                if moved != 1:
                    raise LostOwnership(
                        f"thread {spot.thread_id!r}: another process goes on with model call "
                        f"{record.call}; let it finish"
                    )

            draft.then(step)
            return again

        again = self.engine.change(spot.thread_id, build)
        self._fly(record.call)
        return again

    def _inserting(
        self, draft: Draft, record: ModelCallRecord, number: list[int]
    ) -> Callable[[Session], None]:
        first, last = rows.call_bounds(draft.state.number)
        frame = draft.frame(modelcalls.packed_model_call(record), "j")
        sealer = self.engine.sealer
        columns = (record.state, record.request, record.parent, record.task, record.root)

        def step(session: Session) -> None:
            calls.same_epoch(session, draft)
            newest = session.one("journal_last", first, last)
            call = number[0] = (newest[0] if newest and newest[0] is not None else first) + 1
            stored = sealer.seal(modelcalls.journal_place(call, *columns), frame)
            session.insert("journal_insert", call, *columns, stored)
            # Before anybody can see the row: an equal call beside this one must not go on with it.
            self.engine.runs.use(record.thread_id, call, record.task, record.root)
            if record.parent:
                self.engine.runs.enter(record.parent)

        return step

    # --- closing ------------------------------------------------------------------------------

    def end(self, record: ModelCallRecord, answer: Any, *, streamed: bool) -> None:
        """Record a call's answer; durable on return, before its node goes on."""
        flags = frozenset({"streamed"}) if streamed else frozenset()
        self._close(record, ModelCallState.ENDED, {"answer": answer}, flags)

    def interrupt(self, record: ModelCallRecord) -> None:
        """Record that a call was cut in the middle: the next run goes on with it."""
        self._close(record, ModelCallState.INTERRUPTED, {}, frozenset())

    def fail(
        self, record: ModelCallRecord, error: BaseException, secrets: Iterable[str] = ()
    ) -> None:
        """Record that a call gave no answer; what the error says is stored without secrets."""
        text = f"{type(error).__name__}: {error}"
        for secret in secrets:
            text = text.replace(secret, "…")
        self._close(record, ModelCallState.FAILED, {"error": text}, frozenset())

    def _close(
        self,
        record: ModelCallRecord,
        state: ModelCallState,
        values: Mapping[str, Any],
        flags: frozenset[str],
    ) -> None:
        ended = replace(record, state=state, ended_at=self._clock(), flags=record.flags | flags)
        columns = (state, record.request, record.parent, record.task, record.root)
        place = modelcalls.journal_place(record.call, *columns)

        def build(draft: Draft) -> None:
            kept = dict(record.values)
            kept.update(self._packed(draft, values))
            raw = modelcalls.packed_model_call(replace(ended, values=tuple(kept.items())))
            stored = self.engine.sealer.seal(place, draft.frame(raw, "j"))

            def step(session: Session) -> None:
                calls.same_epoch(session, draft)
                # A call that was retired or deleted meanwhile stays so: nobody needs its answer.
                session.run("journal_update", state, stored, record.call, record.state)
                if state is ModelCallState.FAILED:
                    session.run("chunks_delete", record.call, record.call)

            draft.then(step)

        try:
            self.engine.change(record.thread_id, build)
        finally:
            flights.land(self.engine.scope, _flight(record.call))

    def _fly(self, call: int) -> None:
        """While it runs, the thread's lease is renewed."""
        key = _flight(call)
        flights.take_off(self.engine.scope, key)
        flights.assign(self.engine.scope, key, calls.thread_of(call))

    def _packed(self, draft: Draft, values: Mapping[str, Any]) -> dict[str, bytes]:
        packer, serde = draft.packer(), self._reading().serde
        found: dict[str, bytes] = {}
        for name, value in values.items():
            if serde is not None and name == "messages":
                continue  # opaque bytes are stored whole: each call would store the conversation
            try:
                if serde is not None:
                    tree = packer.opaque(*serde.dumps_typed(value))
                elif name == "messages":  # mostly those of the thread's last call
                    tree = packer.channel(_OWN, name, value)
                else:
                    tree = packer.write(name, value)
                found[name] = pack(tree)
            except ValueRefused as error:
                if name == "answer":
                    raise
                logger.warning("a model call is recorded without its %s: %s", name, error)
        return found


def _flight(call: int) -> bytes:
    """A model call's name among the running calls; tool calls have longer ones."""
    return call.to_bytes(8, "big")


__all__ = ["JournalBook", "Match", "Opened", "Spot"]
