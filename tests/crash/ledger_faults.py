"""Named moments of a tool call's life, and SIGKILL at one of them.

More of them, and finer ones, than the crash kit knows, whose machinery they use. ``commit.*`` is the
moment right before a COMMIT whose transaction holds rows of that table: everything was written,
nothing is durable.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from langgraph_resilient import ResilientSaver
from langgraph_resilient.ledger import Book
from langgraph_resilient.testing import Faults as CrashKitFaults
from langgraph_resilient.testing.faults import die

__all__ = ["Faults", "die"]


class Faults(CrashKitFaults):
    """Counts how often each moment is reached, and dies when one is for the n-th time."""

    writes = re.compile(
        r"\s*(?:INSERT(?: OR \w+)? INTO|UPDATE)\s+"
        r"(?:resilient_)?(calls|leases|checkpoints|writes)\b",
        re.IGNORECASE,
    )

    def install(self, saver: type | None = None) -> None:
        """Watch the savers' and the ledger's methods, in this process."""
        for cls in (ResilientSaver, SqliteSaver):
            self.around(cls, "put", "put")
            self.around(cls, "put_writes", "put_writes")
        self.around(AsyncSqliteSaver, "aput", "put")
        self.around(AsyncSqliteSaver, "aput_writes", "put_writes")
        self.around(Book, "enter", "begin", after=lambda found: found.begun)
        self.around(Book, "renew", "renew")
        self.around(Book, "note_replay", "replay")
        self._around_settle()

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

    def committing(self, touched: frozenset[str]) -> None:
        for name in sorted(touched):
            self.reach(f"commit.{name}")
        if touched == {"leases"}:
            self.reach("commit.renewal")
