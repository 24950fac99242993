"""Commits without waiting for the disk: safe against SIGKILL, not against a power cut.

For rows whose loss costs little and whose writer cannot wait. A connection of its own, so that the
main one keeps its ``synchronous``; writers that meet share a commit.
"""

from __future__ import annotations

import sqlite3
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

from langgraph_resilient.errors import StorageError
from langgraph_resilient.store import queries
from langgraph_resilient.store.failures import DRIVER_ERRORS, translated
from langgraph_resilient.store.sqlite import SqliteDatabase

_PAGES = 4096
"""Length of the write-ahead log at which even this writer copies it."""
Statement = tuple[str, Sequence[Any]]


class Waiting:
    """Statements in the queue of a quick writer."""

    __slots__ = ("done", "error", "statements")

    def __init__(self, statements: Sequence[Statement]):
        self.statements = statements
        self.done = False
        self.error: Exception | None = None


def _fail(batch: Sequence[Waiting], failure: Exception) -> None:
    for waiting in batch:
        waiting.error = failure


class QuickWriter(ABC):
    """Runs named statements in small transactions. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards the connection and the transaction on it."""
        self._queue: deque[Waiting] = deque()

    def write(self, statements: Sequence[Statement]) -> None:
        """Run statements, all or none; on return SIGKILL does not undo them.

        Raises:
            StorageError: they were not stored.
        """
        waiting = Waiting(statements)
        if not self._queue and self._lock.acquire(blocking=False):
            try:  # nobody else writes: no queue is needed
                self._store([waiting])
            finally:
                self._lock.release()
            if waiting.error is not None:
                raise waiting.error
            return
        self._queue.append(waiting)
        with self._lock:
            if not waiting.done:
                self._commit()
        if waiting.error is not None:
            raise waiting.error

    @abstractmethod
    def close(self) -> None:
        """Close the connection of its own."""

    def _commit(self) -> None:
        batch: list[Waiting] = []
        while self._queue:
            batch.append(self._queue.popleft())
        self._store(batch)

    @abstractmethod
    def _store(self, batch: list[Waiting]) -> None:
        """Run a batch in one transaction and note how it ended; under the lock."""


class SqliteQuickWriter(QuickWriter):
    """The quick writer of a SQLite database.

    Args:
        db: whose file it writes to; where the database lives in one connection, that one is used.
    """

    def __init__(self, db: SqliteDatabase):
        super().__init__()
        self._db = db
        self._sql = queries.load()
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        """Close the connection of its own."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _store(self, batch: list[Waiting]) -> None:
        # The main writer's lock: the two connections must not wait for each other inside SQLite,
        # which would sleep for milliseconds.
        with self._db.lock:
            try:
                self._run(batch)
            except DRIVER_ERRORS as error:
                _fail(batch, translated(error, self._db.where))
            except BaseException:
                # The others did nothing wrong, but what they queued was not stored either.
                _fail(batch, StorageError(f"{self._db.where}: a commit was interrupted; try again"))
                raise
            finally:
                for waiting in batch:
                    waiting.done = True
            self._db.note_commit()

    def _run(self, batch: list[Waiting]) -> None:
        connection = self._opened()
        own = not connection.in_transaction  # a user's connection may be in one
        execute = connection.execute
        # In autocommit mode a statement is a transaction of its own; a user's connection may be in
        # another mode, in which it would leave one open.
        if not self._db.single and len(batch) == 1 and len(batch[0].statements) == 1:
            name, parameters = batch[0].statements[0]
            execute(self._sql[name], parameters)
            return
        if own:
            execute("BEGIN IMMEDIATE")
        try:
            for waiting in batch:
                for name, parameters in waiting.statements:
                    execute(self._sql[name], parameters)
            if own:
                execute("COMMIT")
        except BaseException:
            if own and connection.in_transaction:
                connection.rollback()
            raise

    def _opened(self) -> sqlite3.Connection:
        if self._db.single:
            return self._db.connection
        if self._connection is None:
            self._db.connection  # noqa: B018 - raises SaverClosed, creates the file
            self._connection = self._db.target.open(self._db.options)
            self._connection.execute("PRAGMA synchronous = NORMAL")
            # Copying the log into the file waits for the disk: the main writer does it, or the
            # copier when nothing is written.
            self._connection.execute(f"PRAGMA wal_autocheckpoint = {int(_PAGES)}")
        return self._connection
