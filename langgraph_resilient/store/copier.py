"""Empties SQLite's write-ahead log while nobody writes, so that it takes no space.

SQLite copies the log into the file itself while there is work (``wal_autocheckpoint``), but never
makes the log shorter.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress

from langgraph_resilient.errors import ResilientError
from langgraph_resilient.store.forking import keep_apart

_IDLE = 0.05
"""Seconds without a commit after which the log is emptied and cut."""


class WalCopier:
    """One daemon thread for one database; it starts with the first commit.

    Args:
        connect: opens a connection to the database.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection]):
        self._connect = connect
        self._copying = threading.Lock()
        """Held while the log is copied, which locks the file."""
        keep_apart(self._copying)
        self._commits = 0
        self._watching = False
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def note(self) -> None:
        """Something was committed. Called under the writer's lock; costs nothing."""
        self._commits += 1
        if self._watching:
            return
        self._watching = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="resilient-wal", daemon=True)
            self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        """End the thread; returns when it has closed its connection."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=10)

    def _run(self) -> None:
        try:
            connection = self._connect()
        except ResilientError:
            return  # the log stays as long as it was; nothing depends on this
        try:
            connection.execute("PRAGMA busy_timeout = 0")
            while not self._stopping.is_set():
                self._wake.wait()
                self._wake.clear()
                self._when_idle(connection)
        except sqlite3.Error:
            return  # as above
        finally:
            connection.close()

    def _when_idle(self, connection: sqlite3.Connection) -> None:
        seen = -1
        while seen != self._commits:
            seen = self._commits
            if self._stopping.wait(_IDLE):
                return
        # A commit from here on wakes the thread again; one just before is seen next time.
        self._watching = False
        with self._copying, suppress(sqlite3.OperationalError):  # busy: after the next commit, then
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
