"""The ledger's rows: looked up, begun and settled, each in one durable transaction.

Carries out what `decision.decide` says; runs no tool and asks nobody.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from langgraph_resilient import calls
from langgraph_resilient.codec.keys import pack_name
from langgraph_resilient.codec.packed import pack
from langgraph_resilient.codec.types import TypePolicy
from langgraph_resilient.draft import Draft
from langgraph_resilient.engine import Engine
from langgraph_resilient.errors import (
    BusinessKeyReused,
    LostOwnership,
    ValueRefused,
)
from langgraph_resilient.ledger import flights
from langgraph_resilient.ledger.decision import Decision, Standing, decide
from langgraph_resilient.ledger.entry import Entry, entry_of
from langgraph_resilient.ledger.invocation import Asked, Invocation
from langgraph_resilient.ledger.owner import is_alive, this_process
from langgraph_resilient.recording import UserSerde
from langgraph_resilient.records import (
    BLOB_BITS,
    CallRecord,
    CallState,
    Effect,
    Event,
    Lease,
    Owner,
    ThreadRow,
)
from langgraph_resilient.restoring import Restorer, decoded
from langgraph_resilient.store import rows
from langgraph_resilient.store.failures import Conflict
from langgraph_resilient.store.sqlite import Row, Session

logger = logging.getLogger(__name__)

_REPLAYS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """What came of trying to begin a call.

    Attributes:
        decision: what to do now.
        record: what is recorded; None only while waiting for a thread or a checkpoint.
        begun: whether the call was begun: its body must be run now.
        reason: why to wait: ``call``, ``thread`` or ``checkpoint``.
        owner: whom to wait for.
    """

    decision: Decision
    record: CallRecord | None
    begun: bool = False
    reason: str = ""
    owner: Owner | None = None


class _Otherwise(Exception):
    """Looked at again, the call is not to be begun."""

    def __init__(self, entered: Entered):
        super().__init__()
        self.entered = entered


@dataclass(frozen=True, slots=True)
class Reading:
    """What values are restored with: the saver's serializer and allowed types."""

    serde: UserSerde | None = None
    policy: TypePolicy | None = None


