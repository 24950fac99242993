"""Finding recorded calls, and what is true of them right now. Changes nothing."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from langgraph_resilient import calls
from langgraph_resilient.codec.types import TypePolicy
from langgraph_resilient.engine import Engine
from langgraph_resilient.errors import CheckpointCorrupt, DataCorrupt
from langgraph_resilient.ledger import flights
from langgraph_resilient.ledger.decision import Standing
from langgraph_resilient.ledger.entry import Entry, entry_of
from langgraph_resilient.ledger.owner import is_alive, this_process
from langgraph_resilient.recording import UserSerde
from langgraph_resilient.records import CallName, CallRecord, CallState, Owner
from langgraph_resilient.restoring import Restorer, decoded
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Row, Session

logger = logging.getLogger(__name__)

OPEN = frozenset({CallState.STARTED, CallState.UNKNOWN, CallState.SUSPENDED})
_PAGE = 500
_LAST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Reading:
    """What values are restored with: the saver's serializer and allowed types."""

    serde: UserSerde | None = None
    policy: TypePolicy | None = None


class Lookup:
    """The calls of one database, to read. Safe to use from any thread.

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

    def me(self) -> Owner:
        """Who this process is."""
        return self._owner()

    def now(self) -> float:
        """Seconds since 1970."""
        return self._clock()

    def find(self, session: Session, name: CallName, key: bytes) -> CallRecord | None:
        """A call by its name, whose key the caller has."""
        if name.everywhere:
            thread = 0
        else:
            found = rows.find_thread(session, self.engine.sealer, name.thread_id)
            if found is None:
                return None
            thread = found.number
        shown = None if name.everywhere else name.thread_id
        for row in session.all("calls_in", *calls.slots(thread, key)):
            if row[1] == key:
                return self._record(session, row, shown)
            self._frame(session, row, shown)  # a damaged key must not read as an absent call
        return None

    def find_by_key(self, session: Session, key: bytes) -> CallRecord | None:
        """A call by its key alone; looks at all calls."""
        row = session.one("calls_by_key", key)
        return None if row is None else self._record(session, row, None)

    def keys_like(self, prefix: str) -> list[str]:
        """Keys that begin with these hexadecimal digits: all, if there are only a few."""
        start, digits = prefix.strip().lower(), 2 * calls.KEY_BYTES
        if not start or len(start) > digits or set(start) - set("0123456789abcdef"):
            return []
        bounds = [bytes.fromhex(start.ljust(digits, fill)) for fill in "0f"]
        with self.engine.reading() as session:
            return [row[0].hex() for row in session.all("call_keys", *bounds)]

    def _record(self, session: Session, row: Row, thread_id: str | None) -> CallRecord:
        number = calls.thread_of(row[0])
        frame = self._frame(session, row, thread_id)
        shown = thread_id or self._thread_id(session, number)
        if number and thread_id is None:
            self._check_owned(session, row, number)
        record = calls.call_from(decoded(self.engine, session, frame, number), row, shown)
        if number or thread_id is not None:
            return record
        at_home = replace(record.name, thread_id=self._thread_id(session, record.home))
        return replace(record, name=at_home)

    def _check_owned(self, session: Session, row: Row, number: int) -> None:
        """A call goes with its thread; one that has lost it was not left by us.

        Raises:
            CheckpointCorrupt: the thread's row is gone, and the call is still there.
        """
        if session.one("thread_by_number", number) is None and session.all(
            "calls_in", row[0], row[0]
        ):
            raise CheckpointCorrupt(
                f"tool call {row[1].hex()}: thread number {number}, which it belongs to, is missing; "
                "run `langgraph-resilient verify` for all findings"
            )

    def _frame(self, session: Session, row: Row, thread_id: str | None) -> bytes:
        """A row's frame, its seal checked; the thread is only looked up to complain."""
        try:
            return calls.opened_frame(self.engine.sealer, row, thread_id or "")
        except DataCorrupt:
            shown = thread_id or self._thread_id(session, calls.thread_of(row[0]))
            return calls.opened_frame(self.engine.sealer, row, shown)

    def _thread_id(self, session: Session, number: int) -> str:
        """The name of a thread, its row's seal checked."""
        found = session.one("thread_by_number", number) if number else None
        if found is None:
            return f"(deleted thread {number})"
        return rows.opened_thread(self.engine.sealer, number, *found).thread_id

    def records(self, session: Session, first: int, last: int) -> Iterator[CallRecord]:
        """The calls of a range."""
        for row in _rows(session, first, last):
            yield self._record(session, row, None)

    def every(self, session: Session) -> Iterator[CallRecord]:
        """The calls of all threads."""
        return self.records(session, 0, _LAST)

    def open_records(self, session: Session, first: int, last: int) -> Iterator[CallRecord]:
        """The calls of a range that have not come to an end.

        Raises:
            CheckpointCorrupt: a row is damaged, also one that says that its call has ended.
        """
        for row in _rows(session, first, last):
            if row[2] in OPEN:
                yield self._record(session, row, None)
            else:
                self._frame(session, row, None)

    def open_of(self, session: Session, thread_id: str | None) -> Iterator[CallRecord]:
        """The calls of a thread, or of all, that have not come to an end."""
        if thread_id is None:
            yield from self.open_records(session, 0, _LAST)
            return
        thread = rows.find_thread(session, self.engine.sealer, thread_id)
        numbers = [0] if thread is None else [0, thread.number]
        for number in numbers:
            yield from self.open_records(session, *rows.call_bounds(number))

    def counts(self, session: Session) -> dict[int, Counter[str]]:
        """How many calls each thread has in each state, by the thread's number.

        A damaged one counts as unknown: nobody can read its outcome. `verify` says what is wrong.
        """
        found: dict[int, Counter[str]] = {}
        for row in _rows(session, 0, _LAST):
            number, state = calls.thread_of(row[0]), CallState.UNKNOWN
            try:
                if number == 0 or row[2] in OPEN:
                    record = self._record(session, row, None)
                    number, state = record.home, self.state_of(session, record)
                else:
                    state = CallState(row[2])
            except (DataCorrupt, ValueError) as error:
                logger.warning("a tool call of thread number %d: %s", number, error)
            found.setdefault(number, Counter())[state.name.lower()] += 1
        return found

    def standing(self, session: Session, record: CallRecord, *, alone: bool = False) -> Standing:
        """Whether somebody is running a call.

        Args:
            session: what the record was read in.
            record: the call.
            alone: whether the caller took off for it before that, so that no other flight of this
                process is on.
        """
        if record.owner == self._owner():
            if alone:
                return Standing.GONE
            flying = flights.is_flying(self.engine.scope, record.key)
            return Standing.HERE if flying or self._has_moved(record) else Standing.GONE
        lease = calls.read_lease(session, self.engine.sealer, record.home)
        mine = lease is not None and lease.owner == record.owner
        expires = lease.expires / 1000 if mine and lease is not None else 0.0
        alive = is_alive(record.owner, expires, self._clock())
        return Standing.ELSEWHERE if alive else Standing.GONE

    def _has_moved(self, record: CallRecord) -> bool:
        """Whether a call was running when its row was read, and has landed since.

        A call lands after its end is stored, so a row that is still the same was left behind.
        """
        with self.engine.db.read() as session:
            found = session.all("calls_in", record.call, record.call)
        return [row[3] for row in found] != [record.version]

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
            calls.thread_of(record.call),
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


def _rows(session: Session, first: int, last: int) -> Iterator[Row]:
    """The rows of a range of calls, some at a time: there may be many."""
    after = first - 1
    while found := session.all("calls_page", after, last, _PAGE):
        yield from found
        after = found[-1][0]
