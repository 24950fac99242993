"""What this process knows of stored contents: decoded values by number, numbers by address."""

from __future__ import annotations

import threading
from typing import Any


class Cache:
    """A bounded map in two generations: cheap hits, no bookkeeping per hit.

    Args:
        limit: the sum of sizes that may be kept (units are the caller's).
    """

    def __init__(self, limit: int):
        self._limit = max(limit // 2, 1)
        self._young: dict[Any, Any] = {}
        self._old: dict[Any, Any] = {}
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: Any) -> Any:
        """The value of a key, or None."""
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self._young[key] = found
        return found

    def many(self, keys: list[Any]) -> list[Any]:
        """The values of many keys, None where unknown."""
        return list(map(self.get, keys)) if self._old else list(map(self._young.get, keys))

    def put(self, key: Any, value: Any, size: int = 1) -> None:
        """Remember a value."""
        with self._lock:  # protects the size and the change of generations
            self._young[key] = value
            self._size += size
            if self._size > self._limit:
                self._old, self._young, self._size = self._young, {}, 0

    def update(self, values: dict[Any, Any], size: int) -> None:
        """Remember many values, whose sizes are `size` together."""
        with self._lock:  # protects the size and the change of generations
            self._young.update(values)
            self._size += size
            if self._size > self._limit:
                self._old, self._young, self._size = self._young, {}, 0

    def discard(self, key: Any) -> None:
        """Forget one key."""
        self._young.pop(key, None)
        self._old.pop(key, None)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._young, self._old, self._size = {}, {}, 0
