"""Removes what nothing names any more: contents, templates, finished streams, old tombstones."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from langgraph_resilient import collecting
from langgraph_resilient.codec import envelope
from langgraph_resilient.codec.keys import unpack_name
from langgraph_resilient.errors import DataCorrupt
from langgraph_resilient.maintenance.given import engine_of, keep_held
from langgraph_resilient.maintenance.pruning import all_threads
from langgraph_resilient.maintenance.reports import GcReport, OnProgress, Progress, Skipped
from langgraph_resilient.maintenance.scanning import snapshot
from langgraph_resilient.restoring import Restorer
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Session

if TYPE_CHECKING:
    from langgraph_resilient.saver import ResilientSaver

_LAST_PART = (1 << 63) - 1
_MICROS = 1_000_000


def gc(
    saver: ResilientSaver,
    *,
    threads: Iterable[str] | None = None,
    tombstones: timedelta = timedelta(days=30),
    dry_run: bool = False,
    progress: OnProgress | None = None,
) -> GcReport:
    """Remove what nothing names any more.

    A look at each thread tells whether there is anything to remove; only then it is written to, in
    one transaction. Agents may run meanwhile: a write that was prepared before contents went is
    prepared again. Interrupted, it can be run again.

    Leases of threads that are there stay, also those of dead processes: their count of owners is
    what a process that comes back late is recognised by.

    Args:
        saver: an open saver.
        threads: only these, and then nothing that belongs to none; all by default.
        tombstones: deleted threads are kept from being brought back by late writes for so long.
        dry_run: change nothing, only tell what would go.
        progress: is told after each thread.

    Returns:
        What went, and which threads were left out because they are damaged.

    Raises:
        StorageError: the database could not be written; whole threads are done or not.
    """
    keep_held(saver)
    work = _Collector(saver, dry_run)
    names = all_threads(saver) if threads is None else list(dict.fromkeys(map(str, threads)))
    for done, thread_id in enumerate(names):
        if progress is not None:
            progress(Progress(done, len(names), "collecting garbage"))
        try:
            work.thread(thread_id)
        except DataCorrupt as error:
            work.skipped.append(Skipped(thread_id, str(error)))
    if threads is None:
        work.rest(tombstones)
    if progress is not None:
        progress(Progress(len(names), len(names), "collecting garbage"))
    return work.report()


class _Collector:
    """One run of `gc`."""

    def __init__(self, saver: ResilientSaver, dry_run: bool):
        self._engine = engine_of(saver)
        self._dry_run = dry_run
        self._counts: Counter[str] = Counter()
        self.skipped: list[Skipped] = []

    def report(self) -> GcReport:
        names = ("threads", "blobs", "shares", "templates", "chunks", "tombstones", "bytes")
        counts = {name: self._counts[name] for name in names}
        return GcReport(dry_run=self._dry_run, skipped=self.skipped, **counts)

    def thread(self, thread_id: str) -> None:
        """Look at one thread, and clean it where that is worth a transaction."""
        engine = self._engine
        with snapshot(engine) as session:
            seen = self._look(session, thread_id)
        if not seen:
            return
        if self._dry_run:
            self._counts.update(seen)
            return

        def work(session: Session) -> tuple[int, Counter[str]]:
            found = self._look(session, thread_id, remove=True)
            return (engine.tick(session) if found else engine.epoch), found

        epoch, found = engine.db.write(work)
        if epoch != engine.epoch:
            engine.forget(epoch)
        self._counts.update(found)

    def _look(self, session: Session, thread_id: str, *, remove: bool = False) -> Counter[str]:
        """What a thread has to give, removed if wanted."""
        engine = self._engine
        counts: Counter[str] = Counter()
        thread = rows.find_thread(session, engine.sealer, thread_id)
        if thread is None:
            return counts
        restorer = Restorer(engine, session, thread_id, thread.number, None)
        found = collecting.garbage(engine, session, thread, restorer, templates=True)
        bounds = rows.call_bounds(thread.number)
        chunks = session.all("chunks_of_retired", *bounds)
        if not found.any and not chunks:
            return counts
        counts["threads"] = 1
        counts["blobs"] = len(found.blobs)
        counts["shares"] = len(found.shares)
        counts["templates"] = len(found.templates)
        counts["chunks"] = len(chunks)
        counts["bytes"] = sum(row[0] for row in chunks) + _size(session, found)
        if remove:
            collecting.remove(engine, session, thread, found)
            session.run("chunks_of_retired_delete", *bounds)
        return counts

    # --- what belongs to no thread ---------------------------------------------------------------

    def rest(self, age: timedelta) -> None:
        """Contents whose threads are gone and that nobody uses, and old tombstones."""
        engine, before = self._engine, (time.time() - age.total_seconds()) * _MICROS

        def work(session: Session) -> tuple[int, Counter[str]]:
            counts: Counter[str] = Counter()
            left = _ownerless(session)
            for blob in left:
                counts["blobs"] += 1
                counts["bytes"] += _blob_size(session, blob)
                if not self._dry_run:
                    rows.delete_blob(session, blob)
            for name, checkpoint in session.all("tombstones_all"):
                if _is_older(checkpoint, before):
                    counts["tombstones"] += 1
                    counts["bytes"] += len(name) + len(checkpoint)
                    if not self._dry_run:
                        session.run("tombstone_delete", name, checkpoint)
            changed = left and not self._dry_run
            return (engine.tick(session) if changed else engine.epoch), counts

        with snapshot(engine) as session:
            idle = not session.all("tombstones_all") and not _ownerless(session)
            if self._dry_run:
                self._counts.update(work(session)[1])
        if idle or self._dry_run:
            return
        epoch, counts = engine.db.write(work)
        if epoch != engine.epoch:
            engine.forget(epoch)
        self._counts.update(counts)


def _size(session: Session, found: collecting.Garbage) -> int:
    taken = sum(_blob_size(session, blob) for blob in found.blobs)
    for template in found.templates:
        row = session.one("template", template)
        taken += 0 if row is None else len(row[1])
    return taken


def _blob_size(session: Session, blob: int) -> int:
    row = session.one("parts_size", *rows.part_bounds(blob, blob))
    return int(row[0] or 0) if row else 0


def _ownerless(session: Session) -> list[int]:
    """Contents of threads that are gone, used by none."""
    found: list[int] = []
    after = -(1 << 62)
    while (row := session.one("parts_key", after, _LAST_PART)) is not None:
        number = row[0] >> 32
        first, last = rows.part_bounds(*rows.blob_bounds(number))
        if session.one("thread_by_number", number) is None:
            blobs = [key[0] for key in session.all("blob_keys", first, last)]
            found += [blob for blob in blobs if session.one("shares_left", blob) is None]
        after = last
    return found


def _is_older(checkpoint: bytes, micros: float) -> bool:
    """Whether a checkpoint's name tells that it was made before a time; one that tells none stays."""
    try:
        made = envelope.time_of(unpack_name(checkpoint))
    except (DataCorrupt, TypeError, ValueError):
        return False
    return made is not None and made < micros
