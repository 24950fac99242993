"""Sealed rows: what stands in a column is only believed when its seal fits its place.

Every function runs inside a session that the caller opened. Knows frames, no objects.
"""

from __future__ import annotations

import logging
import struct
from dataclasses import replace

from langgraph_resilient.codec.digest import address, name_hash
from langgraph_resilient.codec.keys import unpack_name
from langgraph_resilient.codec.seal import Sealer
from langgraph_resilient.errors import CheckpointCorrupt, DataCorrupt, TamperDetected
from langgraph_resilient.records import (
    BLOB_BITS,
    CALL_BITS,
    ORDINALS,
    CheckpointRow,
    Lifetime,
    NamespaceRow,
    SnapshotCounts,
    ThreadRow,
    WritesRow,
)
from langgraph_resilient.store.session import Row, Session

logger = logging.getLogger(__name__)

TALLY_BYTES = 16
PART_BITS = 8
_PART_MASK = (1 << PART_BITS) - 1
_PART_BYTES = 480
"""Eight of these and their cell headers fill a page of 4096 bytes."""
_PARTS_BELOW = 24_000
_LIFETIME = struct.Struct(">BQQ")
"""What a thread's seal holds when its life is limited: this layout's number, `ttl` and `since`."""


def number_bytes(number: int) -> bytes:
    """A row number inside a place."""
    return number.to_bytes(8, "big", signed=True)


# --- places: what a seal is bound to ----------------------------------------------------------


def thread_place(number: int, thread_id: str, spent: int) -> bytes:
    """Where the seal of a thread's row belongs."""
    return (
        b"T"
        + number_bytes(number)
        + number_bytes(spent)
        + thread_id.encode("utf-8", "surrogatepass")
    )


def namespace_place(row: NamespaceRow) -> bytes:
    """Where the seal of a namespace's row belongs."""
    return b"".join(
        (
            b"N",
            number_bytes(row.ns),
            number_bytes(row.thread),
            number_bytes(row.head),
            number_bytes(row.checkpoints),
            row.tally.ljust(TALLY_BYTES, b"\0"),
            row.checkpoint_ns.encode("utf-8", "surrogatepass"),
        )
    )


def snapshots_place(ns: int, counts: SnapshotCounts) -> bytes:
    """Where the seal of a namespace's counts belongs."""
    numbers = (ns, counts.skipped, counts.bridged, counts.removed)
    return b"S" + b"".join(map(number_bytes, numbers))


def checkpoint_place(ns: int, id: bytes, parent: bytes | None) -> bytes:
    """Where the seal of a checkpoint's frame belongs."""
    return b"C" + number_bytes(ns) + len(id).to_bytes(4, "big") + id + (parent or b"")


def writes_place(ns: int, checkpoint: bytes, task: bytes) -> bytes:
    """Where the seal of a task's writes belongs."""
    return b"W" + number_bytes(ns) + len(checkpoint).to_bytes(4, "big") + checkpoint + task


def blob_place(blob: int) -> bytes:
    """Where the seal of a blob's frame belongs."""
    return b"B" + number_bytes(blob)


def template_place(template: int) -> bytes:
    """Where the seal of a template's frame belongs."""
    return b"P" + number_bytes(template)


# --- threads and namespaces -------------------------------------------------------------------


def find_thread(session: Session, sealer: Sealer, thread_id: str) -> ThreadRow | None:
    """A thread by its name.

    Raises:
        CheckpointCorrupt: its row, or the way to it, is damaged; it is not reported as missing.
    """
    row = session.one("thread_by_id", thread_id)
    if row is None:
        if any(
            other[1] == thread_id for other in session.all("thread_by_hash", name_hash(thread_id))
        ):
            raise CheckpointCorrupt(
                f"thread {thread_id!r}: the index that leads to it is damaged; "
                "run `langgraph-resilient verify`, then SQLite's REINDEX",
                thread_id=thread_id,
            )
        return None
    return opened_thread(sealer, row[0], thread_id, row[1], row[2])


