"""Named moments of a run's life, and SIGKILL at one of them.

The moments are watched in a child process only, around the methods that the product itself calls: the
product knows nothing of it. ``*.commit`` is the moment right before a COMMIT whose transaction holds
rows of that kind: everything was written, nothing is durable. A statement that is a transaction of its
own writes and commits in one step; its moment is right before it.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from langgraph_resilient.testing.wrapping import surround

POINTS: Final[Mapping[str, str]] = {
    "put.before": "a checkpoint is about to be stored",
    "put.commit": "a checkpoint is written, and not committed",
    "put.after": "a checkpoint is stored, and the graph does not know yet",
    "put_writes.before": "what a task wrote is about to be stored",
    "put_writes.commit": "what a task wrote is written, and not committed",
    "put_writes.after": "what a task wrote is stored, and the graph does not know yet",
    "ledger.begin.before": "a tool call is about to be written down",
    "ledger.begin.after": "a tool call is written down; its body has not begun",
    "ledger.settle.before": "a tool call has ended; that is not written down",
    "ledger.settle.after": "the end of a tool call is written down; its result is not in the state",
    "ledger.commit": "a change of a tool call is written, and not committed",
    "ledger.resolve.before": "somebody's decision about an unknown outcome is not written down yet",
    "ledger.resolve.after": "the decision is written down; the run does not know yet",
    "ledger.replay": "a recorded result is about to be given back",
    "lease.commit": "who runs a thread's calls is written, and not committed",
    "lease.renew.before": "the sign of life for a thread whose calls take long is due",
    "lease.renew.after": "the sign of life is given",
    "answer": "an interrupt is about to be answered",
    "journal.begin.before": "a model call is about to be written down",
    "journal.begin.after": "a model call is written down; the model was not asked",
    "journal.end.before": "a model has answered; that is not written down",
    "journal.end.after": "the answer of a model is written down, and not in the state",
    "journal.commit": "a change of a model call is written, and not committed",
    "stream.chunk.before": "a piece of an answer has come, and is not stored",
    "stream.chunk.after": "a piece of an answer is stored, and not shown",
    "tool.before": "the body of a tool is about to begin",
    "tool.after": "the body of a tool has ended",
    "effect.before": "an effect is about to happen (`EffectLog.record`)",
    "effect.after": "an effect has happened (`EffectLog.record`)",
}
"""The moments that are known by name; `fault_point` makes more."""

KILLED: Final = -int(getattr(signal, "SIGKILL", -15))
"""Exit code of a process that died at a moment."""


def die() -> None:
    """What ``kill -9`` does to this process: no ``finally``, no flush."""
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
    threading.Event().wait()


class Faults:
    """Counts how often each moment is reached, and dies when one is for the n-th time.

    Args:
        point: the moment to die at; None for never.
        hit: at which time, from 1.
    """

    writes = re.compile(
        r"\s*(?:INSERT(?: OR \w+)? INTO|UPDATE)\s+"
        r"(?:resilient_)?(calls|leases|checkpoints|writes|journal)\b",
        re.IGNORECASE,
    )
    """What tells a write to a table that is watched."""
    commits: Mapping[str, str] = {
        "checkpoints": "put.commit",
        "writes": "put_writes.commit",
        "calls": "ledger.commit",
        "leases": "lease.commit",
        "journal": "journal.commit",
    }
    """The moment of a commit, by the table that was written to."""

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

    def install(self, saver: type | None = None) -> None:
        """Watch all `POINTS` in this process, and let `fault_point` count here. Cannot be undone.

        Args:
            saver: the class of the saver, where it is not one that is known.
        """
        global _active
        from langchain_core.tools import BaseTool

        for cls in _savers(saver):
            for method in ("put", "put_writes"):
                self.around(cls, method, method)
                self.around(cls, f"a{method}", method)
        self.around(BaseTool, "run", "tool")
        self.around(BaseTool, "arun", "tool")
        self._watch_records()
        _active = self

    def _watch_records(self) -> None:
        from langgraph_resilient.journal import JournalBook
        from langgraph_resilient.ledger import Book
        from langgraph_resilient.store.quick import QuickWriter

        self.around(Book, "enter", "ledger.begin", after=lambda found: found.begun)
        self.around(Book, "renew", "lease.renew")
        self._watch_settling(Book)
        surround(Book, "note_replay", before=lambda: self.reach("ledger.replay"))
        self.around(JournalBook, "begin", "journal.begin")
        self.around(JournalBook, "reopen", "journal.begin")
        self.around(JournalBook, "end", "journal.end")
        self.around(QuickWriter, "write", "stream.chunk")

    def _watch_settling(self, book: type) -> None:
        """A decision (a human's, a probe's) is told from the end of a body by its event."""
        plain = book.settle  # type: ignore[attr-defined]

        @functools.wraps(plain)
        def watched(*args: Any, **kwargs: Any) -> Any:
            point = "ledger.settle" if kwargs.get("event") is None else "ledger.resolve"
            self.reach(f"{point}.before")
            found = plain(*args, **kwargs)
            self.reach(f"{point}.after")
            return found

        book.settle = watched  # type: ignore[attr-defined]

    def around(
        self, owner: Any, method: str, point: str, after: Callable[[Any], bool] = lambda _: True
    ) -> None:
        """Make two moments of a method: ``<point>.before`` and ``<point>.after``.

        Args:
            owner: the class.
            method: its name; the method may be a coroutine function.
            point: the moments' name.
            after: whether what it gave back makes the second moment one.
        """

        def done(found: Any) -> None:
            if after(found):
                self.reach(f"{point}.after")

        surround(owner, method, before=lambda: self.reach(f"{point}.before"), after=done)

    def trace(self) -> Callable[[str], None]:
        """A callback for ``set_trace_callback`` of a connection that writes."""
        touched: set[str] = set()
        within = False

        def traced(sql: str) -> None:
            nonlocal within
            head = sql.lstrip()[:100]
            if head.startswith("COMMIT"):
                self.committing(frozenset(touched))
            if head.startswith(("COMMIT", "ROLLBACK", "BEGIN")):
                within = head.startswith("BEGIN")
                touched.clear()
                return
            found = self.writes.match(head)
            if found is None:
                return
            touched.add(found[1].lower())
            if not within:  # a statement that is a transaction of its own
                self.committing(frozenset(touched))
                touched.clear()

        return traced

    def committing(self, touched: frozenset[str]) -> None:
        """A transaction that wrote to these tables is about to be committed."""
        for name in sorted(touched):
            if name in self.commits:
                self.reach(self.commits[name])


_active: Faults | None = None
"""What counts in this process; there is one in the children of a sweep only."""


def fault_point(name: str) -> None:
    """A moment of your own code: `crash_sweep` kills there, too. Does nothing elsewhere.

    Args:
        name: its name, such as ``"payment.authorised"``.
    """
    if _active is not None:
        _active.reach(name)


def active() -> Faults | None:
    """What counts in this process: for a stand-in of a service that dies with its client, say."""
    return _active


def chosen(hits: Mapping[str, int], points: Iterable[str] | None) -> list[tuple[str, int]]:
    """Where to kill, from how often each moment was reached.

    Args:
        hits: by moment.
        points: names, or patterns such as ``"put*"``; None for all.

    Raises:
        ConfigurationError: a name or pattern fits no moment.
    """
    from langgraph_resilient.errors import ConfigurationError

    wanted = None if points is None else list(points)
    for pattern in wanted or ():
        if not any(fnmatchcase(name, pattern) for name in {*POINTS, *hits}):
            raise ConfigurationError(
                f"{pattern!r} fits no fault point; there are {', '.join(sorted({*POINTS, *hits}))}"
            )
    return [
        (name, hit)
        for name in sorted(hits, key=_in_order)
        for hit in range(1, hits[name] + 1)
        if wanted is None or any(fnmatchcase(name, pattern) for pattern in wanted)
    ]


def _in_order(name: str) -> tuple[int, str]:
    names = list(POINTS)
    return (names.index(name) if name in POINTS else len(names), name)


def _savers(given: type | None) -> set[type]:
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    from langgraph_resilient.saver import ResilientSaver

    known: tuple[type, ...] = (ResilientSaver, SqliteSaver, AsyncSqliteSaver)
    return {*known, *([given] if given is not None and not issubclass(given, known) else [])}
