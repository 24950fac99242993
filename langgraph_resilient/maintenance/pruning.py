"""Drops old checkpoints, a transaction a thread; what is waiting, unknown or rebuilt from keeps its
ground.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from langgraph_resilient import calls, listing, modelcalls, retention
from langgraph_resilient.codec import envelope
from langgraph_resilient.errors import ConfigurationError, DataCorrupt
from langgraph_resilient.maintenance.given import engine_of, keep_held
from langgraph_resilient.maintenance.reports import OnProgress, Progress, PruneReport, Skipped
from langgraph_resilient.maintenance.scanning import snapshot
from langgraph_resilient.records import CallState, CheckpointRow, NamespaceRow, ThreadRow
from langgraph_resilient.restoring import Restorer
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Row, Session

if TYPE_CHECKING:
    from langgraph_resilient.saver import ResilientSaver

_CLOSED = 4
"""Model calls with a state from here on are not given back to any run."""


def prune(
    saver: ResilientSaver,
    *,
    keep: int | None = None,
    older_than: timedelta | None = None,
    threads: Iterable[str] | None = None,
    dry_run: bool = False,
    journal: bool = False,
    ledger: bool = False,
    progress: OnProgress | None = None,
) -> PruneReport:
    """Drop old checkpoints, with the contents that only they used.

    One transaction a thread, beside running agents: interrupted, it has done some threads whole and
    the others not at all, and running it again goes on. In each namespace the newest checkpoint
    stays, with its pending writes, so a waiting interrupt stays answerable. While a tool call has
    not come to an end (unknown outcome, waiting, running), all since the checkpoint before it began
    stays. What a kept delta channel is rebuilt from is kept with it.

    Args:
        saver: an open saver.
        keep: how many of the newest checkpoints of each namespace stay; 1 when neither this nor
            `older_than` is given.
        older_than: only checkpoints of this age go; with `keep`, those go that are both older and
            not among the newest. A checkpoint that does not tell its time stays.
        threads: only these; all by default. One that is not there is nothing to do.
        dry_run: change nothing, only tell what would go.
        journal: also remove model calls that are retired and ended before the oldest checkpoint
            that is left. They are there for audits only.
        ledger: also remove tool calls that ended before it. They keep a finished call from running
            twice in time travel, so they stay unless you say so.
        progress: is told after each thread.

    Returns:
        What went, and which threads were left out because they are damaged.

    Raises:
        ConfigurationError: `keep` is less than 1, or the age is negative.
        StorageError: the database could not be written; whole threads are done or not.
    """
    _check(keep, older_than)
    keep_held(saver)
    work = _Prune(saver, keep, older_than, journal, ledger)
    names = all_threads(saver) if threads is None else list(dict.fromkeys(map(str, threads)))
    for thread_id in told(progress, names, "pruning threads"):
        try:
            work.look(thread_id) if dry_run else work.run(thread_id)
        except DataCorrupt as error:
            work.skipped.append(Skipped(thread_id, str(error)))
    return work.report(dry_run)


def _check(keep: int | None, older_than: timedelta | None) -> None:
    if keep is not None and keep < 1:
        raise ConfigurationError(f"prune: keep={keep}; keep at least 1, or delete the thread")
    if older_than is not None and older_than < timedelta(0):
        raise ConfigurationError(f"prune: older_than={older_than} lies in the future")


def told(progress: OnProgress | None, names: Sequence[str], what: str) -> Iterator[str]:
    """The threads one after the other, with word of each."""
    for done, name in enumerate(names):
        if progress is not None:
            progress(Progress(done, len(names), what))
        yield name
    if progress is not None:
        progress(Progress(len(names), len(names), what))


def all_threads(saver: ResilientSaver) -> list[str]:
    """The names of all threads in our own tables."""
    with engine_of(saver).reading() as session:
        return [row[1] for row in session.all("threads_all")]


def written_at(row: CheckpointRow, restorer: Restorer) -> float | None:
    """When a checkpoint was made, in seconds since 1970; None when it does not tell."""
    return seconds_of(envelope.unpack_time(restorer.envelope(row)[2], rows.readable(row.id)))


def seconds_of(stamp: object) -> float | None:
    """A checkpoint's time stamp in seconds since 1970; None when it is none."""
    try:
        found = datetime.fromisoformat(stamp)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()


@dataclass(slots=True)
class _Gone:
    """What goes, or would go."""

    threads: int = 0
    checkpoints: int = 0
    model_calls: int = 0
    calls: int = 0


