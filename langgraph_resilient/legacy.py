"""Threads that ``SqliteSaver`` wrote into the same file: read in place, moved on the first write.

The old tables are read with ``SqliteSaver`` itself, so that whatever it can read is read right.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_resilient import configs, recording
from langgraph_resilient.draft import Draft
from langgraph_resilient.engine import Engine
from langgraph_resilient.errors import CheckpointCorrupt, ResilientError, TamperDetected
from langgraph_resilient.records import Snapshot, Write
from langgraph_resilient.store import rows
from langgraph_resilient.store.sqlite import Session, translated

_PAGE = 16


class OldTables(SqliteSaver):
    """``SqliteSaver`` on a session's connection, reading only.

    Args:
        session: whose connection is borrowed.
        serde: what the old rows were written with; LangGraph's default if None.
    """

    def __init__(self, session: Session, serde: Any = None):
        super().__init__(session.connection, serde=serde or JsonPlusSerializer())
        self.is_setup = True
        columns = {row[1] for row in session.raw("PRAGMA table_info(writes)")}
        self._has_task_path = "task_path" in columns

    def snapshot(self, found: CheckpointTuple) -> Snapshot:
        """A tuple of the old tables as a record."""
        spot = found.config["configurable"]
        above = found.parent_config
        return Snapshot(
            thread_id=spot["thread_id"],
            checkpoint_ns=spot["checkpoint_ns"],
            checkpoint_id=spot["checkpoint_id"],
            parent_id=(above["configurable"]["checkpoint_id"] or None) if above else None,
            seq=0,
            checkpoint=dict(found.checkpoint),
            metadata=dict(found.metadata),
            writes=list(self.writes(spot)),
        )

    def writes(self, spot: dict[str, Any]) -> Iterator[Write]:
        """The writes of an old checkpoint in LangGraph's order."""
        path = "task_path" if self._has_task_path else "''"
        cursor = self.conn.execute(
            f"SELECT task_id, {path} AS task_path, idx, channel, type, value FROM writes "
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ? "
            "ORDER BY task_path, task_id, idx",
            (spot["thread_id"], spot["checkpoint_ns"], spot["checkpoint_id"]),
        )
        for task_id, task_path, index, channel, kind, value in cursor.fetchall():
            yield Write(
                task_id=task_id,
                task_path=task_path,
                index=index,
                channel=channel,
                value=self.serde.loads_typed((kind, value)),
            )


def _guarded(thread_id: str | None, where: str, error: Exception) -> Exception:
    if isinstance(error, ResilientError):
        return error
    if isinstance(error, sqlite3.Error):
        return translated(error, where)
    return CheckpointCorrupt(
        f"thread {thread_id!r}, in the tables of SqliteSaver: it cannot be read "
        f"({type(error).__name__}: {error})",
        thread_id=thread_id,
    )


def _refuse_unprotected(engine: Engine, thread_id: str) -> None:
    """With a cipher or an integrity key nothing unprotected is believed."""
    if engine.protected:
        raise TamperDetected(
            f"thread {thread_id!r} is only in the unprotected tables of SqliteSaver; if you put it "
            "there, move it with `langgraph-resilient migrate`",
            thread_id=thread_id,
        )


def exists(engine: Engine, session: Session, thread_id: str) -> bool:
    """Whether the old tables hold a thread that ours do not."""
    if not engine.old_tables or thread_id in engine.adopted:
        return False
    for table in ("checkpoints", "writes"):
        if session.raw(f"SELECT 1 FROM {table} WHERE thread_id = ? LIMIT 1", thread_id):
            return rows.find_thread(session, engine.sealer, thread_id) is None
    return False


def get(
    engine: Engine, session: Session, serde: SerializerProtocol | Any, spot: configs.Spot
) -> Snapshot | None:
    """A checkpoint of a thread that is only in the old tables."""
    if not exists(engine, session, spot.thread_id):
        return None
    _refuse_unprotected(engine, spot.thread_id)
    old = OldTables(session, serde)
    try:
        found = old.get_tuple(
            {
                "configurable": {
                    "thread_id": spot.thread_id,
                    "checkpoint_ns": spot.checkpoint_ns,
                    "checkpoint_id": spot.checkpoint_id,
                }
            }
        )
        if found is None:
            return None
        return old.snapshot(_at(found, spot.thread_id, spot.checkpoint_ns))
    except Exception as error:
        raise _guarded(spot.thread_id, engine.db.where, error) from error


def _at(found: CheckpointTuple, thread_id: str, checkpoint_ns: str) -> CheckpointTuple:
    named = {
        "thread_id": thread_id,
        "checkpoint_ns": checkpoint_ns,
        "checkpoint_id": found.checkpoint["id"],
    }
    return found._replace(config={"configurable": named})


