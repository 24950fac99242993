"""The file itself: how large it is, and giving its free space back."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress

from langgraph_resilient.engine import Engine
from langgraph_resilient.store.failures import DRIVER_ERRORS, translated

_PATIENCE = 250
"""Milliseconds to wait for another process before it is left alone."""
_SMALL_FILE = 1 << 20
"""Files below this many bytes get small pages."""
_SMALL_PAGE = 1024


def file_bytes(engine: Engine) -> int:
    """The bytes of the database's pages, those included that are still in the write-ahead log."""
    with engine.db.read() as session:
        size, pages = (
            int(session.raw(f"PRAGMA {name}")[0][0]) for name in ("page_size", "page_count")
        )
    return size * pages


def vacuum(engine: Engine) -> str:
    """Give the free space of the file back; why not, or nothing when it is done.

    Never waits for another process that writes, and changes nothing then.
    """
    database = engine.db
    with database.lock:  # protects the write connection
        connection = database.connection
        if connection.in_transaction:
            return "a transaction is open on the connection"
        try:
            connection.execute(f"PRAGMA busy_timeout = {int(_PATIENCE)}")
            connection.execute("VACUUM")
            if not database.single:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.OperationalError as error:
            if "locked" in str(error) or "busy" in str(error):
                return "another process is using the file; run it again when none is"
            raise translated(error, database.where) from error
        except DRIVER_ERRORS as error:
            raise translated(error, database.where) from error
        finally:
            timeout = engine.options.busy_timeout * 1000
            connection.execute(f"PRAGMA busy_timeout = {int(timeout)}")
        if not database.single and not database.read_only:
            _fit_pages(engine)
    return ""


def _fit_pages(engine: Engine) -> None:
    """A small file in small pages: each of its tables and indexes takes one at least.

    That needs the file for itself for a moment: it must leave WAL, which every opening sets again.
    Where somebody has it open, it stays as it is.
    """
    path = engine.target.path
    size = 0 if path is None else path.stat().st_size
    wanted = _SMALL_PAGE if size < _SMALL_FILE else int(engine.options.page_size)
    if path is None or _SMALL_FILE <= size < 4 * _SMALL_FILE:
        return
    engine.db.disconnect()
    with closing(engine.target.open(engine.options)) as connection, suppress(*DRIVER_ERRORS):
        connection.execute(f"PRAGMA busy_timeout = {int(_PATIENCE)}")
        if int(connection.execute("PRAGMA page_size").fetchone()[0]) == wanted:
            return
        if connection.execute("PRAGMA journal_mode = DELETE").fetchone()[0] == "delete":
            connection.execute(f"PRAGMA page_size = {int(wanted)}")
            connection.execute("VACUUM")
