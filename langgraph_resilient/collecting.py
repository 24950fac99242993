"""Finds and removes contents and templates that nothing names any more.

Works on packed bytes inside a session that the caller opened; no object is restored. Whoever deletes
contents must move the epoch on (`Engine.tick`) in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from langgraph_resilient import calls, modelcalls
from langgraph_resilient.codec import envelope
from langgraph_resilient.codec.frame import ARCHIVE, has_references, template_number
from langgraph_resilient.codec.packed import references_of
from langgraph_resilient.engine import Engine
from langgraph_resilient.records import BLOB_BITS, ThreadRow
from langgraph_resilient.restoring import Restorer, open_blob, unpacked
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Session


def release(session: Session, blobs: Iterable[int]) -> None:
    """Remove contents whose maker is gone and that nobody uses any more."""
    for blob in blobs:
        owner = session.one("thread_by_number", blob >> BLOB_BITS)
        if owner is None and session.one("shares_left", blob) is None:
            rows.delete_blob(session, blob)


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """What nothing of a thread names any more.

    Attributes:
        blobs: the thread's own contents that no thread needs.
        shares: contents of other threads that it no longer uses.
        templates: what no frame is compressed against, and no writer will use again.
    """

    blobs: list[int]
    shares: list[int]
    templates: list[int]

    @property
    def any(self) -> bool:
        """Whether there is anything to remove."""
        return bool(self.blobs or self.shares or self.templates)


def sweep(engine: Engine, session: Session, thread: ThreadRow, restorer: Restorer) -> None:
    """Remove a thread's contents that nothing names any more, neither here nor elsewhere."""
    remove(engine, session, thread, garbage(engine, session, thread, restorer))


def garbage(
    engine: Engine,
    session: Session,
    thread: ThreadRow,
    restorer: Restorer,
    *,
    templates: bool = False,
) -> Garbage:
    """What could be removed from a thread now.

    Args:
        engine: lends codec and seals.
        session: one look at the database.
        thread: the thread.
        restorer: reads its frames.
        templates: look for templates, too, which takes a look at every frame.

    Raises:
        DataCorrupt: a row is damaged, so that nobody knows what it names.
    """
    first, last = rows.blob_bounds(thread.number)
    reached = reachable(engine, session, thread, restorer)
    used = reached | {row[0] for row in session.all("shares_of_blobs", first, last)}
    used |= inside(engine, session, used - reached, thread.thread_id)
    own = [row[0] for row in session.all("blob_keys", *rows.part_bounds(first, last))]
    return Garbage(
        blobs=[blob for blob in own if blob not in used],
        shares=[
            row[0]
            for row in session.all("shares_of_thread", thread.number)
            if row[0] not in reached
        ],
        templates=_unused_templates(engine, session, thread, used) if templates else [],
    )


def remove(engine: Engine, session: Session, thread: ThreadRow, found: Garbage) -> None:
    """Remove what `garbage` found in the same transaction."""
    first, _ = rows.blob_bounds(thread.number)
    for blob in found.blobs:
        rows.delete_blob(session, blob)
    if found.blobs:
        spent = max(thread.spent, max(found.blobs) - first)
        seal = rows.sealed_thread(engine.sealer, replace(thread, spent=spent))
        session.run("thread_spend", spent, seal, thread.number)
    for blob in found.shares:
        session.run("share_delete", thread.number, blob)
    release(session, found.shares)
    for template in found.templates:
        session.run("templates_delete", template, template)
        engine.templates.discard(template)


def _unused_templates(
    engine: Engine, session: Session, thread: ThreadRow, used: set[int]
) -> list[int]:
    """Templates that no frame needs; the newest of a family is what the next frame will use.

    The last of all stays, too: other processes may remember it, so its number is not given out again.
    """
    first, last = rows.blob_bounds(thread.number)
    needed = {template_number(frame) for _, frame in frames_of(engine, session, thread)}
    for blob, _, stored in rows.read_blobs(session, first, last):
        if blob in used:
            needed.add(template_number(engine.sealer.open(rows.blob_place(blob), stored)))
    every = [(row[0], row[1]) for row in session.all("template_kinds", first, last)]
    newest = {kind: number for number, kind in every}
    newest.pop(ARCHIVE, None)
    newest.update({"last": every[-1][0]} if every else {})
    kept = {first + number for number in needed if number is not None} | set(newest.values())
    return [number for number, _ in every if number not in kept]


def reachable(engine: Engine, session: Session, thread: ThreadRow, restorer: Restorer) -> set[int]:
    """Every content that a thread's checkpoints and writes name, directly or not."""
    base = thread.number << BLOB_BITS
    found: set[int] = set()
    for named, frame in frames_of(engine, session, thread):
        found.update(named(restorer.content(frame), base))
    return found | inside(engine, session, found, thread.thread_id)


def frames_of(
    engine: Engine, session: Session, thread: ThreadRow
) -> Iterator[tuple[Callable[[bytes, int], set[int]], bytes]]:
    """Every frame of a thread but its contents, and what tells which contents one names."""
    sealer, thread_id = engine.sealer, thread.thread_id
    for row in session.all("namespaces", thread.number):
        for checkpoint in session.all("checkpoints_page", row[0], 1 << 62, -1):
            yield (
                named_by_envelope,
                rows.opened_checkpoint(sealer, checkpoint, row[0], thread_id).frame,
            )
        for written in session.all("writes_all", row[0]):
            yield named_by_writes, rows.opened_writes(sealer, written, row[0], thread_id).frame
    for frame in calls.frames_of(session, sealer, thread.number, thread_id):
        yield named_by_writes, frame
    for frame in modelcalls.frames_of(session, sealer, thread.number, thread_id):
        yield named_by_writes, frame


def named_by_envelope(raw: bytes, base: int) -> set[int]:
    """The contents that an envelope names directly."""
    tree = unpacked(raw)
    values = [*tree[envelope.VALUES].values(), tree[envelope.METADATA], tree[envelope.EXTRA]]
    if tree[0] & envelope.WALKED:
        values.extend(tree[index] for index in envelope.WALKABLE)
    for seed, writes in (tree[envelope.FOLDED] or {}).values():
        values.extend(value for _, value in writes)
        if seed is not None:
            values.append(seed)
    return {blob for value in values for blob in references_of(value, base)}


def named_by_writes(raw: bytes, base: int) -> set[int]:
    """The contents that a task's writes name directly."""
    return {blob for value in unpacked(raw)[3] for blob in references_of(value, base)}


def inside(engine: Engine, session: Session, blobs: set[int], thread_id: str) -> set[int]:
    """The contents that other contents name, directly or not."""
    found: set[int] = set()
    waiting = list(blobs)
    while waiting:
        blob = waiting.pop()
        for number, _, stored in rows.read_blobs(session, blob, blob):
            frame = engine.sealer.open(rows.blob_place(number), stored)
            if has_references(frame):
                raw, _ = open_blob(engine, session, number, stored, thread_id)
                inner = set(references_of(raw, number >> BLOB_BITS << BLOB_BITS)) - found - blobs
                found |= inner
                waiting.extend(inner)
    return found
