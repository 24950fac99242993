"""What there is: threads and sizes. Reads numbers and times, no user's values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from langgraph_resilient import legacy
from langgraph_resilient.codec import envelope
from langgraph_resilient.codec.frame import content_size
from langgraph_resilient.engine import Engine
from langgraph_resilient.errors import DataCorrupt
from langgraph_resilient.maintenance.given import engine_of
from langgraph_resilient.maintenance.pruning import seconds_of
from langgraph_resilient.maintenance.reports import Stats, ThreadInfo
from langgraph_resilient.maintenance.scanning import contents, snapshot
from langgraph_resilient.records import (
    CallState,
    Lifetime,
    ModelCallState,
    SnapshotCounts,
    ThreadRow,
)
from langgraph_resilient.restoring import Restorer
from langgraph_resilient.store import migrate, rows
from langgraph_resilient.store.session import Session

if TYPE_CHECKING:
    from langgraph_resilient.saver import ResilientSaver

_LAST_PART = (1 << 63) - 1


def threads(saver: ResilientSaver) -> list[ThreadInfo]:
    """Every thread, by name; those that are only in ``SqliteSaver``'s tables included.

    Raises:
        DatabaseCorrupt: SQLite cannot walk the tables. A damaged checkpoint only lacks its time.
    """
    engine = engine_of(saver)
    with snapshot(engine) as session:
        found = _own_threads(engine, session, saver.ledger.book.counts(session))
        names = {info.thread_id for info in found}
        found.extend(
            _old_thread(session, thread_id, saver._reader().serde)
            for thread_id in old_threads(engine, session)
            if thread_id not in names
        )
    return sorted(found, key=lambda info: info.thread_id)


def _own_threads(
    engine: Engine, session: Session, called: Mapping[int, Counter[str]]
) -> list[ThreadInfo]:
    spaces = {row[0]: row[1:] for row in session.all("sum_namespaces")}
    sums = {
        name: {row[0]: row[1:] for row in session.all(name)}
        for name in ("sum_writes", "sum_blobs", "sum_templates", "sum_calls", "sum_chunks")
    }
    skipped = _skipped(engine, session)
    asked: dict[int, list[int]] = {}
    for number, _, count, taken in session.all("sum_journal"):
        sums_of = asked.setdefault(number, [0, 0])
        sums_of[0] += count
        sums_of[1] += taken
    found = []
    for number, thread_id, spent, seal in session.all("threads_all"):
        namespaces, checkpoints, size, first, last = spaces.get(number, (0, 0, 0, None, None))
        written = sums["sum_writes"].get(number, (0, 0))
        states = called.get(number, Counter())
        thread = _thread(engine, number, thread_id, spent, seal)
        last_ts = _time(engine, session, thread, last)
        found.append(
            ThreadInfo(
                thread_id=thread_id,
                checkpoints=checkpoints,
                namespaces=namespaces,
                writes=written[0],
                bytes=size
                + written[1]
                + sums["sum_calls"].get(number, (0, 0))[1]
                + asked.get(number, (0, 0))[1]
                + sums["sum_chunks"].get(number, (0, 0))[1]
                + sums["sum_blobs"].get(number, (0, 0))[1]
                + sums["sum_templates"].get(number, (0, 0))[1],
                first_ts=_time(engine, session, thread, first),
                last_ts=last_ts,
                source="resilient",
                calls=sum(states.values()),
                unknown_calls=states["unknown"],
                model_calls=asked.get(number, (0, 0))[0],
                snapshots=_snapshots(checkpoints, skipped.get(number, SnapshotCounts())),
                ttl=None if thread.lifetime is None else thread.lifetime.ttl / 1000,
                expires_at=_end(thread.lifetime, last_ts),
            )
        )
    return found


def _thread(engine: Engine, number: int, thread_id: Any, spent: Any, seal: Any) -> ThreadRow:
    """A thread's row; a damaged one only lacks its time to live."""
    try:
        return rows.opened_thread(engine.sealer, number, thread_id, spent, seal)
    except DataCorrupt:  # `verify` reports it
        return ThreadRow(number=number, thread_id=thread_id, spent=0)


def _end(lifetime: Lifetime | None, last_ts: str | None) -> str | None:
    if lifetime is None:
        return None
    end = lifetime.end(seconds_of(last_ts))
    return datetime.fromtimestamp(end, timezone.utc).isoformat()


def _skipped(engine: Engine, session: Session) -> dict[int, SnapshotCounts]:
    """The counts of each thread, by its number; damaged ones count nothing."""
    found: dict[int, SnapshotCounts] = {}
    for thread, *row in session.all("snapshots_all"):
        try:
            more = rows.opened_counts(engine.sealer, tuple(row))
        except DataCorrupt:
            continue  # `verify` reports it
        old = found.get(thread, SnapshotCounts())
        found[thread] = SnapshotCounts(
            skipped=old.skipped + more.skipped,
            bridged=old.bridged + more.bridged,
            removed=old.removed + more.removed,
        )
    return found


def _snapshots(checkpoints: int, *counts: SnapshotCounts) -> dict[str, int]:
    return {
        "stored": checkpoints + sum(each.removed for each in counts),
        "skipped": sum(each.skipped for each in counts),
        "bridged": sum(each.bridged for each in counts),
    }


def _time(engine: Engine, session: Session, thread: ThreadRow, seq: int | None) -> str | None:
    row = None if seq is None else session.one("checkpoint_at", seq)
    if row is None:
        return None
    try:
        opened = rows.opened_checkpoint(engine.sealer, row[:4], row[4], thread.thread_id)
        restorer = Restorer(engine, session, thread.thread_id, thread.number, None)
        found = envelope.unpack_time(restorer.envelope(opened)[2], rows.readable(opened.id))
    except (DataCorrupt, OverflowError, ValueError):
        return None  # `verify` says what is wrong; a list of threads is wanted all the more then
    return found if isinstance(found, str) else None


