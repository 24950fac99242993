"""Moves threads out of ``SqliteSaver``'s tables, thread by thread, each verified before it is dropped.

A thread is moved in one transaction and dropped in another. Whatever interrupts the work, a
second run goes on where the first one stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langgraph_resilient import legacy
from langgraph_resilient.codec.keys import pack_name
from langgraph_resilient.engine import Engine
from langgraph_resilient.errors import ConfigurationError, DataCorrupt, TypeNotAllowed, ValueRefused
from langgraph_resilient.listing import Reading
from langgraph_resilient.maintenance.comparing import Comparer, as_json
from langgraph_resilient.maintenance.given import engine_of
from langgraph_resilient.maintenance.inventory import old_threads
from langgraph_resilient.maintenance.reports import MigrateReport, OnProgress, Progress, Skipped
from langgraph_resilient.maintenance.scanning import snapshot
from langgraph_resilient.records import NamespaceRow, Snapshot, ThreadRow, Write
from langgraph_resilient.restoring import Restorer
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Session

if TYPE_CHECKING:
    from langgraph_resilient.saver import ResilientSaver

_REFUSALS = (DataCorrupt, ValueRefused, TypeNotAllowed)


def migrate(
    saver: ResilientSaver,
    *,
    thread_ids: Iterable[str] | None = None,
    drop: bool = False,
    progress: OnProgress | None = None,
) -> MigrateReport:
    """Move threads from ``SqliteSaver``'s tables into ours and compare every tuple.

    Each thread is all or nothing; agents go on working meanwhile. The old rows stay unless `drop`
    is given. The file does not get smaller by itself: `stats` tells its ``free_bytes``. The ledger
    is left alone: ``SqliteSaver`` knows of no tool call.

    Args:
        saver: the saver on the file that has the tables of ``SqliteSaver``.
        thread_ids: only these threads; all by default.
        drop: delete the old rows of threads that verified, and empty old tables.
        progress: is told after each thread.

    Returns:
        What was moved, and which threads were left as they are and why.

    Raises:
        ConfigurationError: the database is not a file, so that `SqliteSaver` never wrote to it.
        StorageError: the database could not store it; threads moved before are safe.
    """
    engine = engine_of(saver)
    if not engine.db.is_file:
        raise ConfigurationError(
            f"{engine.db.where} has no tables of SqliteSaver; migrate moves threads within a file"
        )
    move = _Migration(saver)
    with snapshot(engine) as session:
        known = old_threads(engine, session)
    there = set(known)
    wanted = known if thread_ids is None else list(dict.fromkeys(map(str, thread_ids)))
    for done, thread_id in enumerate(wanted):
        if progress is not None:
            progress(Progress(done, len(wanted), "moving threads"))
        if thread_id in there:
            move.thread(thread_id, drop)
        else:
            move.skip(thread_id, "it is not in the tables of SqliteSaver")
    if progress is not None:
        progress(Progress(len(wanted), len(wanted), "moving threads"))
    if drop:
        engine.db.write(lambda session: _drop_tables(engine, session))
    return move.report()


def _drop_tables(engine: Engine, session: Session) -> None:
    """Remove the old tables when both are empty."""
    if not legacy.present(engine, session):
        return
    for table in ("checkpoints", "writes"):
        if session.raw(f"SELECT 1 FROM {table} LIMIT 1"):
            return
    for table in ("checkpoints", "writes"):
        session.raw(f"DROP TABLE {table}")


@dataclass(frozen=True, slots=True)
class _Extent:
    """What a thread's old rows were when they were compared."""

    checkpoints: tuple[Any, ...]
    writes: tuple[Any, ...]

    @classmethod
    def of(cls, session: Session, thread_id: str) -> _Extent:
        (checkpoints,) = session.raw(
            "SELECT count(*), max(rowid), total(length(checkpoint) + length(metadata)) "
            "FROM checkpoints WHERE thread_id = ?",
            thread_id,
        )
        (writes,) = session.raw(
            "SELECT count(*), max(rowid), total(length(value)) FROM writes WHERE thread_id = ?",
            thread_id,
        )
        return cls(checkpoints, writes)


