"""Slow and failing databases: a saver's methods with something in front of them, for a test's while."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from langgraph_resilient.errors import ConfigurationError, DatabaseUnreachable
from langgraph_resilient.testing.wrapping import surround

S = TypeVar("S")
METHODS = ("put", "put_writes", "get_tuple", "delete_thread")


@contextmanager
def slow(saver: S, **seconds: float) -> Iterator[S]:
    """A saver whose database takes its time: ``with slow(saver, put=0.05, put_writes=0.05):``.

    Args:
        saver: any saver; only this object changes, and only within the ``with`` block.
        **seconds: by method, how long each call takes more. The coroutine of the same name waits
            as long, without holding up the event loop.
    """
    undo: list[Callable[[], None]] = []
    try:
        for method, delay in seconds.items():
            undo += _both(saver, method, _sleeping(delay), _pausing(delay))
        yield saver
    finally:
        for step in reversed(undo):
            step()


def _sleeping(delay: float) -> Callable[[], None]:
    return lambda: time.sleep(delay)


def _pausing(delay: float) -> Callable[[], Any]:
    return lambda: asyncio.sleep(delay)


@contextmanager
def failing(
    saver: S,
    at: str = "put",
    *,
    times: int = 1,
    skip: int = 0,
    error: BaseException | Callable[[], BaseException] | None = None,
    stored: bool = False,
) -> Iterator[S]:
    """A saver whose database fails: ``with failing(saver, at="put", times=1):``.

    Args:
        saver: any saver; only this object changes, and only within the ``with`` block.
        at: the method that fails, also as a coroutine.
        times: how many calls fail.
        skip: how many calls work before.
        error: what is raised, or what makes it (an exception class, too); by default
            `DatabaseUnreachable`.
        stored: whether the call does its work before it fails, as when an acknowledgement is lost.
    """
    numbers = iter(range(1 << 62))
    lock = threading.Lock()

    def fail(_: Any = None) -> None:
        with lock:  # protects the count: writes may come from several threads
            number = next(numbers)
        if skip <= number < skip + times:
            raise _made(error, at)

    undo = _both(saver, at, after=fail) if stored else _both(saver, at, fail)
    try:
        yield saver
    finally:
        for step in reversed(undo):
            step()


def _made(error: BaseException | Callable[[], BaseException] | None, at: str) -> BaseException:
    if error is None:
        return DatabaseUnreachable(f"{at} failed: a test wants it so")
    return error if isinstance(error, BaseException) else error()


def _both(
    saver: Any,
    method: str,
    before: Callable[[], None] | None = None,
    pause: Callable[[], Any] | None = None,
    after: Callable[[Any], None] | None = None,
) -> list[Callable[[], None]]:
    """Put something around a method and its coroutine."""
    if method not in METHODS:
        raise ConfigurationError(f"{method!r} is none of {', '.join(METHODS)}")
    return [
        surround(saver, name, before=before, pause=pause, after=after)
        for name in (method, f"a{method}")
    ]
