"""Packs what a thread has stored into few large frames at a high level; nothing is lost by it.

An archive is a template that holds contents, envelopes and writes of its thread whole, one behind the
other, compressed together; their rows then only say where in it they stand. Reading decompresses an
archive once instead of every content for itself.

A content in an archive has no address in the file any more: address and index would take more than
the content does. Processes that have read it know its address, and so do not store it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from langgraph_resilient import calls, modelcalls, retention
from langgraph_resilient.codec.frame import (
    ARCHIVE,
    has_references,
    is_slice,
    slice_frame,
    template_number,
)
from langgraph_resilient.engine import Engine
from langgraph_resilient.errors import DataCorrupt
from langgraph_resilient.maintenance import space
from langgraph_resilient.maintenance.given import engine_of, keep_held
from langgraph_resilient.maintenance.pruning import all_threads, told
from langgraph_resilient.maintenance.reports import CompactReport, OnProgress, Skipped
from langgraph_resilient.maintenance.scanning import snapshot
from langgraph_resilient.records import BLOB_BITS, NamespaceRow, ThreadRow
from langgraph_resilient.restoring import Restorer
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Session

if TYPE_CHECKING:
    from langgraph_resilient.saver import ResilientSaver

_ARCHIVE_BYTES = 1 << 20
"""How much one archive holds: reading any of it decompresses all of it, in a few milliseconds."""
_LONGEST = 1 << 19
"""Longer contents (pictures, documents) stay for themselves."""
_WORTH = 8192
"""A thread with fewer bytes outside of archives is left as it is, if it has an archive."""
_SMALLEST = 8
"""Shorter contents stand in their rows more cheaply than a place in an archive does."""


def compact(
    saver: ResilientSaver,
    *,
    threads: Iterable[str] | None = None,
    vacuum: bool = True,
    dry_run: bool = False,
    progress: OnProgress | None = None,
) -> CompactReport:
    """Make the file smaller without losing anything; reading gets no slower.

    Threads are compressed beside running agents and put in place in one transaction each, only
    where rows are still what was compressed. A thread that is compact already is left alone, so
    that an interrupted run goes on where it was. What compaction makes obsolete goes with it; run
    `prune` or `gc` first if old checkpoints shall go, since an archive is only made anew when a
    quarter of it is named by nothing any more.

    Args:
        saver: an open saver.
        threads: only these; all by default.
        vacuum: give free space back to the file system at the end. SQLite writes the whole file
            anew for that: it takes as much free disk as the file has, and it is left out, with the
            reason, while another process writes.
        dry_run: compress, change nothing, and tell what it would come to.
        progress: is told after each thread.

    Returns:
        What it came to, and which threads were left out because they are damaged.

    Raises:
        StorageError: the database could not be written; whole threads are done or not.
    """
    keep_held(saver)
    engine = engine_of(saver)
    engine.open()
    names = all_threads(saver) if threads is None else list(dict.fromkeys(map(str, threads)))
    before = space.file_bytes(engine)
    found, skipped = _packed(engine, told(progress, names, "compacting threads"), dry_run)
    reason = space.vacuum(engine) if vacuum and not dry_run else "it was not asked for"
    return CompactReport(
        threads=len(found),
        frames=sum(result[0] for result in found),
        frame_bytes_before=sum(result[1] for result in found),
        frame_bytes_after=sum(result[2] for result in found),
        file_bytes_before=before,
        file_bytes_after=space.file_bytes(engine),
        vacuumed=not reason,
        not_vacuumed_because=reason,
        dry_run=dry_run,
        skipped=skipped,
    )


def _packed(
    engine: Engine, thread_ids: Iterable[str], dry_run: bool
) -> tuple[list[tuple[int, int, int]], list[Skipped]]:
    """For each thread that was packed: frames, and what they took and take; and those left out."""
    found: list[tuple[int, int, int]] = []
    skipped: list[Skipped] = []
    for thread_id in thread_ids:
        try:
            result = _Compaction(engine, thread_id).run(dry_run)
        except DataCorrupt as error:
            skipped.append(Skipped(thread_id, str(error)))
            continue
        if result is not None:
            found.append(result)
    return found, skipped


@dataclass(slots=True)
class _Item:
    """A row's frame: where it is, what it holds, and where that will stand.

    Attributes:
        table: ``blob``, ``checkpoint``, ``writes``, ``call`` or ``journal``.
        key: what finds the row again.
        place: where its seal belongs.
        stored: the sealed frame as it was read.
        frame: the same, opened.
        raw: its content.
        named: whether that names contents.
        renewed: the new frame, once it is known.
    """

    table: str
    key: tuple[object, ...]
    place: bytes
    stored: bytes
    frame: bytes
    raw: bytes
    named: bool
    renewed: bytes = b""


class _Compaction:
    """One thread's."""

    def __init__(self, engine: Engine, thread_id: str):
        self._engine = engine
        self._thread_id = thread_id
        self._archives: list[tuple[int, bytes]] = []
        """Number relative to the thread's first, and frame."""

    def run(self, dry_run: bool) -> tuple[int, int, int] | None:
        """Frames packed, and what they took before and take now; None when it is compact."""
        engine = self._engine
        with snapshot(engine) as session:
            thread = rows.find_thread(session, engine.sealer, self._thread_id)
            if thread is None:
                return None
            items = list(self._items(session, thread))
            first, last = rows.blob_bounds(thread.number)
            templates = {row[0]: len(row[2]) for row in session.all("templates_of", first, last)}
            if not self._pays(session, thread, items):
                return None
        number = max((template - first for template in templates), default=0) + 1
        chosen = self._pack(items, number)
        was = sum(len(item.stored) for item in items) + sum(templates.values())
        if not chosen:
            return None
        kept = {first + n for n in self._needed(items) if n is not None}
        size = sum(len(item.renewed or item.frame) + engine.sealer.overhead for item in items)
        size += sum(len(frame) + engine.sealer.overhead for _, frame in self._archives)
        size += sum(taken for template, taken in templates.items() if template in kept)
        if size >= was:
            return None  # a thread of noise, say
        if not dry_run:
            try:
                epoch = engine.db.write(lambda session: self._store(session, thread, chosen))
            except BaseException:
                for archive, _ in self._archives:  # was read in the transaction; the number is free
                    engine.templates.discard(first + archive)
                raise
            if epoch is None:
                return None
            engine.forget(epoch)
        return len(chosen), was, size

    # --- reading ----------------------------------------------------------------------------------

    def _items(self, session: Session, thread: ThreadRow) -> Iterator[_Item]:
        """Every frame of the thread that may go into an archive, in the order it will stand there."""
        engine, sealer = self._engine, self._engine.sealer
        restorer = Restorer(engine, session, self._thread_id, thread.number, None)

        def item(table: str, key: tuple[object, ...], place: bytes, stored: bytes) -> _Item:
            frame = sealer.open(place, stored)
            raw = restorer.content(frame)
            return _Item(table, key, place, stored, frame, raw, has_references(frame))

        for blob, _, stored in rows.read_blobs(session, *rows.blob_bounds(thread.number)):
            yield item("blob", (blob,), rows.blob_place(blob), stored)
        for space_ in retention.namespaces_of(engine, session, thread):
            ns = space_.ns
            for seq, id, parent, stored in reversed(
                session.all("checkpoints_page", ns, 1 << 62, -1)
            ):
                place = rows.checkpoint_place(ns, id, parent)
                yield item("checkpoint", (seq, ns, id, parent), place, stored)
            for checkpoint, task, stored in session.all("writes_all", ns):
                place = rows.writes_place(ns, checkpoint, task)
                yield item("writes", (ns, checkpoint, task), place, stored)
        bounds = rows.call_bounds(thread.number)
        for call, key, state, version, stored in session.all("calls_in", *bounds):
            place = calls.call_place(thread.number, key, state, version)
            yield item("call", (call, version), place, stored)
        for call, *columns, stored in session.all("journal_in", *bounds):
            place = modelcalls.journal_place(call, *columns)
            yield item("journal", (call, columns[0]), place, stored)

    def _pays(self, session: Session, thread: ThreadRow, items: list[_Item]) -> bool:
        """Whether enough stands outside of archives, or too little of them is named any more."""
        outside = sum(len(item.frame) for item in items if _fits(item) and not is_slice(item.frame))
        inside = sum(len(item.raw) for item in items if is_slice(item.frame))
        first, last = rows.blob_bounds(thread.number)
        held = sum(
            len(self._engine.template(session, number).content)
            for number, kind in session.all("template_kinds", first, last)
            if kind == ARCHIVE
        )
        return outside > (_WORTH if held else 0) or inside * 4 < held * 3

    # --- packing ----------------------------------------------------------------------------------

    def _pack(self, items: list[_Item], number: int) -> list[_Item]:
        """Give every frame that fits its place in an archive; those that have got one."""
        chosen = [item for item in items if _fits(item)]
        waiting: list[_Item] = []
        size = 0
        for item in chosen:
            if size + len(item.raw) > _ARCHIVE_BYTES and waiting:
                self._archive(number + len(self._archives), waiting)
                waiting, size = [], 0
            waiting.append(item)
            size += len(item.raw)
        if waiting:
            self._archive(number + len(self._archives), waiting)
        return chosen

    def _archive(self, number: int, items: list[_Item]) -> None:
        places: dict[bytes, int] = {}
        content = bytearray()
        for item in items:
            start = places.get(item.raw)
            if start is None:
                start = places[item.raw] = len(content)
                content += item.raw
            item.renewed = slice_frame(number, start, len(item.raw), references=item.named)
        self._archives.append((number, self._engine.frames.encode_archive(bytes(content))))

    def _needed(self, items: list[_Item]) -> set[int | None]:
        return {template_number(item.frame) for item in items if not item.renewed}

    # --- storing, inside the writer's transaction ---------------------------------------------------

    def _store(self, session: Session, thread: ThreadRow, items: list[_Item]) -> int | None:
        """Put the archives in place; None when somebody else has worked on the thread's archives."""
        engine, sealer = self._engine, self._engine.sealer
        first, last = rows.blob_bounds(thread.number)
        if session.one("thread_by_number", thread.number) is None:
            return None
        taken = [row[0] for row in session.all("template_kinds", first, last)]
        if taken and taken[-1] - first >= self._archives[0][0]:
            return None  # a writer made a template meanwhile; the next run will do
        for number, frame in self._archives:
            stored = sealer.seal(rows.template_place(first + number), frame)
            session.run("template_insert", first + number, ARCHIVE, stored)
        for item in items:
            self._replace(session, item, sealer.seal(item.place, item.renewed))
        for namespace in retention.namespaces_of(engine, session, thread):
            self._tally(session, namespace)
        self._drop_templates(session, thread, taken)
        return engine.tick(session)

    def _replace(self, session: Session, item: _Item, sealed: bytes) -> None:
        """One row gets its new frame, if it still has the old one."""
        if item.table == "blob":
            (blob,) = item.key
            found = rows.read_blobs(session, blob, blob)  # type: ignore[arg-type]
            if [row[2] for row in found] == [item.stored]:
                rows.delete_blob(session, blob)  # type: ignore[arg-type]
                session.many("blob_insert", rows.parts_of(blob, None, sealed))  # type: ignore[arg-type]
        elif item.table == "checkpoint":
            row = session.one("checkpoint_by_seq", *item.key[:2])
            if row is not None and row[1:] == (*item.key[2:], item.stored):
                session.run("checkpoint_seal", sealed, item.key[0])
        elif item.table == "writes":
            if session.one("writes_one", *item.key) == (item.stored,):
                session.run("writes_replace", sealed, *item.key)
        elif item.table == "call":
            found_calls = session.all("calls_in", item.key[0], item.key[0])
            if [row[4] for row in found_calls] == [item.stored]:
                session.run("call_seal", sealed, item.key[0])
        else:
            found_calls = session.all("journal_in", item.key[0], item.key[0])
            if [row[6] for row in found_calls] == [item.stored]:
                session.run("journal_seal", sealed, item.key[0])

    def _tally(self, session: Session, old: NamespaceRow) -> None:
        engine = self._engine
        if not engine.protected:
            return
        tally, _ = rows.tally_of(session, old.ns, engine.key)
        new = NamespaceRow(
            ns=old.ns,
            thread=old.thread,
            checkpoint_ns=old.checkpoint_ns,
            head=old.head,
            checkpoints=old.checkpoints,
            tally=tally,
        )
        seal = rows.sealed_namespace(engine.sealer, new)
        session.run("namespace_set", new.head, new.checkpoints, new.tally, seal, new.ns)

    def _drop_templates(self, session: Session, thread: ThreadRow, old: list[int]) -> None:
        """Templates that no row of the thread is compressed against any more."""
        first = thread.number << BLOB_BITS
        needed = {template_number(item.frame) for item in self._items(session, thread)}
        for template in old:
            if template - first not in needed:
                session.run("templates_delete", template, template)
                self._engine.templates.discard(template)


def _fits(item: _Item) -> bool:
    return _SMALLEST <= len(item.raw) <= _LONGEST