class _Migration:
    """One run of `migrate`."""

    def __init__(self, saver: ResilientSaver):
        self._engine = engine_of(saver)
        self._reading: Reading = saver._reader()
        self._same = Comparer().same
        self._moved = self._checkpoints = self._writes = 0
        self._verified = self._dropped = 0
        self._skipped: list[Skipped] = []

    def report(self) -> MigrateReport:
        return MigrateReport(
            threads=self._moved,
            checkpoints=self._checkpoints,
            writes=self._writes,
            verified=self._verified,
            dropped=self._dropped,
            skipped=self._skipped,
        )

    def skip(self, thread_id: str, reason: str) -> None:
        self._skipped.append(Skipped(thread_id, reason))

    def thread(self, thread_id: str, drop: bool) -> None:
        """Move one thread, compare it, and delete its old rows if that is wanted."""
        engine = self._engine
        try:
            engine.adopted.discard(thread_id)
            moved = legacy.adopt(engine, thread_id, self._reading.serde, trust=True)
            with snapshot(engine) as session:
                extent = _Extent.of(session, thread_id)
                if moved:
                    self._moved += 1
                    self._checkpoints += extent.checkpoints[0]
                    self._writes += extent.writes[0]
                try:
                    difference = self._difference(session, thread_id)
                except Exception as error:
                    raise legacy.guarded(thread_id, engine.db.where, error) from error
        except _REFUSALS as error:
            self.skip(thread_id, str(error))
            return
        if difference is not None:
            self.skip(thread_id, self._reason(moved, difference))
            return
        self._verified += 1
        if drop:
            self._drop(thread_id, extent)
        elif not moved:
            self.skip(thread_id, "it was moved before; its old rows are still there")

    def _reason(self, moved: bool, difference: str) -> str:
        if moved:
            return f"it was moved, but it does not read the same: {difference}"
        return f"it is in both kinds of tables, and they differ: {difference}"

    def _drop(self, thread_id: str, extent: _Extent) -> None:
        engine = self._engine

        def work(session: Session) -> bool:
            if _Extent.of(session, thread_id) != extent:
                return False
            if rows.find_thread(session, engine.sealer, thread_id) is None:
                return False
            legacy.delete(session, thread_id)
            return True

        if engine.db.write(work):
            self._dropped += 1
        else:
            self.skip(thread_id, "it changed while it was compared; run it again")

    # --- comparing --------------------------------------------------------------------------

    def _difference(self, session: Session, thread_id: str) -> str | None:
        """What does not read the same from our tables; None when all does."""
        engine = self._engine
        thread = rows.find_thread(session, engine.sealer, thread_id)
        if thread is None:
            return "it is not in the new tables"
        restorer = self._reading.restorer(engine, session, thread)
        old = legacy.OldTables(session, self._reading.serde)
        spaces: dict[str, NamespaceRow | None] = {}
        for found in old.snapshots(thread_id):
            ours = self._ours(session, thread, restorer, spaces, found)
            restorer.series.clear()
            where = f"checkpoint {found.checkpoint_id} in namespace {found.checkpoint_ns!r}"
            if ours is None:
                return f"{where} is not in the new tables"
            for name in self._parts(found, ours):
                return f"{where} has another {name}"
        return self._other_writes(session, thread, restorer, spaces, old)

    def _namespace(
        self,
        session: Session,
        thread: ThreadRow,
        spaces: dict[str, NamespaceRow | None],
        checkpoint_ns: str,
    ) -> NamespaceRow | None:
        if checkpoint_ns not in spaces:
            spaces[checkpoint_ns] = rows.find_namespace(
                session, self._engine.sealer, thread, checkpoint_ns
            )
        return spaces[checkpoint_ns]

    def _ours(
        self,
        session: Session,
        thread: ThreadRow,
        restorer: Restorer,
        spaces: dict[str, NamespaceRow | None],
        found: Snapshot,
    ) -> Snapshot | None:
        namespace = self._namespace(session, thread, spaces, found.checkpoint_ns)
        if namespace is None:
            return None
        row = session.one("checkpoint_by_id", pack_name(found.checkpoint_id), namespace.ns)
        if row is None:
            return None
        opened = rows.opened_checkpoint(self._engine.sealer, row, namespace.ns, thread.thread_id)
        return restorer.snapshot(opened, found.checkpoint_ns)

    def _parts(self, old: Snapshot, new: Snapshot) -> Iterator[str]:
        if old.parent_id != new.parent_id:
            yield "parent"
        for key in [*old.checkpoint, *(key for key in new.checkpoint if key not in old.checkpoint)]:
            if key == "channel_values":
                values, ours = old.checkpoint[key] or {}, new.checkpoint.get(key) or {}
                for channel in {**values, **ours}:
                    if (channel in values) != (channel in ours) or not self._same(
                        values[channel], ours[channel]
                    ):
                        yield f"value of channel {channel!r}"
            elif not self._same(old.checkpoint.get(key), new.checkpoint.get(key)):
                yield key
        if not self._same(as_json(old.metadata), as_json(new.metadata)):
            yield "metadata"
        if not self._same(_plain(old.writes), _plain(new.writes)):
            yield "list of pending writes"

    def _other_writes(
        self,
        session: Session,
        thread: ThreadRow,
        restorer: Restorer,
        spaces: dict[str, NamespaceRow | None],
        old: legacy.OldTables,
    ) -> str | None:
        """Writes of checkpoints that are not there (yet)."""
        known = set(old.spots(thread.thread_id))
        for checkpoint_ns, checkpoint_id in old.spots(thread.thread_id, "writes"):
            if (checkpoint_ns, checkpoint_id) in known:
                continue
            theirs = list(old.writes(legacy.named(thread.thread_id, checkpoint_ns, checkpoint_id)))
            namespace = self._namespace(session, thread, spaces, checkpoint_ns)
            ours = (
                [] if namespace is None else restorer.writes(namespace.ns, pack_name(checkpoint_id))
            )
            if not self._same(_plain(theirs), _plain(ours)):
                return f"the writes of the missing checkpoint {checkpoint_id} differ"
        return None


def _plain(writes: list[Write]) -> list[tuple[Any, ...]]:
    return [(w.task_path, w.task_id, w.index, w.channel, w.value) for w in writes]
