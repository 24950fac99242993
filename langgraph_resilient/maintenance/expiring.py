"""Deletes threads whose time is over: their own time to live, or an age given at the call."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME

from langgraph_resilient import legacy, modelcalls, retention
from langgraph_resilient.errors import ConfigurationError, DataCorrupt
from langgraph_resilient.maintenance.given import engine_of, keep_held
from langgraph_resilient.maintenance.pruning import all_threads, told, written_at
from langgraph_resilient.maintenance.reports import ExpireReport, OnProgress, Skipped
from langgraph_resilient.maintenance.scanning import snapshot
from langgraph_resilient.records import CallRecord, CallState, CheckpointRow, ThreadRow
from langgraph_resilient.restoring import Restorer, unpacked
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Session

if TYPE_CHECKING:
    from langgraph_resilient.saver import ResilientSaver

_UNANSWERED = frozenset((INTERRUPT, RESUME, ERROR))


def expire(
    saver: ResilientSaver,
    *,
    older_than: timedelta | None = None,
    threads: Iterable[str] | None = None,
    force: bool = False,
    dry_run: bool = False,
    progress: OnProgress | None = None,
) -> ExpireReport:
    """Delete whole threads whose time to live is over.

    A thread's time counts from its newest checkpoint, or from the model call or tool call under way
    that began after it, or from when the time was set. One transaction a thread, in which all that is
    looked at once more: a thread that somebody goes on with is not deleted. Interrupted, it can be
    run again.

    Left out unless forced: threads that wait for the answer to an ``interrupt()``, and those with a
    tool call that runs or whose outcome nobody knows.

    Args:
        saver: an open saver.
        older_than: how long threads live that have no time to live of their own; for ever by
            default.
        threads: only these; all by default.
        force: also those that wait or have such a tool call.
        dry_run: delete nothing, only tell what would go.
        progress: is told after each thread.

    Returns:
        The threads that went, and those left out: damaged, waiting, or with such a tool call.

    Raises:
        ConfigurationError: the age is negative.
        StorageError: the database could not be written; whole threads are done or not.
    """
    if older_than is not None and older_than < timedelta(0):
        raise ConfigurationError(f"expire: older_than={older_than} lies in the future")
    keep_held(saver)
    work = _Expire(saver, older_than, force)
    names = all_threads(saver) if threads is None else list(dict.fromkeys(map(str, threads)))
    for thread_id in told(progress, names, "looking for old threads"):
        try:
            work.thread(thread_id, dry_run)
        except DataCorrupt as error:
            work.skipped.append(Skipped(thread_id, str(error)))
    return ExpireReport(threads=work.gone, dry_run=dry_run, skipped=work.skipped)


def expires_at(saver: ResilientSaver, thread_id: str) -> datetime | None:
    """When a thread's own time to live is over, as far as its checkpoints tell; None for never."""
    engine = engine_of(saver)
    with snapshot(engine) as session:
        thread = rows.find_thread(session, engine.sealer, thread_id)
        if thread is None or thread.lifetime is None:
            return None
        restorer = saver._reader().restorer(engine, session, thread)
        found = [written_at(head, restorer) for head in _heads(saver, session, thread)]
    written = max((at for at in found if at is not None), default=None)
    return datetime.fromtimestamp(thread.lifetime.end(written), timezone.utc)


def _heads(saver: ResilientSaver, session: Session, thread: ThreadRow) -> Iterator[CheckpointRow]:
    """The newest checkpoint of each namespace."""
    engine = engine_of(saver)
    for namespace in retention.namespaces_of(engine, session, thread):
        head = rows.head_of(session, engine.sealer, namespace, thread.thread_id)
        if head is not None:
            yield head


