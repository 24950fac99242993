"""The call that is running here: a context variable, so that threads and tasks carry it along."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from langgraph_resilient.ledger.book import Book
from langgraph_resilient.ledger.invocation import CurrentCall, Invocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A recorded call whose body is running."""

    book: Book
    current: CurrentCall
    call: Invocation


_running: ContextVar[Running | None] = ContextVar("resilient_call", default=None)


def innermost() -> Running | None:
    """The recorded call that runs here, if any."""
    return _running.get()


@contextmanager
def running(book: Book, current: CurrentCall, call: Invocation) -> Iterator[None]:
    """Within it, `current_call` gives this call."""
    token = _running.set(Running(book=book, current=current, call=call))
    try:
        yield
    finally:
        _running.reset(token)


def current_call() -> CurrentCall | None:
    """The recorded tool call that is running here; None outside one."""
    found = _running.get()
    return None if found is None else found.current
