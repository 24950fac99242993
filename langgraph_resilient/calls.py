"""Tool calls to rows and back: the key recipe, the packed layout, the seals.

Knows no tools and no decisions, so that collectors, copiers and checkers can use it. A call's
frame has the shape of a task's writes (`recording.pack_writes`): what it names is found alike.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from langgraph_resilient.codec.frame import FRAME_VERSION, Method
from langgraph_resilient.codec.packed import pack
from langgraph_resilient.codec.seal import Sealer
from langgraph_resilient.errors import CheckpointCorrupt, DataCorrupt, StorageError
from langgraph_resilient.records import (
    CALL_BITS,
    CallName,
    CallRecord,
    CallState,
    Effect,
    Event,
    Lease,
    Owner,
)
from langgraph_resilient.restoring import unpacked
from langgraph_resilient.store import rows
from langgraph_resilient.store.failures import Conflict
from langgraph_resilient.store.session import Row, Session

if TYPE_CHECKING:
    from langgraph_resilient.draft import Draft

KEY_BYTES = 16
_PROBES = 8
UNCOMPRESSED = bytes((FRAME_VERSION << 4 | Method.RAW,))
"""Header of a frame for a row that is soon replaced: compressing it would not pay."""
_PLACE = struct.Struct(">xqBq").pack
"""Thread, state and version of a call; no other place begins with a zero."""


def key_of(name: CallName) -> bytes:
    """The call hash: BLAKE2b-128 over everything that a call is, and nothing that a crash changes.

    No checkpoint, task or step id goes in: LangGraph changes them when it resumes.
    """
    parts: list[str | bytes]
    if name.business is not None:
        parts = [name.tool, name.business]
        if not name.everywhere:  # one part more, and not an empty one: a thread may have no name
            parts = [name.thread_id, *parts]
    else:
        parts = [
            name.thread_id,
            name.parent,
            name.message_id,
            name.tool_call_id,
            name.tool,
            name.arguments,
            name.path,
        ]
    # MessagePack says how many parts there are and how long each is: none runs into the next.
    return hashlib.blake2b(pack(parts), digest_size=KEY_BYTES, person=b"lgr-call-1").digest()


# --- packed layout ----------------------------------------------------------------------------


def packed_call(record: CallRecord) -> bytes:
    """A call's record as bytes; its key, state and version stand in columns beside it."""
    name, owner = record.name, record.owner
    fields = [
        [name.parent, name.message_id, name.tool_call_id, name.tool, name.arguments, name.path],
        [name.business, name.everywhere],
        [record.attempt, record.epoch, record.position, record.effect.value, record.home],
        [owner.boot, owner.host, owner.pid, owner.started],
        [record.first_at, record.started_at, record.ended_at, sorted(record.flags)],
    ]
    history = [[event.at, event.what, event.by, event.reason] for event in record.history]
    names = [item for item, _ in record.values]
    return pack([fields, history, names, [value for _, value in record.values]])


def call_from(raw: bytes, row: Row, thread_id: str) -> CallRecord:
    """The record again.

    Raises:
        DataCorrupt: the bytes are no call.
    """
    try:
        fields, history, names, values = unpacked(raw)
        (parent, message, call, tool, arguments, path), (business, everywhere) = fields[:2]
        (attempt, epoch, position, effect, home), owner = fields[2:4]
        first_at, started_at, ended_at, flags = fields[4]
        name = CallName(
            thread_id=thread_id,
            parent=parent,
            message_id=message,
            tool_call_id=call,
            tool=tool,
            arguments=arguments,
            path=path,
            business=business,
            everywhere=everywhere,
        )
        return CallRecord(
            call=row[0],
            home=home,
            key=row[1],
            name=name,
            state=CallState(row[2]),
            version=row[3],
            attempt=attempt,
            epoch=epoch,
            owner=_owner(owner),
            effect=Effect(effect),
            first_at=first_at,
            started_at=started_at,
            ended_at=ended_at,
            flags=frozenset(flags),
            position=position,
            history=tuple(Event(at=a, what=w, by=b, reason=r) for a, w, b, r in history),
            values=tuple(zip(names, values, strict=True)),
        )
    except (ValueError, TypeError) as problem:
        raise DataCorrupt(f"it is no call: {problem}") from None


def _owner(packed: list[Any]) -> Owner:
    boot, host, pid, started = packed
    return Owner(boot=boot, host=host, pid=pid, started=started)


# --- sealed rows ------------------------------------------------------------------------------


def call_place(thread: int, key: bytes, state: int, version: int) -> bytes:
    """Where the seal of a call's row belongs."""
    return _PLACE(thread, state, version) + key


