"""The ledger's rows: looked up, begun and settled, each in one durable transaction.

Carries out what `decision.decide` says; runs no tool and asks nobody.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from langgraph_resilient import calls
from langgraph_resilient.codec.keys import pack_name
from langgraph_resilient.codec.packed import pack
from langgraph_resilient.draft import Draft
from langgraph_resilient.engine import Engine
from langgraph_resilient.errors import (
    BusinessKeyReused,
    LostOwnership,
    ValueRefused,
)
from langgraph_resilient.ledger import fence, flights
from langgraph_resilient.ledger.decision import Decision, Standing, decide
from langgraph_resilient.ledger.forms import forms
from langgraph_resilient.ledger.invocation import Asked, Invocation
from langgraph_resilient.ledger.lookup import Lookup, Reading
from langgraph_resilient.ledger.owner import is_alive, this_process
from langgraph_resilient.ledger.shortcut import Shortcut, dumped
from langgraph_resilient.records import (
    CallName,
    CallRecord,
    CallState,
    Effect,
    Event,
    Lease,
    ModelCallState,
    Owner,
    ThreadRow,
)
from langgraph_resilient.store import rows
from langgraph_resilient.store.failures import Conflict
from langgraph_resilient.store.session import Session

logger = logging.getLogger(__name__)

_REPLAYS = 1000


class ThreadHeld(Exception):
    """Another live process runs the thread: wait, and look again. Never reaches a user."""

    def __init__(self, owner: Owner):
        super().__init__()
        self.owner = owner


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


class Book(Lookup):
    """The calls of one database, to read and to change. Safe to use from any thread.

    Args:
        engine: see `Lookup`, as are the next ones.
        reading: see there.
        clock: see there.
        owner: see there.
    """

    def __init__(
        self,
        engine: Engine,
        reading: Callable[[], Reading] = Reading,
        clock: Callable[[], float] = time.time,
        owner: Callable[[], Owner] = this_process,
    ):
        super().__init__(engine, reading, clock, owner)
        self._shortcut = Shortcut(engine)
        self.renewer = flights.Renewer(lambda: engine.scope, engine.options.lease / 3, self.renew)
        self.replays: deque[tuple[str, str, str]] = deque(maxlen=_REPLAYS)
        """Calls that were answered from the ledger in this process: thread, tool, key."""

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
        if call.asked is not None and call.effect is Effect.EXTERNAL and self.engine.keep:
            self.engine.keep(call.name.thread_id, call.asked.checkpoint_id)
        quick = None if cleared else self._begin_quickly(call, key)
        if quick is not None:
            return quick
        with self.engine.reading() as session:
            found = self._decided(session, call, key, cleared)
        old = found.record
        if found.decision is not Decision.START or (hold and old is not None):
            return found
        if not flights.take_off(self.engine.scope, key):
            return Entered(decision=Decision.WAIT, record=old, reason="call")
        try:
            record, number = self.engine.change(
                call.name.thread_id, lambda draft: self._begin(draft, call, key, cleared)
            )
        except BaseException as error:
            flights.land(self.engine.scope, key)
            if isinstance(error, _Otherwise):
                return error.entered
            raise
        record = replace(record, call=number[0])
        flights.assign(self.engine.scope, key, record.home)
        self.renewer.ensure()
        return Entered(decision=Decision.START, record=record, begun=True)

    def _begin_quickly(self, call: Invocation, key: bytes) -> Entered | None:
        """The common case: a new call of a thread that this process owns already."""
        thread = self._shortcut.thread_of(call.name.thread_id)
        lease = None if thread is None else self._shortcut.lease(thread)
        if thread is None or lease is None:
            return None
        values = self._shortcut.packed({"arguments": call.arguments}, self._reading().serde)
        if values is None or not flights.take_off(self.engine.scope, key):
            return None
        bounds = calls.slots(thread, key)
        record = self._first(call, key, thread, lease[0], values, bounds[0])
        number = 0
        try:
            period = int(self.engine.options.lease * 1000)
            number = self._shortcut.begin(call, record, lease, period)
        finally:
            if not number:
                flights.land(self.engine.scope, key)
        if not number:
            return None
        flights.assign(self.engine.scope, key, thread)
        self.renewer.ensure()
        if number != record.call:  # its place was taken by a call with a similar key
            record = replace(record, call=number)
        return Entered(decision=Decision.START, record=record, begun=True)

    def _first(
        self,
        call: Invocation,
        key: bytes,
        thread: int,
        epoch: int,
        values: Mapping[str, bytes],
        number: int = 0,
    ) -> CallRecord:
        """The record of a call that begins for the first time."""
        now = self._clock()
        return CallRecord(
            call=number,
            home=thread,
            key=key,
            name=call.name,
            state=CallState.STARTED,
            version=1,
            attempt=1,
            epoch=epoch,
            owner=self._owner(),
            effect=call.effect,
            first_at=now,
            started_at=now,
            flags=frozenset({"weak"}) if call.weak else frozenset(),
            position=call.position,
            values=tuple(values.items()),
        )

    def _decided(
        self, session: Session, call: Invocation, key: bytes, cleared: bool, alone: bool = False
    ) -> Entered:
        name = call.name
        record = self.find(session, name, key)
        if record is None:
            return Entered(decision=Decision.START, record=None)
        if record.name.arguments != name.arguments:
            raise BusinessKeyReused(
                f"tool {name.tool!r}: the business key {name.business!r} was used before with "
                f"other arguments (call {key.hex()}); give the new request a key of its own",
                key=key.hex(),
                tool=name.tool,
            )
        standing = self.standing(session, record, alone=alone)
        decision = decide(record, standing, call.effect, cleared=cleared)
        return Entered(
            decision=decision,
            record=record,
            reason="call" if decision is Decision.WAIT else "",
            owner=record.owner if standing is Standing.ELSEWHERE else None,
        )

    def _begin(
        self, draft: Draft, call: Invocation, key: bytes, cleared: bool
    ) -> tuple[CallRecord, list[int]]:
        """The record, and where its number stands as soon as it is stored."""
        thread = draft.state.number
        with self.engine.db.read() as session:
            found = self._decided(session, call, key, cleared, alone=True)
            if found.decision is not Decision.START:
                raise _Otherwise(found)
            lease = calls.read_lease(session, self.engine.sealer, thread)
            if lease is not None and self._is_busy(session, thread, lease):
                busy = Entered(
                    decision=Decision.WAIT, record=None, reason="thread", owner=lease.owner
                )
                raise _Otherwise(busy)
            if call.effect is Effect.EXTERNAL and call.asked is not None:
                self._check_durable(session, draft, call.asked)
            seen = session.one("lease", thread)
        fence.check_held(self.engine, draft.state.thread_id, lease, self._owner())
        mine, write = self.lease(lease)
        if not write and seen is not None:
            self._shortcut.remember(thread, seen)
        record = self._begun(draft, call, key, found.record, mine.epoch)
        number = self._store(draft, record, found.record, mine if write else None, lease)
        return record, number

    def _is_busy(self, session: Session, thread: int, lease: Lease) -> bool:
        """Whether another live process runs tool calls or model calls of the thread."""
        if lease.owner == self._owner():
            return False
        if not is_alive(lease.owner, lease.expires / 1000, self._clock()):
            return False
        bounds = rows.call_bounds(thread)
        asking = (row[1] for row in session.all("journal_open", *bounds))
        return ModelCallState.STARTED in asking or any(
            record.state is CallState.STARTED and record.owner == lease.owner
            for record in self.open_records(session, *bounds)
        )

    def claim(self, draft: Draft) -> int:
        """Make the draft's thread this process's, with the draft; the epoch of its lease.

        Raises:
            ThreadHeld: another live process runs tool calls or model calls of it.
        """
        thread = draft.state.number
        with self.engine.db.read() as session:
            lease = calls.read_lease(session, self.engine.sealer, thread)
            if lease is not None and self._is_busy(session, thread, lease):
                raise ThreadHeld(lease.owner)
        fence.check_held(self.engine, draft.state.thread_id, lease, self._owner())
        mine, write = self.lease(lease)
        if write:
            draft.then(self.leasing(thread, mine, lease))
        self.renewer.ensure()
        return mine.epoch

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

    def lease(self, lease: Lease | None) -> tuple[Lease, bool]:
        """The lease this process has after beginning a call, and whether it must be written."""
        me, now = self._owner(), int(self._clock() * 1000)
        period = int(self.engine.options.lease * 1000)
        if lease is not None and lease.owner == me:
            if lease.expires - now > period // 2:
                return lease, False
            return replace(lease, expires=now + period), True
        if lease is not None:
            return replace(lease, epoch=lease.epoch + 1, expires=now + period, owner=me), True
        return Lease(epoch=1, expires=now + period, owner=me), True

    def _begun(
        self, draft: Draft, call: Invocation, key: bytes, old: CallRecord | None, epoch: int
    ) -> CallRecord:
        values = self._packed(draft, {"arguments": call.arguments}, call.name, lenient=True)
        if old is None:
            return self._first(call, key, draft.state.number, epoch, values)
        # Run anew, a call that had succeeded asks its questions anew.
        answers = None if old.state is CallState.SUCCEEDED else old.value("answers")
        if answers is not None:
            values["answers"] = answers
        now = self._clock()
        what = f"attempt {old.attempt + 1} (was {old.state.name.lower()})"
        return replace(
            self._first(call, key, draft.state.number, epoch, values),
            call=old.call,
            first_at=old.first_at,
            version=old.version + 1,
            attempt=old.attempt + 1,
            history=(*old.history, Event(at=now, what=what)),
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
        if record.name.everywhere:
            return self._settle_everywhere(record, state, values, flags, event, fenced)
        if fenced and event is None:
            quick = self._settle_quickly(record, state, values, flags)
            if quick is not None:
                return quick
        self.engine.runs.ends_inside(record.key)  # what was asked retires with the outermost task
        thread_id = record.name.thread_id
        tried = list(forms(values))
        for index, form in enumerate(tried):
            noted = flags if index == 0 else flags | {"degraded"}
            try:
                return self.engine.change(
                    thread_id,
                    lambda draft, form=form, noted=noted: self._settled(  # type: ignore[misc]
                        draft, record, state, form, noted, event, fenced
                    ),
                )
            except ValueRefused as error:
                if index == len(tried) - 1:
                    raise
                logger.warning("tool %s: its result is stored in part: %s", record.name.tool, error)
        raise AssertionError("there is always a form")

    def _settle_quickly(
        self,
        record: CallRecord,
        state: CallState,
        values: Mapping[str, Any],
        flags: frozenset[str],
    ) -> CallRecord | None:
        """The common case: small values, and a thread that this process knows."""
        if self._shortcut.thread_of(record.name.thread_id) != record.home:
            return None
        packed = self._shortcut.packed(values, self._reading().serde)
        if packed is None:
            return None
        ended = self._end(record, state, packed, flags, None)
        if not self._shortcut.settle(ended, record.version):
            raise _lost(record)
        return ended

    def _end(
        self,
        record: CallRecord,
        state: CallState,
        packed: Mapping[str, bytes],
        flags: frozenset[str],
        event: Event | None,
    ) -> CallRecord:
        kept = {k: v for k, v in record.values if k in ("arguments", "answers")}
        return replace(
            record,
            state=state,
            version=record.version + 1,
            ended_at=self._clock(),
            flags=record.flags | flags,
            history=record.history if event is None else (*record.history, event),
            values=tuple({**kept, **packed}.items()),
        )

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
        ended = self._end(record, state, self._packed(draft, values, record.name), flags, event)
        draft.then(self._updating(draft, ended, record, record.epoch if fenced else None))
        return ended

    # --- storing ------------------------------------------------------------------------------

    def _packed(
        self, draft: Draft, values: Mapping[str, Any], name: CallName, *, lenient: bool = False
    ) -> dict[str, bytes]:
        serde = self._reading().serde
        if name.everywhere:  # such a row outlives its thread, so it holds everything itself
            return self._shortcut.packed(values, serde, small=False) or {}
        packer = draft.packer()
        found: dict[str, bytes] = {}
        for item, value in values.items():
            try:
                tree = (
                    packer.write(item, value)
                    if serde is None
                    else packer.opaque(*dumped(serde, item, value))
                )
                found[item] = pack(tree)
            except ValueRefused:
                if not lenient:
                    raise
        return found

    def _settle_everywhere(
        self,
        record: CallRecord,
        state: CallState,
        values: Mapping[str, Any],
        flags: frozenset[str],
        event: Event | None,
        fenced: bool,
    ) -> CallRecord:
        """A call whose business key holds for all threads: no thread's contents are needed."""
        serde, noted, packed = self._reading().serde, flags, None
        for form in forms(values):
            packed = self._shortcut.packed(form, serde, small=False)
            if packed is not None:
                break
            noted = flags | {"degraded"}
        ended = self._end(record, state, packed or {}, noted, event)
        if not self._shortcut.settle(ended, record.version, fenced=fenced):
            raise _lost(record)
        return ended

    def _store(
        self,
        draft: Draft,
        record: CallRecord,
        old: CallRecord | None,
        lease: Lease | None,
        before: Lease | None,
    ) -> list[int]:
        """A beginning: the row, and the lease if that changes."""
        thread, key = draft.state.number, record.key
        if lease is not None:
            draft.then(self.leasing(thread, lease, before))
        if old is not None:
            draft.then(self._updating(draft, record, old, record.epoch, _changed))
            return [old.call]
        stored = calls.sealed_call(draft, record)
        bounds = calls.slots(0 if record.name.everywhere else thread, key)
        number = [0]

        def insert(session: Session) -> None:
            if lease is None and session.one("lease_held", thread, record.epoch) is None:
                raise Conflict("the thread has changed its owner")
            calls.same_epoch(session, draft)
            taken = session.all("calls_in", *bounds)
            if any(row[1] == key for row in taken):
                raise Conflict("somebody else has begun the call")
            number[0] = calls.free_slot(taken, *bounds)
            session.insert("call_insert", number[0], key, record.state, record.version, stored)

        draft.then(insert)
        return number

    def leasing(self, thread: int, lease: Lease, before: Lease | None) -> Callable[[Session], None]:
        """What stores a lease, unless the thread has changed its owner meanwhile."""
        stored = calls.sealed_lease(self.engine.sealer, thread, lease)
        self._shortcut.remember(thread, (lease.epoch, lease.expires, stored))

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
        lost: Callable[[CallRecord], Exception] | None = None,
    ) -> Callable[[Session], None]:
        stored = calls.sealed_call(draft, record)
        thread = draft.state.number

        def step(session: Session) -> None:
            calls.same_epoch(session, draft)
            held = epoch is None or session.one("lease_held", thread, epoch) is not None
            if (
                not held
                or session.run(
                    "call_update",
                    record.state,
                    record.version,
                    stored,
                    old.call,
                    record.key,
                    old.version,
                )
                != 1
            ):
                raise (lost or _lost)(record)

        return step

    def renew(self, threads: set[int]) -> None:
        """Keep the leases of threads whose calls are still running here."""
        me, expires = self._owner(), int((self._clock() + self.engine.options.lease) * 1000)

        def work(session: Session) -> None:
            for thread in threads:
                lease = calls.read_lease(session, self.engine.sealer, thread)
                if lease is not None and lease.owner == me:
                    new = replace(lease, expires=expires)
                    self.leasing(thread, new, lease)(session)

        self.engine.db.write(work)


def _lost(record: CallRecord) -> LostOwnership:
    return LostOwnership(
        f"tool {record.name.tool!r}, call {record.key.hex()}: another process took thread "
        f"{record.name.thread_id!r} over, the thread was deleted, or somebody resolved the call "
        "while it ran here; nothing was written. Look with `langgraph-resilient ledger show`",
        key=record.key.hex(),
        tool=record.name.tool,
    )


def _changed(record: CallRecord) -> Conflict:
    return Conflict(f"call {record.key.hex()} or its thread has changed since it was looked at")
