"""Named moments of a tool call's life, and SIGKILL at one of them.

Installed in a forked child only, around the methods that the product itself calls; the product
knows nothing of it. ``commit.*`` is the moment right before a COMMIT whose transaction holds rows
of that table: everything was written, nothing is durable.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from langgraph_resilient import ResilientSaver
from langgraph_resilient.ledger import Book

_WRITE = re.compile(
    r"\s*(?:INSERT(?: OR \w+)? INTO|UPDATE)\s+(?:resilient_)?(calls|leases|checkpoints|writes)\b",
    re.IGNORECASE,
)


def die() -> None:
    """What ``kill -9`` does to this process: no ``finally``, no flush."""
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()


class Faults:
    """Counts how often each moment is reached, and dies when one is for the n-th time.

    Args:
        point: the moment to die at; None for never.
        hit: at which time, from 1.
    """

    writes = _WRITE
    """What tells a write to a table that is watched."""

    def __init__(self, point: str | None = None, hit: int = 1):
        self.point = point
        self.hit = hit
        self.hits: Counter[str] = Counter()
        self._lock = threading.Lock()

    def due(self, point: str) -> bool:
        """Note a moment; whether it is the one to die at."""
        with self._lock:  # protects the counts: parallel calls reach one moment at once
            self.hits[point] += 1
            return point == self.point and self.hits[point] == self.hit

    def reach(self, point: str) -> None:
        """Note a moment, and die if it is the one."""
        if self.due(point):
            die()

    # --- where it looks -----------------------------------------------------------------------

    def install(self) -> None:
        """Watch the savers' and the ledger's methods, in this process."""
        for cls in (ResilientSaver, SqliteSaver):
            self._around(cls, "put", "put")
            self._around(cls, "put_writes", "put_writes")
        self._around_async(AsyncSqliteSaver, "aput", "put")
        self._around_async(AsyncSqliteSaver, "aput_writes", "put_writes")
        self._around(Book, "enter", "begin", after=lambda found: found.begun)
        self._around(Book, "renew", "renew")
        self._around(Book, "note_replay", "replay")
        self._around_settle()

    def _around(
        self, cls: Any, method: str, point: str, after: Callable[[Any], bool] = lambda _: True
    ) -> None:
        plain = getattr(cls, method)

        @functools.wraps(plain)  # LangGraph looks at the signature
        def watched(*args: Any, **kwargs: Any) -> Any:
            self.reach(f"{point}.before")
            found = plain(*args, **kwargs)
            if after(found):
                self.reach(f"{point}.after")
            return found

        setattr(cls, method, watched)

    def _around_async(self, cls: Any, method: str, point: str) -> None:
        plain = getattr(cls, method)

        @functools.wraps(plain)
        async def watched(*args: Any, **kwargs: Any) -> Any:
            self.reach(f"{point}.before")
            found = await plain(*args, **kwargs)
            self.reach(f"{point}.after")
            return found

        setattr(cls, method, watched)

    def _around_settle(self) -> None:
        plain = Book.settle

        @functools.wraps(plain)
        def watched(book: Book, record: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
            # A decision (a human's, a probe's) is told from the end of a body by its event.
            what = "resolve" if kwargs.get("event") is not None else "settle"
            point = f"{what}.{state.name.lower()}"
            self.reach(f"{point}.before")
            found = plain(book, record, state, *args, **kwargs)
            self.reach(f"{point}.after")
            return found

        Book.settle = watched  # type: ignore[method-assign]

    def trace(self) -> Callable[[str], None]:
        """A callback for ``set_trace_callback`` of a connection that writes."""
        touched: set[str] = set()

        def traced(sql: str) -> None:
            head = sql.lstrip()[:100]
            if head.startswith("COMMIT"):
                self._committing(touched)
            if head.startswith(("COMMIT", "ROLLBACK", "BEGIN")):
                touched.clear()
                return
            found = self.writes.match(head)
            if found is not None:
                touched.add(found[1].lower())

        return traced

    def _committing(self, touched: set[str]) -> None:
        for name in sorted(touched):
            self.reach(f"commit.{name}")
        if touched == {"leases"}:
            self.reach("commit.renewal")
