"""The calls that this process is running right now, over all savers on one database.

A row that says ``started`` by this very process is believed only while the call stands here: a
body that was given up leaves its row behind. Also keeps the leases of long calls from running out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from langgraph_resilient.errors import ResilientError
from langgraph_resilient.process import pid

logger = logging.getLogger(__name__)

_flights: dict[tuple[int, bytes, bytes], tuple[int, object]] = {}
"""(process, database, key) to the number of the thread whose lease it needs. The process number
makes a forked child start with none."""


def is_flying(database: bytes, key: bytes) -> bool:
    """Whether this process is running a call."""
    return (pid(), database, key) in _flights


def take_off(database: bytes, key: bytes) -> bool:
    """A call is about to be begun; False when this process is running it already."""
    mine = object()
    # One step of the interpreter: two callers cannot both find it missing.
    return _flights.setdefault((pid(), database, key), (0, mine))[1] is mine


def assign(database: bytes, key: bytes, thread: int) -> None:
    """A call that took off needs the lease of this thread."""
    place = (pid(), database, key)
    _flights[place] = (thread, _flights[place][1])


def land(database: bytes, key: bytes) -> None:
    """A call has ended, however it did."""
    _flights.pop((pid(), database, key), None)


def threads_flying(database: bytes) -> set[int]:
    """The numbers of the threads that have calls running here."""
    me = pid()
    return {
        thread
        for (process, name, _), (thread, _) in list(_flights.items())
        if (process, name) == (me, database) and thread
    }


class Renewer:
    """Renews the leases of threads whose calls take long; its thread ends when nothing runs.

    Args:
        database: tells whose flights it looks at.
        period: seconds between two renewals.
        renew: stores new leases for these threads.
    """

    def __init__(
        self, database: Callable[[], bytes], period: float, renew: Callable[[set[int]], None]
    ):
        self._database = database
        self._period = period
        self._renew = renew
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    def ensure(self) -> None:
        """Calls are running: see that their leases are renewed."""
        thread = self._thread
        if thread is not None and thread.is_alive():
            return
        with self._lock:  # protects the making of the one thread
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="resilient-lease", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """The database is about to be closed."""
        self._wake.set()

    def _run(self) -> None:
        idle = time.monotonic()
        while not self._wake.wait(self._period):
            threads = threads_flying(self._database())
            if threads:
                idle = time.monotonic()
                try:
                    self._renew(threads)
                except ResilientError as error:
                    logger.warning("leases were not renewed: %s", error)
            elif time.monotonic() - idle > 3 * self._period:
                return
