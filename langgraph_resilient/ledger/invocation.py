"""What an integration tells the ledger about one call: how it is named, run and asked about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from langgraph_resilient.ledger.policy import ToolPolicy
from langgraph_resilient.records import CallName, Effect

SPENT = "spent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The checkpoint that holds the request for a call; an external call waits until it is stored."""

    checkpoint_ns: str
    checkpoint_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentCall:
    """What a tool may know of the call it is running for.

    Attributes:
        key: the call's key in hexadecimal.
        idempotency_key: what to send to a service so that it does one thing once; the same in
            every attempt of this call, and another one for every other call.
        tool: the tool's name.
        thread_id: the thread that asked.
        attempt: 1 for the first run of the body.
        epoch: grows whenever another process takes the thread over: a fencing token.
        interrupted: whether an earlier attempt was begun and nobody knows how it ended.
        anew: whether it had succeeded, and runs once more because the run asked for that.
    """

    key: str
    idempotency_key: str
    tool: str
    thread_id: str
    attempt: int
    epoch: int
    interrupted: bool
    anew: bool = False


@dataclass(slots=True, kw_only=True)
class Invocation:
    """One call on its way through the ledger.

    Attributes:
        name: what the call is.
        policy: how it is treated; its effect is set.
        arguments: for the record, so that a human can see what was asked.
        body: runs the tool; a coroutine function in async graphs.
        ask: puts a question to a human: gives the answer, or raises what suspends the graph. Under
            `SPENT` the question holds what `bare` gave before; None when it was never put.
        bare: the digest of the answer without a question's id that this run was given, if any.
        tell: a result for the model that says a text instead of what the tool would have said.
        restamp: fits a result that was recorded for another request to this one.
        asked: what must be durable before an external effect starts; None when there is nothing.
        position: where among the calls of its message it stands.
        weak: whether there was no AI message to tell it by.
        reexecute: whether this run's config wants it run anew.
        cleared: whether its outcome was unknown, and somebody has said that it may run again: that
            holds for its steps, too.
        answers: what humans answered to ``interrupt()`` inside the tool, in order.
    """

    name: CallName
    policy: ToolPolicy
    arguments: Any
    body: Callable[[CurrentCall], Any]
    ask: Callable[[dict[str, Any]], Any]
    tell: Callable[[str], Any]
    bare: Callable[[], str | None] = lambda: None
    restamp: Callable[[Any], Any] = lambda result: result
    asked: Asked | None = None
    position: int = 0
    weak: bool = False
    reexecute: bool = False
    cleared: bool = False
    answers: list[Any] = field(default_factory=list)

    @property
    def effect(self) -> Effect:
        """The effect class that holds."""
        assert isinstance(self.policy.effect, Effect)
        return self.policy.effect