class _Prune:
    """One run of `prune`."""

    def __init__(
        self,
        saver: ResilientSaver,
        keep: int | None,
        older_than: timedelta | None,
        journal: bool,
        ledger: bool,
    ):
        self._saver = saver
        self._engine = engine_of(saver)
        self._reading = saver._reader()
        self._keep = keep
        self._before = None if older_than is None else time.time() - older_than.total_seconds()
        self._journal = journal
        self._ledger = ledger
        self._gone = _Gone()
        self.skipped: list[Skipped] = []

    def report(self, dry_run: bool) -> PruneReport:
        gone = self._gone
        return PruneReport(
            threads=gone.threads,
            checkpoints=gone.checkpoints,
            model_calls=gone.model_calls,
            calls=gone.calls,
            dry_run=dry_run,
            skipped=self.skipped,
        )

    # --- one thread -----------------------------------------------------------------------------

    def run(self, thread_id: str) -> None:
        """Prune a thread, in one transaction."""
        listing.adopt(self._engine, thread_id, self._reading.serde)
        removed: list[tuple[int, int]] = []

        def also(session: Session, thread: ThreadRow, restorer: Restorer) -> int:
            asked, made = self._rows(session, thread, restorer)
            for row in asked:
                session.run("journal_delete", row[0], row[0])
            for row in made:
                session.run("calls_delete", row[0], row[0])
            removed[:] = [(len(asked), len(made))]
            return len(asked) + len(made)

        keep = self._kept
        count = retention.reduce_thread(self._engine, self._reading, thread_id, keep, also)
        self._note(count, *(removed[0] if removed else (0, 0)))

    def look(self, thread_id: str) -> None:
        """Count what `run` would remove."""
        engine = self._engine
        with snapshot(engine) as session:
            thread = rows.find_thread(session, engine.sealer, thread_id)
            if thread is None:
                return
            restorer = self._reading.restorer(engine, session, thread)
            count = 0
            for namespace in retention.namespaces_of(engine, session, thread):
                found = retention.checkpoints_of(engine, session, namespace, thread_id)
                count += len(found) - len(self._kept(namespace, found, restorer))
            asked, made = self._rows(session, thread, restorer)
        self._note(count, len(asked), len(made))

    def _note(self, checkpoints: int, asked: int, made: int) -> None:
        self._gone.threads += bool(checkpoints or asked or made)
        self._gone.checkpoints += checkpoints
        self._gone.model_calls += asked
        self._gone.calls += made

    # --- what stays -----------------------------------------------------------------------------

    def _kept(
        self, namespace: NamespaceRow, found: Sequence[CheckpointRow], restorer: Restorer
    ) -> set[int]:
        count = 1 if self._keep is None else self._keep
        if self._before is None:
            kept = {row.seq for row in found[-count:]}
        else:
            newest = found[-count:]
            kept = {row.seq for row in newest}
            for row in found[: len(found) - len(newest)]:
                at = written_at(row, restorer)
                if at is None or at >= self._before:
                    kept.add(row.seq)
        if found and len(kept) < len(found):
            kept |= self._ground(namespace, found, restorer)
        return kept | {namespace.head} if found else kept

    def _ground(
        self, namespace: NamespaceRow, found: Sequence[CheckpointRow], restorer: Restorer
    ) -> set[int]:
        """What a tool call that has not come to an end may still need: all since just before it."""
        begun = self._open_since(restorer)
        if begun is None:
            return set()
        kept: set[int] = set()
        for row in reversed(found):
            kept.add(row.seq)
            at = written_at(row, restorer)
            if at is not None and at < begun:
                break
        return kept

    def _open_since(self, restorer: Restorer) -> float | None:
        """When the first open tool call of the thread began."""
        session, number = restorer.session, restorer.thread
        began = [
            record.first_at
            for home in (number, 0)
            for record in self._saver.ledger.book.open_records(session, *rows.call_bounds(home))
            if record.home == number
        ]
        return min(began, default=None)

    # --- journal and ledger ---------------------------------------------------------------------

    def _rows(
        self, session: Session, thread: ThreadRow, restorer: Restorer
    ) -> tuple[list[Row], list[Row]]:
        """The rows of model calls and tool calls that go."""
        if not self._journal and not self._ledger:
            return [], []
        oldest = self._oldest_kept(session, thread, restorer)
        if oldest is None:
            return [], []
        where = (session, thread, restorer, oldest)
        asked = self._asked(*where) if self._journal else []
        return asked, self._made(*where) if self._ledger else []

    def _oldest_kept(self, session: Session, thread: ThreadRow, restorer: Restorer) -> float | None:
        """The time of the oldest checkpoint that stays; None when one does not tell."""
        oldest: list[float] = []
        for namespace in retention.namespaces_of(self._engine, session, thread):
            found = retention.checkpoints_of(self._engine, session, namespace, thread.thread_id)
            kept = self._kept(namespace, found, restorer)
            for row in found:
                if row.seq in kept:
                    at = written_at(row, restorer)
                    if at is None:
                        return None
                    oldest.append(at)
        return min(oldest, default=None)

    def _asked(
        self, session: Session, thread: ThreadRow, restorer: Restorer, oldest: float
    ) -> list[Row]:
        found = session.all("journal_in", *rows.call_bounds(thread.number))
        gone = []
        for row in found[:-1]:  # the last one's number must not be given out again
            frame = modelcalls.opened_frame(self._engine.sealer, row, thread.thread_id)
            record = modelcalls.model_call_from(restorer.content(frame), row, thread.thread_id)
            if row[1] >= _CLOSED and (record.ended_at or record.started_at) < oldest:
                gone.append(row)
        return gone

    def _made(
        self, session: Session, thread: ThreadRow, restorer: Restorer, oldest: float
    ) -> list[Row]:
        gone = []
        for row in session.all("calls_in", *rows.call_bounds(thread.number)):
            frame = calls.opened_frame(self._engine.sealer, row, thread.thread_id)
            record = calls.call_from(restorer.content(frame), row, thread.thread_id)
            ended = record.state in (CallState.SUCCEEDED, CallState.FAILED)
            if ended and record.ended_at is not None and record.ended_at < oldest:
                gone.append(row)
        return gone
