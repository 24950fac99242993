"""SQLite: connections, transactions and group commit. Knows rows, no objects.

One connection writes, a few read. Writers queue their work; whoever gets the lock commits what
all of them queued, and each returns only when its own work is durable. Errors of the driver are
translated here and nowhere else.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from langgraph_resilient.errors import (
    DatabaseReadOnly,
    DatabaseUnreachable,
    SaverClosed,
)
from langgraph_resilient.options import Options
from langgraph_resilient.store import queries
from langgraph_resilient.store.committing import PATIENCE, Database, Pending, do
from langgraph_resilient.store.copier import WalCopier
from langgraph_resilient.store.failures import DRIVER_ERRORS, translated
from langgraph_resilient.store.forking import keep_apart
from langgraph_resilient.store.session import Row, Session
from langgraph_resilient.store.target import Target, create_private, refuse_stump

_WAL_SLACK = 16
"""Pages of the last commit before the log is copied."""
_SMALL_FILE = 1 << 20
"""Files below this many bytes get small pages."""
_SMALL_PAGE = 1024
_READER_KILOBYTES = 512
"""Pages that each read connection keeps; what was decoded is kept elsewhere."""


class SqliteSession(Session):
    """Runs named queries on one connection, inside a transaction that somebody else opened."""

    def __init__(
        self, connection: sqlite3.Connection, where: str, missing: frozenset[str] = frozenset()
    ):
        super().__init__(missing)
        self._connection = connection
        self._where = where
        self._sql = queries.load()

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, for a reader of foreign tables; transactions stay the opener's."""
        return self._connection

    def _execute(self, name: str, parameters: Sequence[Any]) -> sqlite3.Cursor:
        try:
            cursor = self._connection.cursor()
            cursor.row_factory = None
            return cursor.execute(self._sql[name], parameters)
        except DRIVER_ERRORS as error:
            raise translated(error, self._where) from error

    def all(self, name: str, *parameters: Any) -> list[Row]:
        """Every row of a query."""
        if self.bare or name in self._missing:
            return []
        cursor = self._execute(name, parameters)
        try:
            return cursor.fetchall()
        except DRIVER_ERRORS as error:
            raise translated(error, self._where) from error

    def one(self, name: str, *parameters: Any) -> Row | None:
        """The first row of a query, or None."""
        if self.bare or name in self._missing:
            return None
        cursor = self._execute(name, parameters)
        try:
            row: Row | None = cursor.fetchone()
            cursor.close()
            return row
        except DRIVER_ERRORS as error:
            raise translated(error, self._where) from error

    def run(self, name: str, *parameters: Any) -> int:
        """Run a statement; how many rows it changed."""
        return self._execute(name, parameters).rowcount

    def insert(self, name: str, *parameters: Any) -> int:
        """Run an INSERT; the number of the new row."""
        return self._execute(name, parameters).lastrowid or 0

    def many(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each row."""
        try:
            self._connection.executemany(self._sql[name], rows)
        except DRIVER_ERRORS as error:
            raise translated(error, self._where) from error

    def raw(self, sql: str, *parameters: Any) -> list[Row]:
        """Run a statement that is not in the catalogue: a PRAGMA, or one of another schema."""
        try:
            cursor = self._connection.cursor()
            cursor.row_factory = None
            return cursor.execute(sql, parameters).fetchall()
        except DRIVER_ERRORS as error:
            raise translated(error, self._where) from error

    def upgrade_statements(self, script: str) -> list[str]:
        """The statements of a migration script, as SQLite takes them."""
        return queries.statements(script)

    def relations(self) -> set[str]:
        """The names of our tables and indexes that are there."""
        found = self.raw(
            "SELECT name FROM sqlite_master WHERE type IN ('table', 'index') "
            "AND name LIKE 'resilient\\_%' ESCAPE '\\'"
        )
        return {row[0] for row in found}

    def pages(self) -> tuple[int, int, int]:
        """The size of a page in bytes, how many pages the file has, and how many of them are free."""
        size, count, free = (
            int(self.raw(f"PRAGMA {name}")[0][0])
            for name in ("page_size", "page_count", "freelist_count")
        )
        return size, count, free

    def complaints(self, limit: int) -> list[str]:
        """What SQLite's integrity_check finds, so many findings at most."""
        found = self.raw(f"PRAGMA integrity_check({int(limit)})")
        return [f"SQLite's integrity_check: {row[0]}" for row in found if row[0] != "ok"]


class SqliteDatabase(Database):
    """One database: opens, commits in groups, hands out read sessions, closes.

    Args:
        target: where it is; ignored when a connection is given.
        options: tunables.
        connection: the user's own connection; everything then happens on it, under the lock.
    """

    is_file = True

    def __init__(
        self,
        target: Target,
        options: Options,
        connection: sqlite3.Connection | None = None,
    ):
        super().__init__(target, options)
        keep_apart(self.lock)
        self.own = connection is None
        self._sql = queries.load()
        self._given = connection
        self._writer: sqlite3.Connection | None = connection
        self._readers: list[sqlite3.Connection] = []
        self._readers_lock = threading.Lock()
        self._taken = False
        self._copier: WalCopier | None = None
        self._immutable = False
        self.where = str(target.path) if target.path is not None else "the database"

    # --- opening and closing ------------------------------------------------------------------

    @property
    def single(self) -> bool:
        """Whether reads share the one connection with writes."""
        return not self.own or self.target.single

    @property
    def connection(self) -> sqlite3.Connection:
        """The write connection; opened on first use.

        Raises:
            SaverClosed: `close` was called.
            StorageError: it cannot be opened.
        """
        if self._closed:
            raise SaverClosed(
                f"{self.where}: the saver is closed; open a new one, "
                "or keep its `with` block open while the graph runs"
            )
        if self._writer is None:
            with self.lock:
                if self._writer is None:
                    self._writer = self._open_writer()
        elif self._given is not None:
            self._take_up(self._given)
        return self._writer

    def _take_up(self, connection: sqlite3.Connection) -> None:
        """Set the user's connection to WAL once, as ``SqliteSaver`` does; nothing else of it."""
        if self._taken:
            return
        with self.lock:
            try:
                if self._taken or connection.in_transaction:
                    return
                self._taken = True
                with suppress(sqlite3.OperationalError):  # read-only or busy: works without, too
                    connection.execute("PRAGMA journal_mode = WAL").fetchone()
            except DRIVER_ERRORS as error:
                raise translated(error, self.where) from error

    def _open_writer(self) -> sqlite3.Connection:
        path = self.target.path
        if path is not None and not self.target.uri:
            create_private(path)
        if path is not None:
            refuse_stump(path)
        connection = self.target.open(self.options)
        try:
            self._prepare(connection)
        except DRIVER_ERRORS as error:
            connection.close()
            raise translated(error, self.where) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        for pragma in (
            f"PRAGMA busy_timeout = {int(self.options.busy_timeout * 1000)}",
            "PRAGMA cell_size_check = ON",
            f"PRAGMA page_size = {int(self.options.page_size)}",
        ):
            connection.execute(pragma)
        if self.target.single:
            return
        if "ro" in self.target.query.get("mode", []) or "1" in self.target.query.get(
            "immutable", []
        ):
            self.read_only = True
            return
        try:
            self._enable_wal(connection)
        except sqlite3.OperationalError as error:
            failure = translated(error, self.where)
            if not isinstance(failure, (DatabaseReadOnly, DatabaseUnreachable)):
                raise failure from error
            self._degrade_to_reading(connection, failure)
            return
        connection.execute(f"PRAGMA synchronous = {self.options.synchronous}")
        # The log is cut only when nobody writes: to overwrite it costs half of growing it anew.
        limit = (self.options.wal_pages + _WAL_SLACK) * (self.options.page_size + 24)
        connection.execute(f"PRAGMA journal_size_limit = {int(limit)}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {int(self.options.wal_pages)}")
        self._copier = WalCopier(partial(self.target.open, self.options))

    def _enable_wal(self, connection: sqlite3.Connection) -> None:
        """Switch to WAL; two processes may do so at once, and SQLite does not wait for that."""
        deadline = time.monotonic() + self.options.busy_timeout
        pause = 0.002
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL").fetchone()
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() >= deadline:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, 0.1)

    def _degrade_to_reading(self, connection: sqlite3.Connection, failure: Exception) -> None:
        """A file or folder without write permission can still be read."""
        path = self.target.path
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error:
            if path is None or not path.exists() or Path(f"{path}-wal").exists():
                raise failure from None
            self._immutable = True
        self.read_only = True

    def close(self) -> None:
        """Finish queued work and close every connection of our own. Closing twice is harmless."""
        with self.lock:
            if self._closed:
                return
            if self._queue:
                self._commit_queue()
            self._closed = True
            if self._copier is not None:
                self._copier.stop()
            with self._readers_lock:
                for reader in self._readers:
                    reader.close()
                self._readers.clear()
            if self.own and self._writer is not None:
                self._writer.close()

    def disconnect(self) -> None:
        """Close our connections without closing the database: the next use opens them anew."""
        with self.lock:
            with self._readers_lock:
                for reader in self._readers:
                    reader.close()
                self._readers.clear()
            if self._copier is not None:
                self._copier.stop()
                self._copier = None
            if self.own and not self.target.single and self._writer is not None:
                self._writer.close()
                self._writer = None

    def shrink(self) -> str:
        """Give the free space of the file back; why not, or nothing when it is done."""
        with self.lock:  # protects the write connection
            connection = self.connection
            if connection.in_transaction:
                return "a transaction is open on the connection"
            try:
                connection.execute(f"PRAGMA busy_timeout = {int(PATIENCE)}")
                connection.execute("VACUUM")
                if not self.single:
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.OperationalError as error:
                if "locked" in str(error) or "busy" in str(error):
                    return "another process is using the file; run it again when none is"
                raise translated(error, self.where) from error
            except DRIVER_ERRORS as error:
                raise translated(error, self.where) from error
            finally:
                timeout = self.options.busy_timeout * 1000
                connection.execute(f"PRAGMA busy_timeout = {int(timeout)}")
            if not self.single and not self.read_only:
                self._fit_pages()
        return ""

    def _fit_pages(self) -> None:
        """A small file in small pages: each of its tables and indexes takes one at least.

        That needs the file for itself for a moment: it must leave WAL, which every opening sets
        again. Where somebody has it open, it stays as it is.
        """
        path = self.target.path
        size = 0 if path is None else path.stat().st_size
        wanted = _SMALL_PAGE if size < _SMALL_FILE else int(self.options.page_size)
        if path is None or _SMALL_FILE <= size < 4 * _SMALL_FILE:
            return
        self.disconnect()
        with closing(self.target.open(self.options)) as connection, suppress(*DRIVER_ERRORS):
            connection.execute(f"PRAGMA busy_timeout = {int(PATIENCE)}")
            if int(connection.execute("PRAGMA page_size").fetchone()[0]) == wanted:
                return
            if connection.execute("PRAGMA journal_mode = DELETE").fetchone()[0] == "delete":
                connection.execute(f"PRAGMA page_size = {int(wanted)}")
                connection.execute("VACUUM")

    # --- writing ------------------------------------------------------------------------------

    def step(self, name: str, parameters: Sequence[Any]) -> int:
        """Run one statement in a write transaction of its own; how many rows it changed.

        Durable on return. Where nobody else writes, SQLite begins and ends the transaction with the
        statement: right after a disk has been waited for, each further one costs dearly.

        Raises:
            ResilientError: it could not be stored.
        """
        if self._queue or not self.own or not self.lock.acquire(blocking=False):
            return int(self.write(lambda session: session.run(name, *parameters)))
        try:  # under the lock: protects the write connection and the transaction on it
            connection = self.connection
            if self.read_only or connection.in_transaction:
                return int(self.write(lambda session: session.run(name, *parameters)))
            try:
                changed = connection.execute(self._sql[name], parameters).rowcount
            except DRIVER_ERRORS as error:
                raise translated(error, self.where) from error
            self.note_commit()
            return changed
        finally:
            self.lock.release()

    def _commit(self, batch: list[Pending]) -> None:
        connection = self.connection
        if self.read_only:
            raise DatabaseReadOnly(
                f"{self.where} was opened for reading only; "
                "make the file and its folder writable, or drop mode=ro"
            )
        session = SqliteSession(connection, self.where, self.missing)
        joined = connection.in_transaction
        try:
            # IMMEDIATE: take the write lock now, so that no later statement can fail on it.
            connection.execute("SAVEPOINT resilient" if joined else "BEGIN IMMEDIATE")
            for pending in batch:
                do(connection, session, pending, alone=len(batch) == 1 and not joined)
            if joined:
                connection.execute("RELEASE resilient")
                # When nothing of ours was stored, the user's transaction stays as it was.
                if not all(pending.done for pending in batch):
                    connection.commit()
            elif connection.in_transaction:
                connection.execute("COMMIT")
        except BaseException as error:
            _undo(connection, joined)
            if isinstance(error, DRIVER_ERRORS):
                raise translated(error, self.where) from error
            raise
        for pending in batch:
            pending.done = True
        self.note_commit()

    def note_commit(self) -> None:
        """Something was committed, under the lock: the log is emptied when nobody writes."""
        if self._copier is not None:
            self._copier.note()

    # --- reading ------------------------------------------------------------------------------

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session whose queries all see one state of the database."""
        if self.single:
            with self.lock:  # protects the single connection from other threads
                yield SqliteSession(self.connection, self.where, self.missing)
            return
        reader = self._borrow()
        try:
            try:
                reader.execute("BEGIN")
            except DRIVER_ERRORS as error:
                raise translated(error, self.where) from error
            yield SqliteSession(reader, self.where, self.missing)
            try:
                reader.execute("COMMIT")
            except DRIVER_ERRORS as error:
                raise translated(error, self.where) from error
        except BaseException:
            reader.close()
            raise
        self._give_back(reader)

    @contextmanager
    def glance(self) -> Iterator[Session]:
        """`read` for a few rows: on the write connection where nobody uses it just now.

        Its pages are in memory; another connection drops what it knows after each commit.
        """
        if self.single or not self.lock.acquire(blocking=False):
            with self.read() as session:
                yield session
            return
        try:  # under the lock: protects the write connection and the transaction on it
            connection = self.connection
            if connection.in_transaction:
                with self.read() as session:
                    yield session
                return
            try:
                connection.execute("BEGIN")
                yield SqliteSession(connection, self.where, self.missing)
                connection.execute("COMMIT")
            except BaseException as error:
                _undo(connection, joined=False)
                if isinstance(error, DRIVER_ERRORS):
                    raise translated(error, self.where) from error
                raise
        finally:
            self.lock.release()

    def _borrow(self) -> sqlite3.Connection:
        writer = self.connection  # raises SaverClosed, creates the file
        with self._readers_lock:
            if self._readers:
                return self._readers.pop()
        del writer
        reader = self.target.open(self.options, immutable=self._immutable)
        try:
            reader.execute(f"PRAGMA busy_timeout = {int(self.options.busy_timeout * 1000)}")
            reader.execute("PRAGMA query_only = ON")
            reader.execute(f"PRAGMA cache_size = -{int(_READER_KILOBYTES)}")
            reader.execute("PRAGMA cell_size_check = ON")
        except BaseException:
            reader.close()  # of a damaged file, say
            raise
        return reader

    def _give_back(self, reader: sqlite3.Connection) -> None:
        with self._readers_lock:
            if not self._closed and len(self._readers) < self.options.readers:
                self._readers.append(reader)
                return
        reader.close()


def _undo(connection: sqlite3.Connection, joined: bool) -> None:
    with suppress(sqlite3.Error):
        if connection.in_transaction:
            if joined:
                connection.execute("ROLLBACK TO resilient")
                connection.execute("RELEASE resilient")
            else:
                connection.rollback()