def opened_thread(
    sealer: Sealer, number: int, thread_id: str, spent: int, seal: bytes
) -> ThreadRow:
    """A thread's row, its seal checked."""
    try:
        frame = sealer.open(thread_place(number, thread_id, spent), seal)
        lifetime = _lifetime(frame) if frame else None
    except (DataCorrupt, TypeError, AttributeError, OverflowError) as error:
        raise _damaged(error, f"thread {thread_id!r}: its row", thread_id) from None
    return ThreadRow(number=number, thread_id=thread_id, spent=spent, lifetime=lifetime)


def _lifetime(frame: bytes) -> Lifetime:
    if len(frame) != _LIFETIME.size or frame[0] != 1:
        raise DataCorrupt("how long it lives cannot be read")
    _, ttl, since = _LIFETIME.unpack(frame)
    return Lifetime(ttl=ttl, since=since)


def sealed_thread(sealer: Sealer, row: ThreadRow) -> bytes:
    """The seal of a thread's row: how long it lives is in it, so that nobody takes it away."""
    life = row.lifetime
    frame = b"" if life is None else _LIFETIME.pack(1, life.ttl, life.since)
    return sealer.seal(thread_place(row.number, row.thread_id, row.spent), frame)


def put_lifetime(
    session: Session, sealer: Sealer, row: ThreadRow, lifetime: Lifetime | None
) -> None:
    """Say how long a thread lives, in a write transaction in which its row was read."""
    seal = sealed_thread(sealer, replace(row, lifetime=lifetime))
    session.run("thread_spend", row.spent, seal, row.number)


def find_namespace(
    session: Session, sealer: Sealer, thread: ThreadRow, checkpoint_ns: str
) -> NamespaceRow | None:
    """One namespace of a thread.

    Raises:
        CheckpointCorrupt: its row, or the way to it, is damaged; it is not reported as missing.
    """
    row = session.one("namespace", thread.number, checkpoint_ns)
    if row is None:
        scan = session.all("namespaces_scan", thread.number) if checkpoint_ns == "" else []
        if any(other[1] == checkpoint_ns for other in scan):
            raise CheckpointCorrupt(
                f"thread {thread.thread_id!r}: the index of its namespaces is damaged; "
                "run `langgraph-resilient verify`, then SQLite's REINDEX",
                thread_id=thread.thread_id,
            )
        return None
    ns, head, checkpoints, tally, seal = row
    return opened_namespace(
        sealer, (ns, thread.number, checkpoint_ns, head, checkpoints, tally, seal), thread.thread_id
    )


def opened_namespace(sealer: Sealer, row: Row, thread_id: str) -> NamespaceRow:
    """A namespace's row, its seal checked."""
    ns, thread, checkpoint_ns, head, checkpoints, tally, seal = row
    try:
        found = NamespaceRow(
            ns=ns,
            thread=thread,
            checkpoint_ns=checkpoint_ns,
            head=head,
            checkpoints=checkpoints,
            tally=tally,
        )
        sealer.open(namespace_place(found), seal)
    except (DataCorrupt, TypeError, AttributeError, OverflowError) as error:
        raise _damaged(
            error, f"thread {thread_id!r}, namespace {checkpoint_ns!r}: its row", thread_id
        ) from None
    return found


def sealed_namespace(sealer: Sealer, row: NamespaceRow) -> bytes:
    """The seal of a namespace's row."""
    return sealer.seal(namespace_place(row), b"")


def opened_counts(sealer: Sealer, row: Row) -> SnapshotCounts:
    """The counts of a namespace: (number, skipped, bridged, removed, seal), the seal checked.

    Raises:
        DataCorrupt: the row is damaged.
    """
    ns, skipped, bridged, removed, seal = row
    try:
        found = SnapshotCounts(skipped=skipped, bridged=bridged, removed=removed)
        sealer.open(snapshots_place(ns, found), seal)
    except (TypeError, AttributeError, OverflowError):
        raise DataCorrupt(f"the counts of namespace {ns} have a value of a wrong kind") from None
    return found


def count_snapshots(
    session: Session, sealer: Sealer, ns: int, *, skipped: int = 0, removed: int = 0
) -> None:
    """Add to the counts of a namespace; one that skipped something is bridged once."""
    row = session.one("snapshots", ns)
    try:
        old = SnapshotCounts() if row is None else opened_counts(sealer, (ns, *row))
    except DataCorrupt as error:
        # No checkpoint is refused for it, and nothing is stored that would make it look right.
        logger.warning("the counts of namespace %d are damaged and stay so: %s", ns, error)
        return
    new = SnapshotCounts(
        skipped=old.skipped + skipped,
        bridged=old.bridged + (skipped > 0),
        removed=old.removed + removed,
    )
    put_counts(session, sealer, ns, new)


