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
    """By thread: where its run began, and the model calls that were used in it, for which task."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: OrderedDict[str, dict[int, bytes]] = OrderedDict()
        self._tasks: OrderedDict[str, dict[int, bytes]] = OrderedDict()
        self._heads: OrderedDict[str, bytes] = OrderedDict()
        self._epochs: dict[str, int] = {}
        """By thread: the epoch under which its run has it, where writers are fenced."""
        self._inside: set[bytes] = set()
        """Keys of tool calls under way inside which models were asked."""

    def begin(self, thread_id: str, head: bytes = b"") -> None:
        """A run of a thread's graph begins: every call that is not retired may answer once.

        Args:
            thread_id: the thread.
            head: id of the root checkpoint that it goes on from; empty when there is none.
        """
        with self._lock:  # protects the tables
            self._used.pop(thread_id, None)
            self._heads[thread_id] = head
            self._heads.move_to_end(thread_id)
            while len(self._heads) > _THREADS:
                self._heads.popitem(last=False)

    def head_of(self, thread_id: str) -> bytes | None:
        """Where the thread's run began; None when no run of it is known here."""
        return self._heads.get(thread_id)

    def take(self, thread_id: str, epoch: int | None) -> None:
        """A run has its thread under this epoch; None: a new run is about to take it."""
        with self._lock:
            self._epochs.pop(thread_id, None)
            if epoch is not None:
                self._epochs[thread_id] = epoch
                while len(self._epochs) > _THREADS:
                    del self._epochs[next(iter(self._epochs))]

    def epoch_of(self, thread_id: str) -> int | None:
        """The epoch under which the thread's run has it; None where writers are not fenced."""
        return self._epochs.get(thread_id)

    def root_of(self, thread_id: str, call: int) -> bytes | None:
        """The root checkpoint under which this run made or gave back a call; None if it did not."""
        return self._used.get(thread_id, {}).get(call)

    def is_used(self, thread_id: str, call: int) -> bool:
        """Whether a model call was made in this run, or given back in it."""
        return call in self._used.get(thread_id, ())

    def use(self, thread_id: str, call: int, task: bytes, root: bytes = b"") -> bool:
        """This run makes or gives back a call; False when it has done so before.

        Args:
            thread_id: the thread.
            call: the model call.
            task: for which task of the root graph.
            root: under which checkpoint of the root graph.
        """
        with self._lock:
            used = self._used.setdefault(thread_id, {})
            if call in used:
                return False
            used[call] = root
            self._tasks.setdefault(thread_id, {})[call] = task
            for table in (self._used, self._tasks):
                table.move_to_end(thread_id)
                while len(table) > _THREADS:
                    table.popitem(last=False)
            return True

    def enter(self, key: bytes) -> None:
        """A model was asked, or its answer given back, inside a tool call."""
        self._inside.add(key)

    def ends_inside(self, key: bytes) -> bool:
        """Whether a model was asked inside a tool call, which ends now."""
        if key not in self._inside:
            return False
        self._inside.discard(key)
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
