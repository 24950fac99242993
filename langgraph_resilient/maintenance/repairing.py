"""Falls back to the newest intact checkpoint of a damaged thread, on request only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from langgraph_resilient import retention
from langgraph_resilient.engine import Engine
from langgraph_resilient.errors import DataCorrupt
from langgraph_resilient.history import Walk
from langgraph_resilient.listing import Reading
from langgraph_resilient.maintenance.given import engine_of, keep_held
from langgraph_resilient.maintenance.reports import Lost, RepairReport
from langgraph_resilient.maintenance.scanning import snapshot
from langgraph_resilient.records import NamespaceRow, ThreadRow
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Row, Session

if TYPE_CHECKING:
    from langgraph_resilient.saver import ResilientSaver


def repair(saver: ResilientSaver, thread_id: str, *, dry_run: bool = False) -> RepairReport:
    """Make the newest checkpoint that reads whole the newest one of its namespace again.

    What is newer and damaged is deleted, with its pending writes, in one transaction; where the newest
    is intact nothing is done. The ledger stays, so a tool call that had ended after the checkpoint
    that is left does not run twice. A namespace without any intact checkpoint stays as it is. Older
    damage stays, too: it hurts nobody who does not read it.

    Args:
        saver: an open saver.
        thread_id: the thread.
        dry_run: change nothing, only tell what would be lost.

    Returns:
        What is lost, and in which namespaces nothing is intact.

    Raises:
        DataCorrupt: the thread's own row, or that of a namespace, is damaged.
        StorageError: the database could not be written; nothing was changed.
    """
    keep_held(saver, thread_id)
    engine = engine_of(saver)
    engine.open()
    engine.cache.clear()  # what this process remembers says nothing of the file
    engine.templates.clear()
    work = _Repair(engine, saver._reader(), thread_id)
    if dry_run:
        with snapshot(engine) as session:
            work.run(session, change=False)
    else:
        epoch = engine.db.write(lambda session: work.run(session, change=True))
        if epoch != engine.epoch:
            engine.forget(epoch)
    return RepairReport(lost=work.lost, hopeless=work.hopeless, dry_run=dry_run)


class _Repair:
    """One run of `repair`."""

    def __init__(self, engine: Engine, reading: Reading, thread_id: str):
        self._engine = engine
        self._reading = reading
        self._thread_id = thread_id
        self.lost: list[Lost] = []
        self.hopeless: list[str] = []

    def run(self, session: Session, *, change: bool) -> int:
        """Look at every namespace, and change it if wanted; the epoch."""
        engine = self._engine
        self.lost, self.hopeless = [], []
        thread = rows.find_thread(session, engine.sealer, self._thread_id)
        if thread is None:
            return engine.epoch
        changed = False
        for namespace in retention.namespaces_of(engine, session, thread):
            found = session.all("checkpoints_page", namespace.ns, 1 << 62, -1)
            damaged: list[Row] = []
            reasons: list[Lost] = []
            for row in found:
                problem = self._problem(session, thread, namespace, row)
                if problem is None:
                    break
                damaged.append(row)
                reasons.append(Lost(namespace.checkpoint_ns, rows.readable(row[1]), problem))
            else:
                if found:
                    self.hopeless.append(namespace.checkpoint_ns)
                continue
            head = found[len(damaged)][0]
            self.lost += reasons
            if not damaged and head == namespace.head:
                continue
            if not damaged:
                gone = "the newest checkpoint on record is missing"
                self.lost.append(Lost(namespace.checkpoint_ns, "", gone))
            if change:
                self._cut(session, namespace, damaged, head)
                changed = True
        return engine.tick(session) if changed else engine.epoch

    def _problem(
        self, session: Session, thread: ThreadRow, namespace: NamespaceRow, row: Row
    ) -> str | None:
        """Why a checkpoint cannot be read whole, or None."""
        engine = self._engine
        try:
            opened = rows.opened_checkpoint(engine.sealer, row, namespace.ns, self._thread_id)
            restorer = self._reading.restorer(engine, session, thread)
            found = restorer.snapshot(opened, namespace.checkpoint_ns)
            versions = found.checkpoint.get("channel_versions") or {}
            channels = sorted(set(versions) - set(found.checkpoint.get("channel_values", {})))
            walk = Walk(engine, session, thread, namespace, restorer, channels)
            walk.run(opened)
            for channel in channels:
                walk.restored(channel)
        except DataCorrupt as error:
            return str(error)
        return None

    def _cut(
        self, session: Session, namespace: NamespaceRow, damaged: list[Row], head: int
    ) -> None:
        engine = self._engine
        for row in damaged:
            session.run("checkpoint_delete", row[0])
            session.run("writes_delete_of", namespace.ns, row[1])
        if damaged:
            rows.count_snapshots(session, engine.sealer, namespace.ns, removed=len(damaged))
        tally, count = rows.tally_of(session, namespace.ns, engine.key)
        kept = tally if engine.protected else b""
        new = replace(namespace, head=head, checkpoints=count, tally=kept)
        seal = rows.sealed_namespace(engine.sealer, new)
        session.run("namespace_set", new.head, new.checkpoints, new.tally, seal, new.ns)
