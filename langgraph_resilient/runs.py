"""Runs of this process: which recorded model calls a run has made or been given already.

A graph's run begins when LangGraph reads the thread's newest checkpoint for it. What was recorded
in an earlier run, of this process or of one that died, answers a call once; what this run records
answers nothing in this run, so that a node that asks the same thing twice gets two answers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

_THREADS = 4096


class Runs:
    """By thread: the run's number, and the model calls that were used in it, with their tasks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: OrderedDict[str, dict[int, bytes]] = OrderedDict()
        self._tasks: OrderedDict[str, dict[int, bytes]] = OrderedDict()

    def begin(self, thread_id: str) -> None:
        """A run of a thread's graph begins: every call that is not retired may answer once."""
        with self._lock:  # protects both tables
            self._used.pop(thread_id, None)

    def is_used(self, thread_id: str, call: int) -> bool:
        """Whether a model call was made in this run, or given back in it."""
        return call in self._used.get(thread_id, ())

    def use(self, thread_id: str, call: int, task: bytes) -> bool:
        """This run makes or gives back a call, for a task; False when it has done so before."""
        with self._lock:
            used = self._used.setdefault(thread_id, {})
            if call in used:
                return False
            used[call] = task
            self._tasks.setdefault(thread_id, {})[call] = task
            for table in (self._used, self._tasks):
                table.move_to_end(thread_id)
                while len(table) > _THREADS:
                    table.popitem(last=False)
            return True

    def give_back(self, thread_id: str, call: int) -> None:
        """A call that this run was to make, and did not."""
        with self._lock:
            self._used.get(thread_id, {}).pop(call, None)

    def task_of(self, thread_id: str, call: int) -> bytes | None:
        """The task that a call was last made or given back for."""
        return self._tasks.get(thread_id, {}).get(call)

    def has(self, thread_id: str) -> bool:
        """Whether this process has made or given back model calls of a thread."""
        return thread_id in self._tasks

    def forget(self, thread_id: str, calls: list[int]) -> None:
        """Keep of a thread only these calls; the others are retired."""
        with self._lock:
            tasks = self._tasks.get(thread_id)
            if tasks is not None:
                self._tasks[thread_id] = {c: t for c, t in tasks.items() if c in calls}
