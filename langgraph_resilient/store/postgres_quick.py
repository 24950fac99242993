"""Commits to PostgreSQL without waiting for its disk: safe against SIGKILL of any client.

Takes no lock of the whole database, since what is written quickly (chunks of streams) only needs that
its model call is not deleted meanwhile: the statements lock that row. Everything here may be done twice
with one outcome, so a lost line or a wait for a deletion is met by doing it again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from langgraph_resilient.errors import StorageError
from langgraph_resilient.store import dialect
from langgraph_resilient.store.committing import Database
from langgraph_resilient.store.links import Address, Link
from langgraph_resilient.store.postgres_failures import DRIVER_ERRORS, WAITED, is_lost, translated
from langgraph_resilient.store.quick import QuickWriter, Waiting

_SETTINGS = "SET synchronous_commit = off; SET lock_timeout = 400"
"""Less than the second after which a server looks for writers that wait for each other: this one, which
can do its work again, is the one that gives way."""


class PostgresQuickWriter(QuickWriter):
    """The quick writer of a database on a server.

    Args:
        db: the database.
    """

    def __init__(self, db: Database):
        super().__init__()
        self._db = db
        self._address = Address(db.target.name)
        self._sql = dialect.catalogue()
        self._connection: Link | None = None

    def close(self) -> None:
        """Close the connection of its own."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _store(self, batch: list[Waiting]) -> None:
        failure: Exception = StorageError(f"{self._db.where}: a commit was interrupted; try again")
        stored = False
        try:
            self._persist(batch)
            stored = True
        except StorageError as error:
            failure = error
        finally:  # whoever else is in the batch did nothing wrong, but it was not stored either
            for waiting in batch:
                waiting.error = None if stored else failure
                waiting.done = True

    def _persist(self, batch: list[Waiting]) -> None:
        deadline = time.monotonic() + self._db.options.busy_timeout
        lost = False
        while True:
            try:
                self._run(batch)
                return
            except DRIVER_ERRORS as error:
                if error.sqlstate in WAITED and time.monotonic() < deadline:
                    continue
                if lost or not is_lost(error):
                    raise translated(error, self._db.where) from error
                lost = True

    def _run(self, batch: list[Waiting]) -> None:
        connection = self._opened()
        statements = [statement for waiting in batch for statement in waiting.statements]
        try:
            if len(statements) == 1:
                self._execute(connection, statements)
            else:
                with connection.transaction():
                    self._execute(connection, statements)
        except BaseException:
            if connection.closed or connection.in_transaction:
                self._drop()
            raise

    def _execute(
        self, connection: Link, statements: Sequence[tuple[str, Sequence[object]]]
    ) -> None:
        for name, parameters in statements:
            connection.execute(self._sql[name], parameters)

    def _opened(self) -> Link:
        if self._db.closed:
            self._db.connection  # noqa: B018 - raises SaverClosed with its message
        if self._connection is not None and self._connection.closed:
            self._connection = None
        if self._connection is None:
            self._connection = self._address.connect()
            self._connection.execute(_SETTINGS.encode(), prepare=False)
        return self._connection
