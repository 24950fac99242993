"""Tool calls for the ledger's tests, without a graph: invocations, and owners that are not this process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from langchain_core.messages import ToolMessage

from langgraph_resilient import ResilientSaver
from langgraph_resilient._aio import drive
from langgraph_resilient.ledger import Asked, Book, Invocation, ToolPolicy, flights, tool_flow
from langgraph_resilient.ledger.keys import digest_of
from langgraph_resilient.ledger.owner import this_process
from langgraph_resilient.records import CallName, CallRecord, CallState, Owner

LONG = "a long line of words that are stored once " * 300


class Counter:
    """A body that counts how often it ran."""

    def __init__(self, result: Any = "sent") -> None:
        self.result, self.runs = result, 0

    def __call__(self, current: Any) -> Any:
        self.runs += 1
        return self.result


class Asking(Exception):
    """A question was put to a human."""


def _ask(question: dict[str, Any]) -> Any:
    raise Asking(question)


def answer(text: Any, id: str = "c", **more: Any) -> ToolMessage:
    """What a tool gives back."""
    return ToolMessage(content=text, tool_call_id=id, name="send", id=f"r-{id}", **more)


def call(
    thread: str = "t",
    id: str = "c",
    *,
    tool: str = "send",
    arguments: Any = None,
    effect: Any = "external",
    body: Callable[[Any], Any] | None = None,
    asked: Asked | None = None,
    parent: bytes = b"",
    ask: Callable[[dict[str, Any]], Any] = _ask,
    **policy: Any,
) -> Invocation:
    """A call as an integration hands it to the ledger."""
    arguments = {"to": "someone", "n": 1} if arguments is None else arguments
    rules = ToolPolicy(effect=effect, **policy)
    name = CallName(
        thread_id=thread,
        parent=parent,
        message_id="m1",
        tool_call_id=id,
        tool=tool,
        arguments=digest_of(arguments),
        business=rules.business_key(tool, arguments),
        everywhere=rules.scope == "global",
    )
    return Invocation(
        name=name,
        policy=rules,
        arguments=arguments,
        body=body or (lambda current: answer(f"sent {id}", id)),
        ask=ask,
        tell=lambda text: answer(text, id, status="error"),
        asked=asked,
    )


def run(saver: ResilientSaver, invocation: Invocation) -> Any:
    """Run a call through the ledger, or get what is recorded of it."""
    return drive(tool_flow(saver.ledger.book, invocation))


def times_out(current: Any) -> Any:
    """A body after which nobody knows."""
    raise TimeoutError("slow")


def make_unknown(saver: ResilientSaver, invocation: Invocation) -> str:
    """Run a call whose outcome stays unknown; its key."""
    with suppress(TimeoutError):
        run(saver, replace(invocation, body=times_out))
    return saver.ledger.unknown(invocation.name.thread_id)[-1].key


# --- other owners ---------------------------------------------------------------------------


def dead_owner() -> Owner:
    """A process of this host that is no more."""
    me = this_process()
    return replace(me, started=me.started - 1)


def far_owner() -> Owner:
    """A process of another machine; only its lease tells whether it lives."""
    return Owner(boot="far boot", host="far/", pid=7, started=7)


def book_of(saver: ResilientSaver, owner: Owner, **more: Any) -> Book:
    """The ledger's rows as another process would write them."""
    return Book(saver._engine, saver._reading_now, owner=lambda: owner, **more)


def begin(book: Book, invocation: Invocation) -> CallRecord:
    """Begin a call and forget about it: its row says ``started``, and nobody here is running it."""
    entered = book.enter(invocation)
    assert entered.begun, entered
    assert entered.record is not None
    flights.land(book.engine.scope, entered.record.key)
    return entered.record


def settle(book: Book, record: CallRecord, result: Any = "done") -> CallRecord:
    return book.settle(record, CallState.SUCCEEDED, {"result": result})
