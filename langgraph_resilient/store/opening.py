"""Chooses the database by its target; the driver of a server is imported only where it is needed."""

from __future__ import annotations

import sqlite3

from langgraph_resilient.errors import ConfigurationError
from langgraph_resilient.options import Options
from langgraph_resilient.store.committing import Database
from langgraph_resilient.store.quick import QuickWriter, SqliteQuickWriter
from langgraph_resilient.store.sqlite import SqliteDatabase
from langgraph_resilient.store.target import ServerTarget, Target


def database(
    target: Target, options: Options, connection: sqlite3.Connection | None = None
) -> Database:
    """The database at a target; nothing is opened yet.

    Raises:
        ConfigurationError: it is on a PostgreSQL server, and the driver is not installed.
    """
    if not isinstance(target, ServerTarget):
        return SqliteDatabase(target, options, connection)
    try:
        from langgraph_resilient.store.postgres import PostgresDatabase
    except ImportError as error:
        raise ConfigurationError(
            "a database on a PostgreSQL server needs the driver psycopg: "
            f"pip install 'langgraph-resilient[postgres]' ({error})"
        ) from error
    return PostgresDatabase(target, options)


def quick_writer(db: Database) -> QuickWriter:
    """What commits to a database without waiting for its disk."""
    if isinstance(db, SqliteDatabase):
        return SqliteQuickWriter(db)
    from langgraph_resilient.store.postgres_quick import PostgresQuickWriter

    return PostgresQuickWriter(db)