def put_counts(session: Session, sealer: Sealer, ns: int, counts: SnapshotCounts) -> None:
    """Store the counts of a namespace."""
    seal = sealer.seal(snapshots_place(ns, counts), b"")
    session.run("snapshots_put", ns, counts.skipped, counts.bridged, counts.removed, seal)


def check_tally(session: Session, row: NamespaceRow, thread_id: str, key: bytes) -> None:
    """Whether exactly the checkpoints that were written are there, in their order (keyed seals).

    Raises:
        TamperDetected: a row was added, removed, replaced or moved to another place in the order.
    """
    tally, count = tally_of(session, row.ns, key)
    if count != row.checkpoints or tally != row.tally:
        raise TamperDetected(
            f"thread {thread_id!r}, namespace {row.checkpoint_ns!r}: rows were added, removed, "
            f"moved or replaced without the key ({count} checkpoints found, {row.checkpoints} "
            "written)",
            thread_id=thread_id,
        )


def tally_of(session: Session, ns: int, key: bytes) -> tuple[bytes, int]:
    """The tally of the checkpoints that are there, and their count."""
    total = count = 0
    for seq, tag in session.all("checkpoints_seals", ns):
        total += _token(key, seq, tag)
        count += 1
    return (total % (1 << 128)).to_bytes(TALLY_BYTES, "big"), count


def tally_with(
    tally: bytes, key: bytes, seq: int, added: bytes, removed: bytes | None = None
) -> bytes:
    """The tally after a stored frame came to a place, and another one went from it."""
    total = int.from_bytes(tally, "big") + _token(key, seq, added[-TALLY_BYTES:])
    if removed is not None:
        total -= _token(key, seq, removed[-TALLY_BYTES:])
    return (total % (1 << 128)).to_bytes(TALLY_BYTES, "big")


def _token(key: bytes, seq: object, tag: object) -> int:
    # A sum of keyed digests (an incremental multiset hash): cheap to move on, and without the key
    # nobody can find other rows, or another order, with the same sum.
    seal = tag if isinstance(tag, bytes) else b""
    place = number_bytes(seq) if isinstance(seq, int) else b""
    return int.from_bytes(address(place + seal, key), "big")


# --- checkpoints and writes -------------------------------------------------------------------


def opened_checkpoint(sealer: Sealer, row: Row, ns: int, thread_id: str) -> CheckpointRow:
    """A checkpoint's row, its seal checked."""
    seq, id, parent, stored = row
    try:
        frame = sealer.open(checkpoint_place(ns, id, parent), stored)
    except (DataCorrupt, TypeError, AttributeError, OverflowError) as error:
        raise _damaged(
            error,
            f"thread {thread_id!r}, checkpoint {readable(id)}: its row",
            thread_id,
            readable(id),
        ) from None
    return CheckpointRow(seq=seq, ns=ns, id=id, parent=parent, frame=frame)


def seq_of(session: Session, id: bytes | None, ns: int) -> int | None:
    """The place of a checkpoint, or None when it is not in the namespace."""
    found = None if id is None else session.one("checkpoint_exists", id, ns)
    return None if found is None else int(found[0])


def head_of(
    session: Session, sealer: Sealer, row: NamespaceRow, thread_id: str
) -> CheckpointRow | None:
    """The newest checkpoint of a namespace, or None when it has none.

    Raises:
        CheckpointCorrupt: the newest checkpoint on record is not there, or another one is newer.
    """
    if not row.checkpoints:
        newest = session.one("checkpoint_last", row.ns)
        if newest is not None and newest[0] is not None:
            raise CheckpointCorrupt(
                f"thread {thread_id!r}: checkpoints are there that its record does not know",
                thread_id=thread_id,
            )
        return None
    found = session.one("checkpoint_by_seq", row.head, row.ns)
    if found is None:
        raise CheckpointCorrupt(
            f"thread {thread_id!r}, namespace {row.checkpoint_ns!r}: its newest checkpoint is "
            "missing; run `langgraph-resilient verify`",
            thread_id=thread_id,
        )
    return opened_checkpoint(sealer, found, row.ns, thread_id)


