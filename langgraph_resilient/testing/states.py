"""Final states in a form that two runs can be compared by: without what is drawn anew each time.

Pure functions of values; knows no saver and no graph.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from pydantic import BaseModel

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_LONGEST = 120
"""Letters of a value in a difference."""


def plain(value: Any) -> Any:
    """A value as JSON: messages without ids, what is no JSON by its fields or its ``repr``."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, BaseMessage):
        return _message(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=repr)
    if isinstance(value, BaseModel):
        return {"type": type(value).__qualname__, **plain(dict(value))}
    if is_dataclass(value) and not isinstance(value, type):
        own = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        return {"type": type(value).__qualname__, **own}
    return _ADDRESS.sub("", repr(value))


def _message(message: BaseMessage) -> dict[str, Any]:
    found = {"type": message.type, "content": _without_ids(message.content), "name": message.name}
    if isinstance(message, AIMessage):
        found["calls"] = [[call["name"], plain(call["args"])] for call in message.tool_calls]
    if isinstance(message, ToolMessage):
        found |= {"status": message.status, "artifact": plain(message.artifact)}
    return found


def _without_ids(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [
        {key: plain(item) for key, item in block.items() if key != "id"}
        if isinstance(block, Mapping)
        else block
        for block in content
    ]


def differences(expected: Any, found: Any, at: str = "state") -> list[str]:
    """Where two plain values differ, each as a line; none when they are equal."""
    return list(_differing(expected, found, at))


def _differing(expected: Any, found: Any, at: str) -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in {**expected, **found}:
            if key not in found:
                yield f"{at}.{key} is missing; undisturbed it is {_short(expected[key])}"
            elif key not in expected:
                yield f"{at}.{key} is {_short(found[key])}; undisturbed there is none"
            else:
                yield from _differing(expected[key], found[key], f"{at}.{key}")
    elif isinstance(expected, list) and isinstance(found, list):
        for number, (one, other) in enumerate(zip(expected, found, strict=False)):
            yield from _differing(one, other, f"{at}[{number}]")
        if len(expected) != len(found):
            yield f"{at} has {len(found)} items; undisturbed it has {len(expected)}"
    elif expected != found or type(expected) is not type(found):
        yield f"{at} is {_short(found)}; undisturbed it is {_short(expected)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def messages_of(values: Any) -> list[BaseMessage]:
    """All messages of a state, in the order of its keys."""
    if isinstance(values, BaseMessage):
        return [values]
    if isinstance(values, BaseModel):
        values = dict(values)
    parts: Sequence[Any] = ()
    if isinstance(values, Mapping):
        parts = list(values.values())
    elif isinstance(values, list | tuple):
        parts = values
    return [message for part in parts for message in messages_of(part)]


def call_faults(messages: Sequence[BaseMessage], *, ended: bool) -> list[str]:
    """Calls that do not have exactly one tool message.

    Args:
        messages: of a state.
        ended: whether the run has come to its end; before that a call may have none.
    """
    asked: Counter[str | None] = Counter(
        call["id"]
        for message in messages
        if isinstance(message, AIMessage)
        for call in message.tool_calls
    )
    answered: Counter[str | None] = Counter(
        one.tool_call_id for one in messages if isinstance(one, ToolMessage)
    )
    many = [
        f"tool call {call!r} has {count} tool messages"
        for call, count in answered.items()
        if count > asked[call] > 0
    ]
    none = [f"tool call {call!r} has no tool message" for call in asked if not answered[call]]
    return many + (none if ended else [])