def thread_of(call: int) -> int:
    """The thread in a call's number; 0 where a business key holds for all."""
    return call >> CALL_BITS


def slots(thread: int, key: bytes) -> tuple[int, int]:
    """The lowest and the highest number that a call with this key can have."""
    first = (thread << CALL_BITS) + (int.from_bytes(key[:4], "big") & ~(_PROBES - 1))
    return first, first + _PROBES - 1


def free_slot(taken: Iterable[Row], first: int, last: int) -> int:
    """The number for a new call, given the rows that its slots hold already.

    Raises:
        StorageError: all are taken, which chance does not do.
    """
    used = {row[0] for row in taken}
    for number in range(first, last + 1):
        if number not in used:
            return number
    raise StorageError(f"all places for a tool call at {first} are taken")


def opened_frame(sealer: Sealer, row: Row, thread_id: str) -> bytes:
    """The frame of a call's row.

    Raises:
        CheckpointCorrupt: its seal does not fit (or what its seal says).
    """
    try:
        return sealer.open(call_place(thread_of(row[0]), row[1], row[2], row[3]), row[4])
    except (DataCorrupt, TypeError, AttributeError, OverflowError) as error:
        shown = row[1].hex() if isinstance(row[1], bytes) else repr(row[1])
        kind = type(error) if isinstance(error, DataCorrupt) else CheckpointCorrupt
        if kind is DataCorrupt:
            kind = CheckpointCorrupt
        raise kind(
            f"thread {thread_id!r}, tool call {shown}: its record is damaged: {error}; "
            "run `langgraph-resilient verify` for all findings",
            thread_id=thread_id,
        ) from None


def sealed_call(draft: Draft, record: CallRecord) -> bytes:
    """The bytes of a call's last column."""
    raw, engine = packed_call(record), draft.engine
    # What holds for all threads must be readable when the thread's templates are gone.
    everywhere = record.name.everywhere
    frame = engine.frames.encode(raw) if everywhere else draft.frame(raw, "l")
    thread = 0 if everywhere else draft.state.number
    return engine.sealer.seal(call_place(thread, record.key, record.state, record.version), frame)


def store_call(draft: Draft, record: CallRecord) -> None:
    """Put a whole record into a draft; one that its thread has already stays as it is."""
    stored = sealed_call(draft, record)
    bounds = slots(draft.state.number, record.key)

    def step(session: Session) -> None:
        same_epoch(session, draft)
        taken = session.all("calls_in", *bounds)
        if any(row[1] == record.key for row in taken):
            return  # what is there already counts
        number = free_slot(taken, *bounds)
        session.insert("call_insert", number, record.key, record.state, record.version, stored)

    draft.then(step)


def same_epoch(session: Session, draft: Draft) -> None:
    """References are true only while nobody has deleted contents (see `Draft.epoch`).

    Raises:
        Conflict: somebody has.
    """
    clock = session.one("clock")
    if clock is None or clock[0] != draft.epoch:
        raise Conflict("blobs may have been deleted")


def frames_of(session: Session, sealer: Sealer, thread: int, thread_id: str) -> Iterator[bytes]:
    """The frames of all calls of a thread."""
    for row in session.all("calls_in", *rows.call_bounds(thread)):
        yield opened_frame(sealer, row, thread_id)


def lease_place(thread: int, epoch: int, expires: int) -> bytes:
    """Where the seal of a lease belongs."""
    return b"E" + b"".join(map(rows.number_bytes, (thread, epoch, expires)))


def sealed_lease(sealer: Sealer, thread: int, lease: Lease) -> bytes:
    """The bytes of a lease's last column."""
    owner = lease.owner
    tried = [lease.attempted, lease.attempts] if lease.attempts else []
    frame = pack([owner.boot, owner.host, owner.pid, owner.started, *tried])
    return sealer.seal(lease_place(thread, lease.epoch, lease.expires), frame)


def read_lease(session: Session, sealer: Sealer, thread: int) -> Lease | None:
    """Who runs the calls of a thread.

    Raises:
        DataCorrupt: the row is damaged.
    """
    row = session.one("lease", thread)
    if row is None:
        return None
    epoch, expires, stored = row
    try:
        found = unpacked(sealer.open(lease_place(thread, epoch, expires), stored))
        owner, tried = _owner(found[:4]), found[4:]
        attempted, attempts = tried or (b"", 0)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise DataCorrupt(f"the lease of thread number {thread} is damaged: {error}") from None
    return Lease(epoch=epoch, expires=expires, owner=owner, attempted=attempted, attempts=attempts)
