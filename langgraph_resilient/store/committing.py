"""Group commit: writers queue their work, and whoever gets the lock commits what all have queued.

Shared by all databases: knows the queue and savepoints, and no driver. Each writer returns only when
its own work is durable.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from langgraph_resilient.options import Options
from langgraph_resilient.store.session import Session
from langgraph_resilient.store.target import Target

PATIENCE = 250
"""Milliseconds to wait for others before the space that is free is left as it is."""


class Pending:
    """Work in the queue of the writer."""

    __slots__ = ("done", "error", "failed", "result", "work")

    def __init__(self, work: Callable[[Session], Any], failed: Callable[[], None] | None):
        self.work = work
        self.failed = failed
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None


class Connection(Protocol):
    """What `do` needs of a driver's connection."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open on it."""

    def execute(self, sql: str, /) -> Any:
        """Run a statement."""


class Database(ABC):
    """One database: commits in groups, hands out read sessions, closes.

    Args:
        target: where it is.
        options: tunables.
    """

    own: bool
    """Whether its connections are ours."""
    is_file: bool
    """Whether it is SQLite's: one file (or memory) with pages that we look after, in which tables of
    ``SqliteSaver`` may be."""
    where: str
    """What messages call it."""

    def __init__(self, target: Target, options: Options):
        self.target = target
        self.options = options
        self.lock = threading.RLock()
        """Guards the write connection, and every use of a single connection."""
        self.read_only = False
        self.missing: frozenset[str] = frozenset()
        """Queries about tables that the file, of an older schema, has not: they find nothing."""
        self._queue: deque[Pending] = deque()
        self._queue_lock = threading.Lock()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    @abstractmethod
    def single(self) -> bool:
        """Whether reads share the one connection with writes."""

    @property
    @abstractmethod
    def connection(self) -> Any:
        """The write connection; opened on first use."""

    @abstractmethod
    def close(self) -> None:
        """Finish queued work and close every connection of our own. Closing twice is harmless."""

    @abstractmethod
    def disconnect(self) -> None:
        """Close our connections without closing the database: the next use opens them anew."""

    @abstractmethod
    def shrink(self) -> str:
        """Give free space back; why not, or nothing when it is done. Waits for nobody."""

    @abstractmethod
    def read(self) -> AbstractContextManager[Session]:
        """A session whose queries all see one state of the database."""

    @abstractmethod
    def glance(self) -> AbstractContextManager[Session]:
        """`read` for a few rows, by the shortest way."""

    @property
    def now(self) -> Callable[[], float]:
        """The clock that all machines with this database share, in seconds since 1970."""
        return time.time

    # --- writing ------------------------------------------------------------------------------

    def enqueue(
        self, work: Callable[[Session], Any], failed: Callable[[], None] | None = None
    ) -> Pending:
        """Queue work for the next commit. The order of queueing is the order of doing.

        `failed` is called as soon as it is known that the work was not stored, before any work
        that was queued later is done.
        """
        pending = Pending(work, failed)
        with self._queue_lock:
            self._queue.append(pending)
        return pending

    def finish(self, pending: Pending) -> Any:
        """Return when `pending` is durable; commits everything queued if nobody else does.

        Raises:
            Conflict: another writer was faster.
            ResilientError: it could not be stored; nothing of it was.
        """
        with self.lock:  # protects the write connection and the transaction on it
            if not pending.done:
                try:
                    self._commit_queue()
                except BaseException as error:
                    self._withdraw(pending, error)
                    raise
        if pending.error is not None:
            raise pending.error
        return pending.result

    def write(self, work: Callable[[Session], Any]) -> Any:
        """Do `work` in a write transaction of its own group; durable on return."""
        return self.finish(self.enqueue(work))

    @abstractmethod
    def step(self, name: str, parameters: Sequence[Any]) -> int:
        """Run one statement in a write transaction of its own; how many rows it changed.

        Durable on return.

        Raises:
            ResilientError: it could not be stored.
        """

    def _withdraw(self, pending: Pending, error: BaseException) -> None:
        """Its owner was interrupted: it will not be stored, and what builds on it must not be."""
        with self._queue_lock:
            if pending not in self._queue:
                return
            self._queue.remove(pending)
        _fail(pending, error)

    def _commit_queue(self) -> None:
        with self._queue_lock:
            batch = list(self._queue)
            self._queue.clear()
        try:
            self._commit(batch)
        except Exception as error:  # noqa: BLE001 - raised again by whoever waits for each piece
            for pending in batch:
                if not pending.done:
                    _fail(pending, pending.error or error)
        except BaseException:
            # Ctrl-C hit the thread that commits for others: their work goes back to the queue.
            with self._queue_lock:
                self._queue.extendleft(p for p in reversed(batch) if not p.done)
            raise

    @abstractmethod
    def _commit(self, batch: list[Pending]) -> None:
        """Do a batch of work in one transaction."""


def _fail(pending: Pending, error: BaseException) -> None:
    pending.error = error
    pending.done = True
    if pending.failed is not None:
        pending.failed()


def do(connection: Connection, session: Session, pending: Pending, *, alone: bool) -> None:
    """One queued piece of work; its failure undoes only itself, unless it is alone."""
    if alone:
        pending.result = pending.work(session)
        return
    connection.execute("SAVEPOINT piece")
    try:
        pending.result = pending.work(session)
    except Exception as error:
        if not connection.in_transaction:
            raise  # a full disk or a lost line, say, undid the whole transaction
        connection.execute("ROLLBACK TO piece")
        _fail(pending, error)
    connection.execute("RELEASE piece")
