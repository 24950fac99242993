"""PostgreSQL: connections, transactions and group commit. Knows rows, no objects.

Write transactions take one lock of the database's, so that writers of all processes and machines come
one after the other, as they do in SQLite: numbers that are handed out, the clock and the epochs of
leases need nothing else. Readers take no lock and see one state each.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, cast

import psycopg
from psycopg import sql

from langgraph_resilient.errors import (
    DatabaseCorrupt,
    DatabaseReadOnly,
    DatabaseUnreachable,
    ResilientError,
    SaverClosed,
    StorageError,
)
from langgraph_resilient.options import Options
from langgraph_resilient.store import dialect, queries
from langgraph_resilient.store.committing import PATIENCE, Database, Pending, do
from langgraph_resilient.store.failures import Conflict
from langgraph_resilient.store.links import Address, Link
from langgraph_resilient.store.postgres_failures import DRIVER_ERRORS, WAITED, is_lost, translated
from langgraph_resilient.store.session import Row, Session
from langgraph_resilient.store.target import Target

logger = logging.getLogger(__name__)

_READING: Final = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_LOCKS: Final = 0x6C67722E << 32
"""The upper half of the lock's number says that it is ours, the lower one is the schema's."""
_ALL_OR_CONFLICT: Final = frozenset({"checkpoint_insert", "writes_insert", "blob_insert"})
"""What may be there already, and whose callers go on then: an error would end the transaction."""
_STILL: Final = 20
"""Seconds that a process may stand still in a write transaction before the server ends it: one whose
machine has vanished would block all others for as long."""


class PostgresSession(Session):
    """Runs named queries on one connection, inside a transaction that somebody else opened."""

    def __init__(
        self,
        connection: Link,
        where: str,
        missing: frozenset[str] = frozenset(),
        *,
        reading: bool = False,
    ):
        super().__init__(missing)
        self._connection = connection
        self._where = where
        self._reading = reading
        self._sql = dialect.catalogue()
        self._cursor = connection.cursor(binary=True)

    @property
    def connection(self) -> Link:
        """The connection; transactions stay the opener's."""
        return self._connection

    def _execute(self, name: str, parameters: Sequence[Any]) -> psycopg.Cursor[Any]:
        try:
            return self._cursor.execute(self._sql[name], parameters)
        except DRIVER_ERRORS as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> Exception:
        failure = translated(error, self._where)
        if self._reading and isinstance(failure, DatabaseCorrupt):
            # Damage ends the transaction; whoever looks for damage goes on with a new one.
            with suppress(*DRIVER_ERRORS):
                self._connection.execute("ROLLBACK")
                self._connection.execute(_READING)
        return failure

    def all(self, name: str, *parameters: Any) -> list[Row]:
        """Every row of a query."""
        if self.bare or name in self._missing:
            return []
        return self._execute(name, parameters).fetchall()

    def one(self, name: str, *parameters: Any) -> Row | None:
        """The first row of a query, or None."""
        if self.bare or name in self._missing:
            return None
        return cast("Row | None", self._execute(name, parameters).fetchone())

    def run(self, name: str, *parameters: Any) -> int:
        """Run a statement; how many rows it changed."""
        changed = self._execute(name, parameters).rowcount
        self._check_all(name, changed, 1)
        return changed

    def insert(self, name: str, *parameters: Any) -> int:
        """Run an INSERT; the number of the new row, where the statement gives it back."""
        cursor = self._execute(name, parameters)
        self._check_all(name, cursor.rowcount, 1)
        row = cursor.fetchone() if cursor.description else None
        return int(row[0]) if row else 0

    def many(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each row."""
        every = list(rows)
        if len(every) == 1:
            self.run(name, *every[0])
            return
        try:
            self._cursor.executemany(self._sql[name], every)
        except DRIVER_ERRORS as error:
            raise self._failed(error) from error
        self._check_all(name, self._cursor.rowcount, len(every))

    def _check_all(self, name: str, changed: int, wanted: int) -> None:
        if changed < wanted and name in _ALL_OR_CONFLICT:
            raise Conflict(f"{name}: some of it is there already, or blobs may have been deleted")

    def raw(self, sql: str, *parameters: Any) -> list[Row]:
        """Run a statement that is not in the catalogue, with ``?`` for each parameter."""
        try:
            text = dialect.query(sql) if parameters else sql
            cursor = self._cursor.execute(text.encode(), parameters or None)
        except DRIVER_ERRORS as error:
            raise self._failed(error) from error
        return cursor.fetchall() if cursor.description else []

    def upgrade_statements(self, script: str) -> list[str]:
        """The statements of a migration script, as PostgreSQL takes them."""
        return dialect.statements(script)

    def relations(self) -> set[str]:
        """The names of our tables and indexes that are there, in the first schema that has them."""
        return {row[0] for row in self.raw(dialect.RELATIONS)}

    def pages(self) -> tuple[int, int, int]:
        """The size of a page in bytes, how many pages our tables have; which are free is not known."""
        size, count = self.raw(dialect.PAGES)[0]
        return size, count, 0

    def complaints(self, limit: int) -> list[str]:
        """Nothing: pages are the server's to check (``data_checksums``, the extension amcheck)."""
        return []


class PostgresDatabase(Database):
    """One database on a server: opens, commits in groups, hands out read sessions, closes.

    Args:
        target: where it is.
        options: tunables.
    """

    own = True
    single = False
    is_file = False

    def __init__(self, target: Target, options: Options):
        super().__init__(target, options)
        self._address = Address(target.name)
        self.where = self._address.where
        self._wait = max(int(options.busy_timeout * 1000), 1)
        """Milliseconds to wait for a lock; 0 would mean for ever."""
        self._writer: Link | None = None
        self._started = ""
        """When the server that the writer is connected to started."""
        self._begin = ""
        self._reading = _READING + f";SET LOCAL lock_timeout = {int(self._wait)}".encode()
        self._server_time: tuple[float, float] | None = None
        """The server's time, and ours that never steps, at one moment."""
        self._readers: list[Link] = []
        self._readers_lock = threading.Lock()

    # --- opening and closing ------------------------------------------------------------------

    @property
    def connection(self) -> Link:
        """The write connection; opened on first use, and anew when it is lost.

        Raises:
            SaverClosed: `close` was called.
            StorageError: there is none to be had.
        """
        self._check_open()
        writer = self._writer
        if writer is None or writer.closed:
            with self.lock:
                if self._writer is None or self._writer.closed:
                    self._writer = self._open_writer()
                writer = self._writer
        return writer

    def _check_open(self) -> None:
        if self._closed:
            raise SaverClosed(
                f"{self.where}: the saver is closed; open a new one, "
                "or keep its `with` block open while the graph runs"
            )

    def _open_writer(self) -> Link:
        link = self._address.connect()
        try:
            row = link.cursor(binary=True).execute(dialect.FACTS).fetchone()
            assert row is not None
            read_only, schema, commit, self._started, now = row
        except BaseException as error:
            link.close()
            if isinstance(error, DRIVER_ERRORS):
                raise translated(error, self.where) from error
            raise
        self.read_only = read_only == "on"
        self._server_time = now, time.monotonic()
        self._begin = self._beginning(_LOCKS | int(schema or 0), commit)
        return link

    def _beginning(self, lock: int, commit: str) -> str:
        """What begins a write transaction, in one message to the server.

        READ COMMITTED: each statement sees what was committed before the lock was got, which is all
        there is while it is held.
        """
        still = _STILL * 1000
        wanted = {"NORMAL": "off", "OFF": "off"}.get(self.options.synchronous, "on")
        durability = wanted if (wanted == "off" or commit == "off") else ""
        setting = f"SET LOCAL synchronous_commit = {durability};" if durability else ""
        return (
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;"
            f"SET LOCAL lock_timeout = {int(self._wait)};"
            f"SET LOCAL idle_in_transaction_session_timeout = {int(still)};{setting}"
            f"SELECT pg_advisory_xact_lock({int(lock)});"
            "SELECT pg_current_xact_id()::text, extract(epoch FROM clock_timestamp())::float8"
        )

    def close(self) -> None:
        """Finish queued work and close every connection. Closing twice is harmless."""
        with self.lock:
            if self._closed:
                return
            if self._queue:
                self._commit_queue()
            self._closed = True
            self._drop_connections()

    def disconnect(self) -> None:
        """Close our connections without closing the database: the next use opens them anew."""
        with self.lock:
            self._drop_connections()

    def _drop_connections(self) -> None:
        with self._readers_lock:
            for reader in self._readers:
                reader.close()
            self._readers.clear()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def shrink(self) -> str:
        """Write our tables anew without free space; why not, or nothing when it is done.

        A table is locked meanwhile. Tables that the role does not own stay as they are.
        """
        tables, _ = queries.newer_than(0)
        vacuums = [sql.SQL("VACUUM (FULL, ANALYZE) {}").format(sql.Identifier(t)) for t in tables]
        with self.lock:  # protects the write connection
            connection = self.connection
            if connection.in_transaction:
                return "a transaction is open on the connection"
            try:
                connection.execute(f"SET lock_timeout = {int(PATIENCE)}".encode())
                for vacuum in vacuums:
                    connection.execute(vacuum)
                connection.execute("RESET lock_timeout")
            except DRIVER_ERRORS as error:
                connection.close()  # with its settings
                if error.sqlstate in WAITED:
                    return "another session is using the tables; run it again when none is"
                raise translated(error, self.where) from error
        return ""

    @property
    def now(self) -> Callable[[], float]:
        """The server's clock: machines whose own clocks differ agree on when a lease runs out.

        Each write transaction brings its time; between them the time runs on by this machine's clock
        that never steps. It is late by the way of a message at most.
        """
        return self._now

    def _now(self) -> float:
        if self._server_time is None:
            self.connection  # noqa: B018 - asks the server
        assert self._server_time is not None
        there, here = self._server_time
        return there + time.monotonic() - here

    # --- writing ------------------------------------------------------------------------------

    def step(self, name: str, parameters: Sequence[Any]) -> int:
        """Run one statement in a write transaction of its own; how many rows it changed."""
        return int(self.write(lambda session: session.run(name, *parameters)))

    def _commit(self, batch: list[Pending]) -> None:
        connection, joined, transaction = self._begun()
        session = PostgresSession(connection, self.where, self.missing)
        try:
            for pending in batch:
                do(connection, session, pending, alone=len(batch) == 1 and not joined)
            if joined:
                connection.execute("RELEASE resilient")
                # When nothing of ours was stored, the user's transaction stays as it was.
                joined = all(pending.done for pending in batch)
        except BaseException as error:
            _undo(connection, joined)
            if isinstance(error, DRIVER_ERRORS):
                raise translated(error, self.where) from error
            raise
        if not joined:
            self._end(connection, transaction, batch)
        for pending in batch:
            pending.done = True

    def _begun(self) -> tuple[Link, bool, str]:
        """The write connection in a transaction, whether it was in one, and the transaction's number.

        Nothing is written yet, so a connection that turns out to be lost is replaced.
        """
        for last in (False, True):
            connection = self.connection
            if self.read_only:
                raise DatabaseReadOnly(
                    f"{self.where} was opened for reading only (a standby, or "
                    "default_transaction_read_only); connect to a server and as a role that may write"
                )
            joined = connection.in_transaction
            begin = self._begin
            if joined:  # the user's own transaction, begun under the lock of this process
                begin = f"SAVEPOINT resilient;{begin.partition(';')[2]}"
            try:
                return connection, joined, self._start(connection, begin)
            except BaseException as error:
                _undo(connection, joined)
                if is_lost(error) and not joined and not last:
                    connection.close()
                    continue
                if isinstance(error, DRIVER_ERRORS):
                    raise translated(error, self.where) from error
                raise
        raise AssertionError("the second time is the last one")

    def _start(self, connection: Link, begin: str) -> str:
        """Begin, and get the lock; the transaction's number."""
        cursor = connection.execute(begin.encode(), prepare=False)
        while cursor.nextset():
            pass
        row = cursor.fetchone()
        assert row is not None
        self._server_time = row[1], time.monotonic()
        return str(row[0])

    # --- how a commit ended -------------------------------------------------------------------

    def _end(self, connection: Link, transaction: str, batch: list[Pending]) -> None:
        """COMMIT. Where the line is lost meanwhile, the server is asked what became of it.

        Raises:
            StorageError: it was not stored, or nobody knows.
        """
        try:
            status = connection.execute("COMMIT").statusmessage
        except BaseException as error:
            if not self._is_stored(connection, transaction, error):
                raise
            logger.warning("%s: a commit was confirmed after its connection was lost", self.where)
            if not isinstance(error, Exception):
                for pending in batch:
                    pending.done = True
                raise
            return
        if status != "COMMIT":  # the server says ROLLBACK where a statement had failed
            raise StorageError(f"{self.where}: the transaction had failed; nothing was stored")

    def _is_stored(self, connection: Link, transaction: str, error: BaseException) -> bool:
        """Whether a transaction was committed although its COMMIT has not come back."""
        server = isinstance(error, DRIVER_ERRORS) and not is_lost(error)
        _undo(connection)
        if server and not connection.closed:  # the server's own word: it was rolled back
            raise translated(cast(Exception, error), self.where) from error
        connection.close()
        before = self._started
        try:
            answer = self._asked(transaction) if before else None
        except (ResilientError, *DRIVER_ERRORS) as unknown:
            answer = None
            logger.warning("%s: what became of a commit is not known: %s", self.where, unknown)
        if answer is None or before != self._started:
            raise DatabaseUnreachable(
                f"{self.where}: the connection was lost in the middle of a COMMIT, and whether the "
                "change was stored could not be found out; look at the thread before you repeat it"
            ) from error
        if answer == "committed":
            return True
        if isinstance(error, DRIVER_ERRORS):
            raise translated(error, self.where) from error
        return False

    def _asked(self, transaction: str) -> str | None:
        """What the server says of a transaction that has ended.

        Whoever has the lock knows that the one before has ended: it would hold the lock else.
        """
        connection = self.connection
        try:
            self._start(connection, self._begin)
            row = connection.execute("SELECT pg_xact_status(%s::xid8)", (transaction,)).fetchone()
            return None if row is None else row[0]
        finally:
            _undo(connection)

    # --- reading ------------------------------------------------------------------------------

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session whose queries all see one state of the database."""
        reader = self._borrow()
        try:
            yield PostgresSession(reader, self.where, self.missing, reading=True)
            try:
                reader.execute("COMMIT")
            except DRIVER_ERRORS as error:
                raise translated(error, self.where) from error
        except BaseException:
            _undo(reader)
            raise
        finally:
            self._give_back(reader)

    def glance(self) -> Any:
        """`read`: there is no shorter way."""
        return self.read()

    def _borrow(self) -> Link:
        """A read connection in a transaction; one that was lost while it was idle is replaced."""
        self._check_open()
        while True:
            with self._readers_lock:
                reader = self._readers.pop() if self._readers else None
            fresh = reader is None
            if reader is None:
                reader = self._address.connect()
            try:
                reader.execute(self._reading, prepare=False)
            except BaseException as error:
                reader.close()
                if isinstance(error, DRIVER_ERRORS):
                    if is_lost(error) and not fresh:
                        continue
                    raise translated(error, self.where) from error
                raise
            return reader

    def _give_back(self, reader: Link) -> None:
        if not reader.closed and not reader.in_transaction:
            with self._readers_lock:
                if not self._closed and len(self._readers) < self.options.readers:
                    self._readers.append(reader)
                    return
        reader.close()


def _undo(connection: Link, joined: bool = False) -> None:
    """Roll back what is open; a connection on which that fails is closed."""
    try:
        if not connection.in_transaction:
            return
        if joined:
            connection.execute("ROLLBACK TO resilient")
            connection.execute("RELEASE resilient")
        else:
            connection.execute("ROLLBACK")
    except DRIVER_ERRORS:
        connection.close()
