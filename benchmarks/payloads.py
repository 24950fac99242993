"""How many bytes of content a saver holds, without pages, indexes and logs: `weigh` of an entry.

Asked after each `put`, the growth is the new data of that checkpoint (its writes included), which
the size of a file cannot tell: files grow by pages, and logs are written over.

For notebooks: `of_sqlite(None, path)` works on any file of `SqliteSaver` or `ResilientSaver`.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from langgraph_resilient.maintenance import stats


def bytes_on_disk(path: str) -> int:
    """Return the database's bytes: its file, its WAL and whatever else the saver put beside it."""
    folder = Path(path).parent
    return sum(
        found.stat().st_size
        for found in folder.rglob("*")
        if found.is_file() and not found.name.endswith("-shm")
    )


def of_folder(saver: Any, path: str) -> int:
    """Every byte on disk: exact for savers that write one file per value or only append."""
    return bytes_on_disk(path)


def of_sqlite(saver: Any, path: str) -> int:
    """The summed length of every value in every table of a SQLite file."""
    uri = f"file:{quote(path)}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=30)) as connection:
        tables = connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        ).fetchall()
        return sum(_of_table(connection, table) for (table,) in tables)


def _of_table(connection: sqlite3.Connection, table: str) -> int:
    columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    lengths = " + ".join(f'coalesce(length("{column}"), 0)' for column in columns)
    (found,) = connection.execute(f'SELECT coalesce(sum({lengths}), 0) FROM "{table}"').fetchone()
    return int(found)


def of_lmdb(saver: Any, path: str) -> int:
    """The summed length of every key and value of an `LMDBSaver`."""
    total = 0
    with saver.env.begin(buffers=True) as transaction:
        for database in (saver._db, saver._writes_db):
            for key, value in transaction.cursor(database):
                total += len(key) + len(value)
    return total


def of_ours_on_postgres(saver: Any, path: str) -> int:
    """The stored size of every value in our own tables on a PostgreSQL server."""
    found = stats(saver)
    values = (found.blob_bytes, found.template_bytes, found.envelope_bytes, found.write_bytes)
    return sum(values)


def of_postgres(saver: Any, path: str) -> int:
    """The stored size of every value in `PostgresSaver`'s tables (after its own compression)."""
    query = """
        SELECT (SELECT coalesce(sum(pg_column_size(checkpoint) + pg_column_size(metadata)), 0)
                  FROM checkpoints)
             + (SELECT coalesce(sum(pg_column_size(blob)), 0) FROM checkpoint_blobs)
             + (SELECT coalesce(sum(pg_column_size(blob)), 0) FROM checkpoint_writes) AS total
    """
    with saver.lock, saver.conn.cursor() as cursor:
        found = cursor.execute(query).fetchone()
    return int(found["total"])
