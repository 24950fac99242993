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
from langgraph_resilient.engine import Engine, has_old_tables
from langgraph_resilient.errors import CheckpointCorrupt, ResilientError, TamperDetected
from langgraph_resilient.records import Snapshot, Write
from langgraph_resilient.store import rows
from langgraph_resilient.store.failures import translated
from langgraph_resilient.store.session import Session

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

    def spots(self, thread_id: str, table: str = "checkpoints") -> list[tuple[str, str]]:
        """Namespace and id of a thread's checkpoints, or of those with writes, least id first."""
        cursor = self.conn.execute(
            f"SELECT DISTINCT checkpoint_ns, checkpoint_id FROM {table} WHERE thread_id = ? "
            "ORDER BY checkpoint_id, checkpoint_ns",
            (thread_id,),
        )
        return cursor.fetchall()

    def snapshots(self, thread_id: str) -> Iterator[Snapshot]:
        """A thread's checkpoints, least id first, each read when it is asked for."""
        for checkpoint_ns, checkpoint_id in self.spots(thread_id):
            spot = named(thread_id, checkpoint_ns, checkpoint_id)
            found = self.get_tuple({"configurable": spot})
            if found is not None:
                yield self.snapshot(found._replace(config={"configurable": spot}))

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


def named(thread_id: str, checkpoint_ns: str, checkpoint_id: str | None) -> dict[str, Any]:
    """The `configurable` of a config that names a checkpoint."""
    return {
        "thread_id": thread_id,
        "checkpoint_ns": checkpoint_ns,
        "checkpoint_id": checkpoint_id,
    }


def guarded(thread_id: str | None, where: str, error: Exception) -> Exception:
    """The package's error for one that came out of ``SqliteSaver``."""
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


def present(engine: Engine, session: Session) -> bool:
    """Whether the old tables are there; another process may have dropped them meanwhile."""
    if engine.old_tables and not has_old_tables(session):
        engine.old_tables = False
    return engine.old_tables


def exists(engine: Engine, session: Session, thread_id: str) -> bool:
    """Whether the old tables hold a thread that ours do not."""
    if thread_id in engine.adopted or not present(engine, session):
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
        where = named(spot.thread_id, spot.checkpoint_ns, spot.checkpoint_id)
        found = old.get_tuple({"configurable": where})
        if found is None:
            return None
        where = named(spot.thread_id, spot.checkpoint_ns, found.checkpoint["id"])
        return old.snapshot(found._replace(config={"configurable": where}))
    except Exception as error:
        raise guarded(spot.thread_id, engine.db.where, error) from error


def pages(
    engine: Engine, serde: Any, query: configs.Query, limit: int | None
) -> Iterator[list[Snapshot]]:
    """Checkpoints of threads that are only in the old tables, greatest id first."""
    if not engine.old_tables:
        return
    with engine.reading() as session:
        if not present(engine, session):
            return
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

    Checkpoints are read, encoded and let go one by one: what is held meanwhile is what will be
    stored, compressed.

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
    if needed:
        engine.change(thread_id, lambda draft: _move(engine, draft, serde), adopting=True)
    engine.adopted.add(thread_id)
    return needed


def _move(engine: Engine, draft: Draft, serde: Any) -> None:
    state = draft.state
    if state.exists:
        return  # somebody else moved it first
    # A checkpoint whose parent is gone is no late write here: SqliteSaver wrote it.
    before, state.deleted_before = state.deleted_before, False
    try:
        with engine.db.read() as session:
            old = OldTables(session, serde)
            for snapshot in old.snapshots(state.thread_id):
                recording.put(
                    draft,
                    snapshot.checkpoint_ns,
                    snapshot.checkpoint,
                    snapshot.metadata,
                    snapshot.parent_id,
                    serde,
                )
            for ns, checkpoint_id in old.spots(state.thread_id, "writes"):
                _move_writes(draft, old, ns, checkpoint_id, serde)
    except Exception as error:
        raise guarded(state.thread_id, engine.db.where, error) from error
    finally:
        state.deleted_before = before


def _move_writes(draft: Draft, old: OldTables, ns: str, checkpoint_id: str, serde: Any) -> None:
    tasks: dict[str, tuple[str, dict[int, tuple[str, Any]]]] = {}
    for write in old.writes(named(draft.state.thread_id, ns, checkpoint_id)):
        path, entries = tasks.setdefault(write.task_id, (write.task_path, {}))
        entries[write.index] = (write.channel, write.value)
    for task, (path, entries) in tasks.items():
        recording.put_entries(draft, ns, checkpoint_id, entries, task, path, serde)


def delete(session: Session, thread_id: str) -> None:
    """Remove a thread's rows from the old tables, inside a write transaction."""
    session.raw("DELETE FROM checkpoints WHERE thread_id = ?", thread_id)
    session.raw("DELETE FROM writes WHERE thread_id = ?", thread_id)
