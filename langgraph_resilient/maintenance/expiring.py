"""Deletes threads that nobody has gone on with for long."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from langgraph_resilient import retention
from langgraph_resilient.errors import ConfigurationError, DataCorrupt
from langgraph_resilient.maintenance.pruning import all_threads, told, written_at
from langgraph_resilient.maintenance.reports import ExpireReport, OnProgress, Skipped
from langgraph_resilient.maintenance.scanning import snapshot
from langgraph_resilient.records import CallState, CheckpointRow, NamespaceRow, ThreadRow
from langgraph_resilient.restoring import Restorer
from langgraph_resilient.store import rows
from langgraph_resilient.store.sqlite import Session

if TYPE_CHECKING:
    from langgraph_resilient.saver import ResilientSaver


def expire(
    saver: ResilientSaver,
    *,
    older_than: timedelta,
    threads: Iterable[str] | None = None,
    force: bool = False,
    dry_run: bool = False,
    progress: OnProgress | None = None,
) -> ExpireReport:
    """Delete whole threads whose newest checkpoint is older than an age.

    One transaction a thread, in which its age is looked at, too: a thread that somebody goes on with
    is not deleted. Interrupted, it can be run again.

    Args:
        saver: an open saver.
        older_than: the age.
        threads: only these; all by default.
        force: also threads with a tool call whose outcome nobody knows.
        dry_run: delete nothing, only tell what would go.
        progress: is told after each thread.

    Returns:
        The threads that went, and those left out: damaged, or with an unknown outcome.

    Raises:
        ConfigurationError: the age is negative.
        StorageError: the database could not be written; whole threads are done or not.
    """
    if older_than < timedelta(0):
        raise ConfigurationError(f"expire: older_than={older_than} lies in the future")
    saver._keep()
    work = _Expire(saver, time.time() - older_than.total_seconds(), force)
    names = all_threads(saver) if threads is None else list(dict.fromkeys(map(str, threads)))
    gone: list[str] = []
    skipped: list[Skipped] = []
    for thread_id in told(progress, names, "looking for old threads"):
        try:
            reason = work.look(thread_id)
            if reason is None:
                continue
            if reason:
                skipped.append(Skipped(thread_id, reason))
            elif dry_run or work.delete(thread_id):
                gone.append(thread_id)
        except DataCorrupt as error:
            skipped.append(Skipped(thread_id, str(error)))
    return ExpireReport(threads=gone, dry_run=dry_run, skipped=skipped)


class _Expire:
    """One run of `expire`."""

    def __init__(self, saver: ResilientSaver, before: float, force: bool):
        self._saver = saver
        self._engine = saver._engine
        self._reading = saver._reader()
        self._before = before
        self._force = force

    def look(self, thread_id: str) -> str | None:
        """None when a thread stays, an empty text when it goes, else why it is left out."""
        engine = self._engine
        with snapshot(engine) as session:
            thread = rows.find_thread(session, engine.sealer, thread_id)
            if thread is None:
                return None
            return self._reason(session, thread, self._reading.restorer(engine, session, thread))

    def delete(self, thread_id: str) -> bool:
        """Delete a thread unless somebody has gone on with it."""
        verdict: list[str | None] = []

        def also(session: Session, thread: ThreadRow, restorer: Restorer) -> int:
            verdict[:] = [self._reason(session, thread, restorer)]
            return 0

        def keep(
            namespace: NamespaceRow, found: Sequence[CheckpointRow], restorer: Restorer
        ) -> set[int]:
            return set() if verdict == [""] else {row.seq for row in found}

        return retention.reduce_thread(self._engine, self._reading, thread_id, keep, also) > 0

    def _reason(self, session: Session, thread: ThreadRow, restorer: Restorer) -> str | None:
        engine, newest = self._engine, []
        for namespace in retention.namespaces_of(engine, session, thread):
            head = rows.head_of(session, engine.sealer, namespace, thread.thread_id)
            if head is not None:
                newest.append(written_at(head, restorer))
        if not newest or any(at is None or at >= self._before for at in newest):
            return None  # what does not tell its time is not old
        book = self._saver.ledger.book
        for home in () if self._force else (thread.number, 0):
            for record in book.open_records(session, *rows.call_bounds(home)):
                if record.home == thread.number and (
                    book.state_of(session, record) is CallState.UNKNOWN
                ):
                    return (
                        f"nobody knows whether its call to {record.name.tool!r} took effect; decide "
                        f"with `langgraph-resilient ledger resolve {record.key.hex()}`, or use force"
                    )
        return ""