# --- SqliteSaver's tables ---------------------------------------------------------------------


def old_threads(engine: Engine, session: Session) -> list[str]:
    """The names of all threads in ``SqliteSaver``'s tables."""
    if not legacy.present(engine, session):
        return []
    return [
        row[0]
        for row in session.raw(
            "SELECT thread_id FROM checkpoints UNION SELECT thread_id FROM writes ORDER BY 1"
        )
    ]


def _old_thread(session: Session, thread_id: str, serde: Any) -> ThreadInfo:
    (counts,) = session.raw(
        "SELECT count(*), count(DISTINCT checkpoint_ns), min(checkpoint_id), max(checkpoint_id), "
        "coalesce(sum(length(checkpoint) + length(metadata)), 0) "
        "FROM checkpoints WHERE thread_id = ?",
        thread_id,
    )
    (written,) = session.raw(
        "SELECT count(DISTINCT checkpoint_ns || char(0) || checkpoint_id || char(0) || task_id), "
        "coalesce(sum(length(value)), 0) FROM writes WHERE thread_id = ?",
        thread_id,
    )
    old = legacy.OldTables(session, serde)
    return ThreadInfo(
        thread_id=thread_id,
        checkpoints=counts[0],
        namespaces=counts[1],
        writes=written[0],
        bytes=counts[4] + written[1],
        first_ts=_old_time(session, old, thread_id, counts[2]),
        last_ts=_old_time(session, old, thread_id, counts[3]),
        source="sqlite",
    )


def _old_time(
    session: Session, old: legacy.OldTables, thread_id: str, checkpoint_id: str | None
) -> str | None:
    found = session.raw(
        "SELECT type, checkpoint FROM checkpoints WHERE thread_id = ? AND checkpoint_id = ?",
        thread_id,
        checkpoint_id,
    )
    if not found:
        return None
    try:
        stamp = old.serde.loads_typed(found[0]).get("ts")
    except Exception:  # noqa: BLE001 - a foreign serializer; the thread is listed without a time
        return None
    return stamp if isinstance(stamp, str) else None


# --- sizes ------------------------------------------------------------------------------------


def stats(saver: ResilientSaver) -> Stats:
    """How much there is and what it takes; one pass over the contents' headers.

    Raises:
        DatabaseCorrupt: SQLite cannot walk the tables.
    """
    engine = engine_of(saver)
    with snapshot(engine) as session:
        threads_, checkpoints, writes, _ = session.all("table_counts")[0]
        spaces = session.all("sum_namespaces")
        blobs = session.all("sum_blobs")
        templates = session.all("sum_templates")
        old = set(old_threads(engine, session)) - {row[1] for row in session.all("threads_all")}
        page_size, pages, free = session.pages()
        return Stats(
            path=engine.db.where,
            file_bytes=_size(engine, "") or page_size * pages,
            wal_bytes=_size(engine, "-wal"),
            threads=threads_,
            ttl_threads=_mortal(engine, session),
            namespaces=sum(row[1] for row in spaces),
            checkpoints=checkpoints,
            snapshots=_snapshots(checkpoints, *_skipped(engine, session).values()),
            writes=writes,
            blobs=sum(row[1] for row in blobs),
            blob_bytes=sum(row[2] for row in blobs),
            blob_raw_bytes=_raw_bytes(engine, session),
            shared_blobs=session.all("sum_shares")[0][0],
            templates=sum(row[1] for row in templates),
            template_bytes=sum(row[2] for row in templates),
            envelope_bytes=sum(row[3] for row in spaces),
            write_bytes=sum(row[2] for row in session.all("sum_writes")),
            calls=_calls(saver, session),
            call_bytes=sum(row[2] for row in session.all("sum_calls")),
            model_calls=_model_calls(session),
            model_call_bytes=sum(row[3] for row in session.all("sum_journal")),
            stream_bytes=sum(row[2] for row in session.all("sum_chunks")),
            page_size=page_size,
            free_bytes=page_size * free,
            old_threads=len(old),
            mode=engine.sealer.mode,
            schema=migrate.version_of(session),
        )


def _mortal(engine: Engine, session: Session) -> int:
    """How many threads have a time to live."""
    return sum(_thread(engine, *row).lifetime is not None for row in session.all("threads_all"))


def _calls(saver: ResilientSaver, session: Session) -> dict[str, int]:
    """Tool calls by state, every state named."""
    every = sum(saver.ledger.book.counts(session).values(), Counter())
    return {state.name.lower(): every[state.name.lower()] for state in CallState}


def _model_calls(session: Session) -> dict[str, int]:
    """Model calls by state, every state named."""
    every: Counter[int] = Counter()
    for _, state, count, _ in session.all("sum_journal"):
        every[state] += count
    return {state.name.lower(): every[state] for state in ModelCallState}


def _size(engine: Engine, suffix: str) -> int:
    path = engine.target.path
    if path is None:
        return 0
    try:
        return path.with_name(path.name + suffix).stat().st_size
    except OSError:
        return 0


def _raw_bytes(engine: Engine, session: Session) -> int:
    """What the contents hold, uncompressed; damaged ones count nothing."""
    total = 0
    after: tuple[int, ...] = (-1,)
    done = False
    while not done:
        found, page = contents(session, after, _LAST_PART)
        for content in found:
            try:
                place = rows.blob_place(content.blob)
                total += content_size(engine.sealer.open(place, content.stored or b""))
            except (DataCorrupt, TypeError, AttributeError):
                continue  # `verify` reports it
        after, done = page.after, page.done
    return total
