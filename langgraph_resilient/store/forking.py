"""Keeps `os.fork` out of transactions.

SQLite notes its locks on a file in the memory of the process, too, and a child gets a copy of that. One that
was made in the middle of another thread's transaction would find the file locked for ever.
"""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakSet

_PATIENCE = 5.0
"""Seconds that a fork waits for each transaction under way."""
_locks: WeakSet[Any] = WeakSet()
_held: list[list[Any]] = []


def keep_apart(lock: Any) -> None:
    """No child shall be made while another thread has this lock; forgets it when it is gone."""
    _locks.add(lock)


def _before() -> None:
    _held.append([lock for lock in list(_locks) if lock.acquire(timeout=_PATIENCE)])


def _after() -> None:
    for lock in _held.pop():
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
