"""Which AI message asked for a call, and which of its calls it is."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from langgraph_resilient.integrations.runtime import Place

_COUNTS_KEPT = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where a call was asked for.

    Attributes:
        message_id: id of the AI message; empty when there is none, and the call is weak.
        position: where among its calls this one stands.
        calls: how many calls the message has.
        path: what tells it from equal calls.
    """

    message_id: str = ""
    position: int = 0
    calls: int = 1
    path: str = ""

    @property
    def weak(self) -> bool:
        """Whether no AI message tells the call apart."""
        return not self.message_id


def locate(place: Place, state: Any, call: Mapping[str, Any]) -> Location:
    """Where a tool call was asked for, from the newest message that holds it."""
    for message in reversed(list(_messages(state))):
        if not isinstance(message, AIMessage):
            continue
        found = _positions(message.tool_calls, call)
        if found:
            position, path = _which(place, message, call, found)
            return Location(
                message_id=message.id or f"#{_index(state, message)}",
                position=position,
                calls=len(message.tool_calls),
                path=path,
            )
    return Location(path=ordinal_path(place, (call.get("id"), call.get("name"))))


def _messages(state: Any) -> Iterable[BaseMessage]:
    """The messages in a state: a list of them, or lists of them in a mapping or an object."""
    if isinstance(state, BaseMessage):
        yield state
    elif isinstance(state, (list, tuple)):
        yield from (item for item in state if isinstance(item, BaseMessage))
    elif isinstance(state, Mapping):
        for value in state.values():
            if isinstance(value, (list, BaseMessage)):
                yield from _messages(value)
    elif hasattr(state, "__dict__"):
        yield from _messages(vars(state))


def _index(state: Any, message: AIMessage) -> int:
    return next(index for index, item in enumerate(_messages(state)) if item is message)


def _positions(calls: Sequence[Mapping[str, Any]], call: Mapping[str, Any]) -> list[int]:
    """The places of the calls that this one can be: the likest ones only."""
    for alike in (
        lambda one: one is call or one["args"] is call["args"],
        lambda one: _same(one, call) and one["args"] == call["args"],
        lambda one: _same(one, call),
    ):
        found = [index for index, one in enumerate(calls) if alike(one)]
        if found:
            return found
    return []


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(one["name"] == other["name"] and (one.get("id") or "") == (other.get("id") or ""))


def _which(
    place: Place, message: AIMessage, call: Mapping[str, Any], found: list[int]
) -> tuple[int, str]:
    """The position, and what tells the call from equal ones of its message."""
    twins = [
        index
        for index, one in enumerate(message.tool_calls)
        if _same(one, call) and one["args"] == call["args"]
    ]
    if len(twins) < 2:
        return found[0], ""
    if place.is_single_call:
        # One task a call, told apart by its number. This comes first: in the run that made the
        # message the task holds the message's own call, after a crash it holds a copy.
        number = int(place.path[1])
        return found[number % len(found)], f"send {number}"
    if len(found) == 1:  # the very object
        return found[0], f"twin {twins.index(found[0])}"
    turn = count(place, ("twin", message.id, call.get("id"), call["name"])) % len(found)
    return found[turn], f"twin {turn}"


# --- counting ---------------------------------------------------------------------------------


_counts: OrderedDict[tuple[int, int], tuple[Any, Counter[Any]]] = OrderedDict()
"""By one run of a task: its scratchpad (kept, so that its identity stays its own) and counts."""


def count(place: Place, what: Any) -> int:
    """How often this run of the task has asked with `what` before."""
    scratchpad = place.scratchpad
    key = (id(scratchpad), place.attempt)
    _, counter = _counts.setdefault(key, (scratchpad, Counter()))
    while len(_counts) > _COUNTS_KEPT:
        _counts.popitem(last=False)
    counter[what] += 1
    return int(counter[what]) - 1


def ordinal_path(place: Place, what: Any) -> str:
    """Where a call without a message stands: its graph, step, task and turn, without any id."""
    graph = "|".join(part.partition(":")[0] for part in place.checkpoint_ns.split("|"))
    return f"{graph}@{place.step}/{_spelled(place.path)}#{count(place, what)}"


def _spelled(path: Iterable[Any]) -> str:
    """A task's path; that of the task which called it is a part of it."""
    return "/".join(
        f"({_spelled(part)})" if isinstance(part, (tuple, list)) else str(part) for part in path
    )