class Book:
    """Calls of one database. Safe to use from any thread.

    Args:
        engine: lends database and codec.
        reading: what values are stored and restored with, asked for each time.
        clock: seconds since 1970.
        owner: who this process is, asked for each time.
    """

    def __init__(
        self,
        engine: Engine,
        reading: Callable[[], Reading] = Reading,
        clock: Callable[[], float] = time.time,
        owner: Callable[[], Owner] = this_process,
    ):
        self.engine = engine
        self._reading = reading
        self._clock = clock
        self._owner = owner
        self._renewer = flights.Renewer(lambda: engine.scope, engine.options.lease / 3, self.renew)
        self.replays: deque[tuple[str, str, str]] = deque(maxlen=_REPLAYS)
        """Calls that were answered from the ledger in this process: thread, tool, key."""

    # --- looking ------------------------------------------------------------------------------

    def find(self, session: Session, key: bytes, thread_id: str | None = None) -> CallRecord | None:
        """A call by its key."""
        row = session.one("call_by_key", key)
        return None if row is None else self._record(session, row, thread_id)

    def _record(self, session: Session, row: Row, thread_id: str | None) -> CallRecord:
        number = row[0] >> BLOB_BITS
        if thread_id is None:
            found = session.one("thread_by_number", number)
            thread_id = found[0] if found is not None else f"number {number}"
        frame = calls.opened_frame(self.engine.sealer, row, thread_id)
        return calls.call_from(decoded(self.engine, session, frame, number), row, thread_id)

    def records(self, session: Session, query: str, *bounds: int) -> Iterator[CallRecord]:
        """The calls that a query finds."""
        for row in session.all(query, *bounds):
            yield self._record(session, row, None)

    def standing(self, session: Session, record: CallRecord) -> Standing:
        """Whether somebody is running a call."""
        if record.owner == self._owner():
            flying = flights.is_flying(self.engine.scope, record.key)
            return Standing.HERE if flying else Standing.GONE
        lease = calls.read_lease(session, self.engine.sealer, record.call >> BLOB_BITS)
        mine = lease is not None and lease.owner == record.owner
        expires = lease.expires / 1000 if mine and lease is not None else 0.0
        alive = is_alive(record.owner, expires, self._clock())
        return Standing.ELSEWHERE if alive else Standing.GONE

    def state_of(self, session: Session, record: CallRecord) -> CallState:
        """A call's state; one that its owner left behind is unknown."""
        if record.state is CallState.STARTED and self.standing(session, record) is Standing.GONE:
            return CallState.UNKNOWN
        return record.state

    def values(self, session: Session, record: CallRecord, *names: str) -> dict[str, Any]:
        """Restored values of a call, all or some.

        Raises:
            DataCorrupt: one is damaged.
        """
        reading = self._reading()
        restorer = Restorer(
            self.engine,
            session,
            record.name.thread_id,
            record.call >> BLOB_BITS,
            reading.serde,
            reading.policy,
        )
        return {
            name: restorer.packed(packed)
            for name, packed in record.values
            if not names or name in names
        }

    def restored(self, record: CallRecord, *names: str) -> dict[str, Any]:
        """`values`, in a session of its own."""
        with self.engine.reading() as session:
            return self.values(session, record, *names)

    def entry(self, record: CallRecord) -> Entry:
        """The public view of a call."""
        with self.engine.reading() as session:
            return entry_of(record, self.state_of(session, record), self.values(session, record))

    def note_replay(self, record: CallRecord) -> None:
        """A call was answered from the ledger."""
        self.replays.append((record.name.thread_id, record.name.tool, record.key.hex()))
        logger.info(
            "tool %s: call %s was answered from the ledger", record.name.tool, record.key.hex()
        )

    # --- beginning ----------------------------------------------------------------------------

    def enter(self, call: Invocation, *, cleared: bool = False, hold: bool = False) -> Entered:
        """Begin a call if it may run; durable on return.

        Args:
            call: the call.
            cleared: whether somebody has said that it may run again.
            hold: look only, when it would be another attempt.

        Returns:
            ``START`` with the new record when it was begun; else why it was not.

        Raises:
            BusinessKeyReused: its business key was used with other arguments.
            LostOwnership: its thread was deleted.
        """
        key = calls.key_of(call.name)
        with self.engine.reading() as session:
            found = self._decided(session, call, key, cleared)
        old = found.record
        if found.decision is not Decision.START or (hold and old is not None):
            return found
        thread_id = call.name.thread_id if old is None else old.name.thread_id
        if not flights.take_off(self.engine.scope, key):
            return Entered(decision=Decision.WAIT, record=old, reason="call")
        try:
            record = self.engine.change(
                thread_id, lambda draft: self._begin(draft, call, key, cleared)
            )
        except BaseException as error:
            flights.land(self.engine.scope, key)
            if isinstance(error, _Otherwise):
                return error.entered
            raise
        flights.assign(self.engine.scope, key, record.call >> BLOB_BITS)
        self._renewer.ensure()
        return Entered(decision=Decision.START, record=record, begun=True)

    def _decided(self, session: Session, call: Invocation, key: bytes, cleared: bool) -> Entered:
        name = call.name
        record = self.find(session, key, None if name.everywhere else name.thread_id)
        if record is None:
            return Entered(decision=Decision.START, record=None)
        if record.name.arguments != name.arguments:
            raise BusinessKeyReused(
                f"tool {name.tool!r}: the business key {name.business!r} was used before with "
                f"other arguments (call {key.hex()}); give the new request a key of its own",
                key=key.hex(),
                tool=name.tool,
            )
        standing = self.standing(session, record)
        decision = decide(record, standing, call.effect, cleared=cleared)
        return Entered(
            decision=decision,
            record=record,
            reason="call" if decision is Decision.WAIT else "",
            owner=record.owner if standing is Standing.ELSEWHERE else None,
        )

    def _begin(self, draft: Draft, call: Invocation, key: bytes, cleared: bool) -> CallRecord:
        thread = draft.state.number
        with self.engine.db.read() as session:
            found = self._decided(session, call, key, cleared)
            if found.decision is not Decision.START:
                raise _Otherwise(found)
            lease = calls.read_lease(session, self.engine.sealer, thread)
            self._check_free(session, thread, lease)
            if call.effect is Effect.EXTERNAL and call.asked is not None:
                self._check_durable(session, draft, call.asked)
        mine, write = self._lease(lease)
        record = self._begun(draft, call, key, found.record, mine.epoch)
        self._store(draft, record, found.record, mine if write else None, lease)
        return record

    def _check_free(self, session: Session, thread: int, lease: Lease | None) -> None:
        """Another live process that runs calls of the thread keeps it."""
        if lease is None or lease.owner == self._owner():
            return
        if not is_alive(lease.owner, lease.expires / 1000, self._clock()):
            return
        for row in session.all("calls_open", *calls.call_bounds(thread)):
            record = self._record(session, row, None)
            if record.state is CallState.STARTED and record.owner == lease.owner:
                raise _Otherwise(
                    Entered(decision=Decision.WAIT, record=None, reason="thread", owner=lease.owner)
                )

    def _check_durable(self, session: Session, draft: Draft, asked: Asked) -> None:
        """The checkpoint that asked for an external call must be stored before it starts."""
        state = draft.state
        id = pack_name(asked.checkpoint_id)
        known = state.namespaces.get(asked.checkpoint_ns)
        ns = known.row.ns if known is not None else None
        if ns is None and state.exists:
            thread = ThreadRow(number=state.number, thread_id=state.thread_id, spent=0)
            row = rows.find_namespace(session, self.engine.sealer, thread, asked.checkpoint_ns)
            ns = None if row is None else row.ns
        if ns is not None and session.one("checkpoint_exists", id, ns):
            return
        if session.one("tombstone", state.name, id) is not None:
            raise LostOwnership(
                f"thread {state.thread_id!r} was deleted while it ran; its tool call did not start"
            )
        raise _Otherwise(Entered(decision=Decision.WAIT, record=None, reason="checkpoint"))

    def _lease(self, lease: Lease | None) -> tuple[Lease, bool]:
        """The lease this process has after beginning a call, and whether it must be written."""
        me, now = self._owner(), int(self._clock() * 1000)
        period = int(self.engine.options.lease * 1000)
        if lease is not None and lease.owner == me:
            if lease.expires - now > period // 2:
                return lease, False
            return replace(lease, expires=now + period), True
        epoch = 1 if lease is None else lease.epoch + 1
        return Lease(epoch=epoch, expires=now + period, owner=me), True

    def _begun(
        self, draft: Draft, call: Invocation, key: bytes, old: CallRecord | None, epoch: int
    ) -> CallRecord:
        now = self._clock()
        values = {} if old is None else dict(old.values)
        answers = values.get("answers")
        values = self._packed(draft, {"arguments": call.arguments}, lenient=True)
        if answers is not None:
            values["answers"] = answers
        history = () if old is None else old.history
        what = (
            "started"
            if old is None
            else f"attempt {old.attempt + 1} (was {old.state.name.lower()})"
        )
        return CallRecord(
            call=draft.base if old is None else old.call,
            key=key,
            name=call.name if old is None else replace(call.name, thread_id=old.name.thread_id),
            state=CallState.STARTED,
            version=1 if old is None else old.version + 1,
            attempt=1 if old is None else old.attempt + 1,
            epoch=epoch,
            owner=self._owner(),
            effect=call.effect,
            started_at=now,
            flags=frozenset({"weak"}) if call.weak else frozenset(),
            position=call.position,
            history=history if old is None else (*history, Event(at=now, what=what)),
            values=tuple(values.items()),
        )

    # --- ending -------------------------------------------------------------------------------

    def settle(
        self,
        record: CallRecord,
        state: CallState,
        values: Mapping[str, Any],
        *,
        flags: frozenset[str] = frozenset(),
        event: Event | None = None,
        fenced: bool = True,
    ) -> CallRecord:
        """Record how a call ended; durable on return.

        A result that cannot be stored whole is stored as far as it can be, and flagged
        ``degraded``: that the call is done matters more.

        Args:
            record: the call as it was begun (or found).
            state: its new state.
            values: ``result``, ``error``, ``answers`` or ``artifacts``, as they are now.
            flags: what else to note.
            event: a line for its history.
            fenced: whether the thread must still be this process's.

        Raises:
            LostOwnership: somebody else changed the call or took the thread; nothing was written.
        """
        thread_id = record.name.thread_id
        forms = list(_forms(values))
        for index, form in enumerate(forms):
            noted = flags if index == 0 else flags | {"degraded"}
            try:
                return self.engine.change(
                    thread_id,
                    lambda draft, form=form, noted=noted: self._settled(  # type: ignore[misc]
                        draft, record, state, form, noted, event, fenced
                    ),
                )
            except ValueRefused as error:
                if index == len(forms) - 1:
                    raise
                logger.warning("tool %s: its result is stored in part: %s", record.name.tool, error)
        raise AssertionError("there is always a form")

    def _settled(
        self,
        draft: Draft,
        record: CallRecord,
        state: CallState,
        values: Mapping[str, Any],
        flags: frozenset[str],
        event: Event | None,
        fenced: bool,
    ) -> CallRecord:
        now = self._clock()
        kept = {k: v for k, v in record.values if k in ("arguments", "answers")}
        ended = replace(
            record,
            state=state,
            version=record.version + 1,
            ended_at=now,
            flags=record.flags | flags,
            history=record.history if event is None else (*record.history, event),
            values=tuple({**kept, **self._packed(draft, values)}.items()),
        )
        draft.then(self._updating(draft, ended, record, record.epoch if fenced else None))
        return ended

    # --- storing ------------------------------------------------------------------------------

    def _packed(
        self, draft: Draft, values: Mapping[str, Any], *, lenient: bool = False
    ) -> dict[str, bytes]:
        packer, serde = draft.packer(), self._reading().serde
        found: dict[str, bytes] = {}
        for name, value in values.items():
            try:
                tree = (
                    packer.write(name, value)
                    if serde is None
                    else packer.opaque(*serde.dumps_typed(value))
                )
                found[name] = pack(tree)
            except ValueRefused:
                if not lenient:
                    raise
        return found

    def _store(
        self,
        draft: Draft,
        record: CallRecord,
        old: CallRecord | None,
        lease: Lease | None,
        before: Lease | None,
    ) -> None:
        """A beginning: the row, and the lease if that changes."""
        thread, key = draft.state.number, record.key
        if lease is not None:
            draft.then(self._leasing(thread, lease, before))
        if old is not None:
            draft.then(self._updating(draft, record, old, record.epoch, Conflict))
            return
        stored = calls.sealed_call(draft, record)

        def insert(session: Session) -> None:
            if lease is None and session.one("lease_held", thread, record.epoch) is None:
                raise Conflict("the thread has changed its owner")
            calls.same_epoch(session, draft)
            first, last = calls.call_bounds(thread)
            newest = session.one("call_last", first, last)
            number = (first if newest is None or newest[0] is None else newest[0]) + 1
            session.insert("call_insert", number, key, record.state, record.version, stored)

        draft.then(insert)

    def _leasing(
        self, thread: int, lease: Lease, before: Lease | None
    ) -> Callable[[Session], None]:
        stored = calls.sealed_lease(self.engine.sealer, thread, lease)

        def step(session: Session) -> None:
            if before is None:
                session.insert("lease_insert", thread, lease.epoch, lease.expires, stored)
            elif (
                session.run("lease_take", lease.epoch, lease.expires, stored, thread, before.epoch)
                != 1
            ):
                raise Conflict("the thread has changed its owner")

        return step

    def _updating(
        self,
        draft: Draft,
        record: CallRecord,
        old: CallRecord,
        epoch: int | None,
        lost: type[Exception] = LostOwnership,
    ) -> Callable[[Session], None]:
        stored = calls.sealed_call(draft, record)
        thread = draft.state.number

        def step(session: Session) -> None:
            calls.same_epoch(session, draft)
            held = epoch is None or session.one("lease_held", thread, epoch) is not None
            if (
                not held
                or session.run(
                    "call_update", record.state, record.version, stored, record.key, old.version
                )
                != 1
            ):
                raise lost(_lost(record))

        return step

    def renew(self, threads: set[int]) -> None:
        """Keep the leases of threads whose calls are still running here."""
        me, expires = self._owner(), int((self._clock() + self.engine.options.lease) * 1000)

        def work(session: Session) -> None:
            for thread in threads:
                lease = calls.read_lease(session, self.engine.sealer, thread)
                if lease is not None and lease.owner == me:
                    new = replace(lease, expires=expires)
                    self._leasing(thread, new, lease)(session)

        self.engine.db.write(work)


def _lost(record: CallRecord) -> str:
    return (
        f"tool {record.name.tool!r}, call {record.key.hex()}: another process took thread "
        f"{record.name.thread_id!r} over, the thread was deleted, or somebody resolved the call "
        "while it ran here; nothing was written. Look with `langgraph-resilient ledger show`"
    )


def _forms(values: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Values to store, then less and less of the result until it can be stored."""
    yield values
    result = values.get("result")
    if result is None:
        return
    rest = dict(values)
    if getattr(result, "artifact", None) is not None:
        yield {**rest, "result": result.model_copy(update={"artifact": None})}
    if hasattr(result, "content") and hasattr(result, "model_copy"):
        bare: dict[str, Any] = {"artifact": None, "additional_kwargs": {}, "response_metadata": {}}
        yield {**rest, "result": result.model_copy(update={**bare, "content": str(result.content)})}
    yield {**rest, "result": repr(result)}
