"""Savers on a file, as context managers, for test suites that are given a factory by name."""

from __future__ import annotations

from typing import Any

from langgraph_resilient.saver import ResilientSaver


class _Factory:
    """Called with a path, gives a context manager for a saver on that file.

    Attributes:
        hooks: what a richer test suite may plug in, by name.
    """

    def __init__(self) -> None:
        self.hooks: dict[str, Any] = {}

    def __call__(self, path: str) -> Any:
        return ResilientSaver.from_conn_string(path)


make_saver: Any = _Factory()
"""``with make_saver(path) as saver``"""
amake_saver: Any = _Factory()
"""``async with amake_saver(path) as saver``"""