def writes_of(
    session: Session, sealer: Sealer, ns: int, checkpoint: bytes, thread_id: str
) -> list[WritesRow]:
    """What tasks wrote under one checkpoint."""
    return [
        opened_writes(sealer, (checkpoint, task, stored), ns, thread_id)
        for task, stored in session.all("writes_of", ns, checkpoint)
    ]


def opened_writes(sealer: Sealer, row: Row, ns: int, thread_id: str) -> WritesRow:
    """A task's writes, the seal checked."""
    checkpoint, task, stored = row
    try:
        frame = sealer.open(writes_place(ns, checkpoint, task), stored)
    except (DataCorrupt, TypeError, AttributeError, OverflowError) as error:
        raise _damaged(
            error,
            f"thread {thread_id!r}, checkpoint {readable(checkpoint)}: the pending writes of task "
            f"{readable(task)}",
            thread_id,
            readable(checkpoint),
        ) from None
    return WritesRow(ns=ns, checkpoint=checkpoint, task=task, frame=frame)


def readable(name: object) -> str:
    """A stored name for a message, whatever its state."""
    try:
        return unpack_name(name)  # type: ignore[arg-type]
    except (DataCorrupt, TypeError, AttributeError):
        return repr(name)


def blob_bounds(thread: int) -> tuple[int, int]:
    """The lowest and the highest number that a thread's blobs can have."""
    return thread << BLOB_BITS, (thread << BLOB_BITS) + ORDINALS - 1


def call_bounds(thread: int) -> tuple[int, int]:
    """The lowest and the highest number that a thread's tool calls or model calls can have."""
    return thread << CALL_BITS, (thread + 1 << CALL_BITS) - 1


def part_bounds(first: int, last: int) -> tuple[int, int]:
    """The lowest and the highest number of the parts of a range of blobs."""
    return first << PART_BITS, (last << PART_BITS) + (1 << PART_BITS) - 1


def parts_of(blob: int, at: bytes | None, stored: bytes) -> list[Row]:
    """The rows of a content; one in an archive has no address (None).

    Contents of a few kilobytes would leave much of a page empty, so they are cut into parts of
    which several fill one; long ones fill overflow pages by themselves.
    """
    first = blob << PART_BITS
    if not _PART_BYTES < len(stored) <= _PARTS_BELOW:
        return [(first, at, stored)]
    cuts = range(0, len(stored), _PART_BYTES)
    return [
        (first + index, None if index else at, stored[cut : cut + _PART_BYTES])
        for index, cut in enumerate(cuts)
    ]


def read_blobs(session: Session, first: int, last: int) -> list[tuple[int, bytes | None, bytes]]:
    """Contents whose numbers are neighbours: (blob, address or None, stored bytes)."""
    found: list[tuple[int, bytes | None, bytes]] = []
    pieces: list[bytes] = []
    at: bytes | None = b""
    blob = -1
    for part, digest, stored in session.all("blob_parts", *part_bounds(first, last)):
        index = part & _PART_MASK
        if not index:
            if pieces:
                found.append((blob, at, pieces[0] if len(pieces) == 1 else b"".join(pieces)))
            blob, at, pieces = part >> PART_BITS, digest, [stored]
        elif part >> PART_BITS == blob and index == len(pieces):
            pieces.append(stored)
    if pieces:
        found.append((blob, at, b"".join(pieces)))
    return found


def delete_blob(session: Session, blob: int) -> None:
    """Remove a content."""
    session.run("blob_delete", *part_bounds(blob, blob))


def _damaged(
    error: Exception, what: str, thread_id: str, checkpoint_id: str | None = None
) -> DataCorrupt:
    kind = (
        type(error)
        if isinstance(error, DataCorrupt) and type(error) is not DataCorrupt
        else CheckpointCorrupt
    )
    reason = (
        str(error) if isinstance(error, DataCorrupt) else "a column has a value of a wrong kind"
    )
    return kind(
        f"{what} is damaged: {reason}; run `langgraph-resilient verify` for all findings",
        thread_id=thread_id,
        checkpoint_id=checkpoint_id,
    )