def pages(
    engine: Engine, serde: Any, query: configs.Query, limit: int | None
) -> Iterator[list[Snapshot]]:
    """Checkpoints of threads that are only in the old tables, greatest id first."""
    if not engine.old_tables:
        return
    with engine.reading() as session:
        keys = [key for key in _old_keys(session, query) if exists(engine, session, key[0])]
    left = len(keys) if limit is None else limit
    for start in range(0, len(keys), _PAGE):
        found = []
        with engine.reading() as session:
            for thread_id, checkpoint_ns, checkpoint_id in keys[start : start + _PAGE]:
                spot = configs.Spot(
                    thread_id=thread_id, checkpoint_ns=checkpoint_ns, checkpoint_id=checkpoint_id
                )
                snapshot = get(engine, session, serde, spot)
                if snapshot and configs.matches(snapshot.metadata, query.filter) and left > 0:
                    found.append(snapshot)
                    left -= 1
        if found:
            yield found
        if left <= 0:
            return


def _old_keys(session: Session, query: configs.Query) -> list[tuple[str, str, str]]:
    clauses, parameters = ["1 = 1"], []
    for column, wanted in (
        ("thread_id = ?", query.thread_id),
        ("checkpoint_ns = ?", query.checkpoint_ns),
        ("checkpoint_id = ?", query.checkpoint_id),
        ("checkpoint_id < ?", query.before_id),
    ):
        if wanted is not None:
            clauses.append(column)
            parameters.append(wanted)
    return session.raw(
        "SELECT thread_id, checkpoint_ns, checkpoint_id FROM checkpoints "
        f"WHERE {' AND '.join(clauses)} ORDER BY checkpoint_id DESC",
        *parameters,
    )


# --- moving over ------------------------------------------------------------------------------


def adopt(engine: Engine, thread_id: str, serde: Any = None, *, trust: bool = False) -> bool:
    """Move a thread into our tables, all of it in one transaction; its old rows stay.

    Returns:
        Whether there was anything to move.

    Raises:
        TamperDetected: the database is protected and `trust` was not given.
    """
    if thread_id in engine.adopted:
        return False
    with engine.reading() as session:
        needed = exists(engine, session, thread_id)
        if needed and not trust:
            _refuse_unprotected(engine, thread_id)
        loaded = _all_of(engine, session, thread_id, serde) if needed else ([], [])
    if needed:
        engine.change(thread_id, lambda draft: _move(draft, *loaded, serde))
    engine.adopted.add(thread_id)
    return needed


def _all_of(
    engine: Engine, session: Session, thread_id: str, serde: Any
) -> tuple[list[Snapshot], list[tuple[str, str, Write]]]:
    old = OldTables(session, serde)
    try:
        keys = session.raw(
            "SELECT checkpoint_ns, checkpoint_id FROM checkpoints WHERE thread_id = ? "
            "ORDER BY checkpoint_id",
            thread_id,
        )
        written = session.raw(
            "SELECT DISTINCT checkpoint_ns, checkpoint_id FROM writes WHERE thread_id = ?",
            thread_id,
        )
        found = []
        for checkpoint_ns, checkpoint_id in keys:
            spot = configs.Spot(
                thread_id=thread_id, checkpoint_ns=checkpoint_ns, checkpoint_id=checkpoint_id
            )
            snapshot = get(engine, session, serde, spot)
            if snapshot is not None:
                found.append(snapshot)
        writes = [
            (ns, id, write)
            for ns, id in written
            for write in old.writes(
                {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": id}
            )
        ]
    except Exception as error:
        raise _guarded(thread_id, engine.db.where, error) from error
    return found, writes


def _move(
    draft: Draft, snapshots: list[Snapshot], writes: list[tuple[str, str, Write]], serde: Any
) -> None:
    if draft.state.exists:
        return  # somebody else moved it first
    for snapshot in snapshots:
        recording.put(
            draft,
            snapshot.checkpoint_ns,
            snapshot.checkpoint,
            snapshot.metadata,
            snapshot.parent_id,
            serde,
        )
    tasks: dict[tuple[str, str, str], tuple[str, dict[int, tuple[str, Any]]]] = {}
    for ns, id, write in writes:
        path, entries = tasks.setdefault((ns, id, write.task_id), (write.task_path, {}))
        entries[write.index] = (write.channel, write.value)
    for (ns, id, task), (path, entries) in tasks.items():
        recording.put_entries(draft, ns, id, entries, task, path, serde)


def delete(session: Session, thread_id: str) -> None:
    """Remove a thread's rows from the old tables, inside a write transaction."""
    session.raw("DELETE FROM checkpoints WHERE thread_id = ?", thread_id)
    session.raw("DELETE FROM writes WHERE thread_id = ?", thread_id)