class _Expire:
    """One run of `expire`."""

    def __init__(self, saver: ResilientSaver, older_than: timedelta | None, force: bool):
        self._saver = saver
        self._engine = engine_of(saver)
        self._reading = saver._reader()
        self._now = time.time()
        self._age = None if older_than is None else older_than.total_seconds()
        self._force = force
        self.gone: list[str] = []
        self.skipped: list[Skipped] = []

    def thread(self, thread_id: str, dry_run: bool) -> None:
        """Look at a thread, and delete it if its time is over and nothing speaks for it."""
        reason = self.look(thread_id)
        if reason:
            self.skipped.append(Skipped(thread_id, reason))
        elif reason == "" and (dry_run or self.delete(thread_id)):
            self.gone.append(thread_id)

    def look(self, thread_id: str) -> str | None:
        """None when a thread stays, an empty text when it goes, else why it is left out."""
        with snapshot(self._engine) as session:
            thread = rows.find_thread(session, self._engine.sealer, thread_id)
            return None if thread is None else self._reason(session, thread)

    def delete(self, thread_id: str) -> bool:
        """Delete a thread unless somebody has gone on with it."""
        engine = self._engine

        def work(session: Session) -> tuple[int, bool]:
            thread = rows.find_thread(session, engine.sealer, thread_id)
            if thread is None or self._reason(session, thread) != "":
                return engine.epoch, False
            if legacy.present(engine, session):
                legacy.delete(session, thread_id)  # else they would bring it back
            return retention.delete_rows(engine, session, thread), True

        epoch, gone = engine.db.write(work)
        if epoch != engine.epoch:
            engine.forget(epoch)
        return bool(gone)

    def _reason(self, session: Session, thread: ThreadRow) -> str | None:
        restorer = self._reading.restorer(self._engine, session, thread)
        heads = list(_heads(self._saver, session, thread))
        written = [written_at(head, restorer) for head in heads]
        if None in written:
            return None  # what does not tell its time is not old
        last = max((at for at in written if at is not None), default=None)
        if not self._is_over(thread, last):
            return None
        open_calls = list(self._open_calls(session, thread))
        begun = [call.started_at for call in open_calls]
        begun += self._model_calls(session, thread, restorer)
        if begun and not self._is_over(thread, max([*begun, *([] if last is None else [last])])):
            return None
        return "" if self._force else self._needed(session, thread, restorer, open_calls)

    def _is_over(self, thread: ThreadRow, last: float | None) -> bool:
        if thread.lifetime is not None:
            return thread.lifetime.end(last) <= self._now
        return self._age is not None and last is not None and last < self._now - self._age

    # --- what is still under way ----------------------------------------------------------------

    def _open_calls(self, session: Session, thread: ThreadRow) -> Iterator[CallRecord]:
        book = self._saver.ledger.book
        for home in (thread.number, 0):
            for record in book.open_records(session, *rows.call_bounds(home)):
                if record.home == thread.number:
                    yield record

    def _model_calls(
        self, session: Session, thread: ThreadRow, restorer: Restorer
    ) -> Iterator[float]:
        """When those began that are not retired."""
        for row in session.all("journal_open", *rows.call_bounds(thread.number)):
            frame = modelcalls.opened_frame(self._engine.sealer, row, thread.thread_id)
            record = modelcalls.model_call_from(restorer.content(frame), row, thread.thread_id)
            yield record.started_at

    def _needed(
        self, session: Session, thread: ThreadRow, restorer: Restorer, open_calls: list[CallRecord]
    ) -> str:
        """Why a thread is not deleted though its time is over; empty when nothing speaks for it."""
        for record in open_calls:
            state = self._saver.ledger.book.state_of(session, record)
            if state is CallState.UNKNOWN:
                return (
                    f"nobody knows whether its call to {record.name.tool!r} took effect; decide "
                    f"with `langgraph-resilient ledger resolve {record.key.hex()}`, or use force"
                )
            if state is CallState.STARTED:
                return f"its call to {record.name.tool!r} is running; wait for it, or use force"
        if self._waits(session, thread, restorer):
            return "it waits for the answer to an interrupt; answer it, or use force"
        return ""

    def _waits(self, session: Session, thread: ThreadRow, restorer: Restorer) -> bool:
        """Whether a task of the root graph has stopped with an interrupt and has not gone on since.

        Subgraphs need no look: their interrupts are written for the task that runs them, too.
        """
        engine = self._engine
        namespace = rows.find_namespace(session, engine.sealer, thread, "")
        if namespace is None:
            return False
        head = rows.head_of(session, engine.sealer, namespace, thread.thread_id)
        if head is None:
            return False
        for row in rows.writes_of(session, engine.sealer, head.ns, head.id, thread.thread_id):
            channels = set(unpacked(restorer.content(row.frame))[2])
            if INTERRUPT in channels and channels <= _UNANSWERED:
                return True
        return False
