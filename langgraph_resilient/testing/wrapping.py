"""Puts code around a method of a class or an object, and takes it away again.

Knows no saver: what is done before and after is given.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Before = Callable[[], Any]
After = Callable[[Any], Any]

_inside: ContextVar[frozenset[tuple[int, str]]] = ContextVar(
    "resilient_inside", default=frozenset()
)
"""Methods that are running here: ``aput`` may be a hop to ``put``, and is one call."""


def surround(
    owner: Any,
    method: str,
    *,
    before: Before | None = None,
    after: After | None = None,
    pause: Callable[[], Any] | None = None,
) -> Callable[[], None]:
    """Put code around ``owner.method``, a function or a coroutine function.

    Args:
        owner: a class, or an object (of which only this one changes).
        method: its name. ``x`` and ``ax`` of one object are one method: where one calls the other,
            the inner call is left alone.
        before: called before it; may raise.
        after: called with what it gave back; may raise.
        pause: what ``before`` is to a coroutine function: gives an awaitable.

    Returns:
        Call it to have the plain method back.
    """
    plain = getattr(owner, method)
    own = method in vars(owner)
    entry = _Entry(owner, method)
    if inspect.iscoroutinefunction(plain):
        begin = pause if pause is not None else _soon(before)
        setattr(owner, method, _coroutine(plain, entry, begin, after))
    else:
        setattr(owner, method, _function(plain, entry, before, after))

    def undo() -> None:
        if own:
            setattr(owner, method, plain)
        else:
            delattr(owner, method)

    return undo


class _Entry:
    """Notes that a method runs here; one of the same object inside it is told so."""

    def __init__(self, owner: Any, method: str):
        self._owner = None if inspect.isclass(owner) else owner
        self._name = method.removeprefix("a")

    @contextmanager
    def __call__(self, args: tuple[Any, ...]) -> Iterator[bool]:
        """Within it the method runs; gives whether it did not before."""
        running = (id(args[0] if self._owner is None else self._owner), self._name)
        inside = _inside.get()
        token = _inside.set(inside | {running})
        try:
            yield running not in inside
        finally:
            _inside.reset(token)


def _function(plain: Any, entry: _Entry, before: Before | None, after: After | None) -> Any:
    @functools.wraps(plain)  # LangGraph looks at signatures
    def watched(*args: Any, **kwargs: Any) -> Any:
        with entry(args) as outermost:
            if outermost and before is not None:
                before()
            found = plain(*args, **kwargs)
            if outermost and after is not None:
                after(found)
            return found

    return watched


def _coroutine(
    plain: Any, entry: _Entry, before: Callable[[], Any] | None, after: After | None
) -> Any:
    @functools.wraps(plain)
    async def watched(*args: Any, **kwargs: Any) -> Any:
        with entry(args) as outermost:
            if outermost and before is not None:
                await before()
            found = await plain(*args, **kwargs)
            if outermost and after is not None:
                after(found)
            return found

    return watched


def _soon(before: Before | None) -> Callable[[], Any] | None:
    async def begin() -> None:
        if before is not None:
            before()

    return begin
