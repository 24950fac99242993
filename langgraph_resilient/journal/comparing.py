"""Where two requests, or two states, differ first: pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage

from langgraph_resilient.journal.request import Request, conversation, difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field that differs.

    Attributes:
        kind: ``prompt``, ``tools`` (schemas, tool choice, response format), ``parameters``,
            ``order`` (of model calls), ``tool`` (a call of one), ``state``, ``error``.
        field: where, for example ``messages[3].content`` or ``tools[0].function.name``.
        recorded: what was recorded there.
        current: what the code gives now.
        call: number of the recorded model call, within its thread; 0 where it is about none.
    """

    kind: str
    field: str
    recorded: Any = None
    current: Any = None
    call: int = 0

    def __str__(self) -> str:
        call = f"model call {self.call}: " if self.call else ""
        return f"{call}{self.kind}: {self.field}: {self.recorded!r} -> {self.current!r}"


def requests_differ(
    recorded: Request, current: Request, *, known: bool = True
) -> Difference | None:
    """The first difference of two requests: in the prompt, then in tools, then in parameters.

    Args:
        recorded: what was sent.
        current: what is asked now.
        known: whether the recorded conversation was kept.
    """
    if known:
        found = _prompts_differ(recorded.messages, current.messages)
        if found is not None:
            return found
    for name in sorted(set(recorded.sent) | set(current.sent)):
        if name in recorded.parameters or name in current.parameters:
            continue
        unequal = values_differ(recorded.sent.get(name), current.sent.get(name), name)
        if unequal is not None:
            return Difference(
                kind="tools", field=unequal[0], recorded=unequal[1], current=unequal[2]
            )
    for name, (old, new) in difference(recorded.parameters, current.parameters).items():
        return Difference(kind="parameters", field=name, recorded=old, current=new)
    if recorded.model != current.model:
        return Difference(
            kind="parameters", field="model", recorded=recorded.model, current=current.model
        )
    return None


def _prompts_differ(
    recorded: Sequence[BaseMessage], current: Sequence[BaseMessage]
) -> Difference | None:
    pairs = zip(conversation(recorded), conversation(current), strict=False)
    for index, (old, new) in enumerate(pairs):
        if old == new:
            continue
        field = f"messages[{index}]"
        before, now = recorded[index], current[index]
        if before.type != now.type:
            return Difference(
                kind="prompt", field=f"{field}.type", recorded=before.type, current=now.type
            )
        if before.content != now.content:
            return Difference(
                kind="prompt",
                field=f"{field}.content",
                recorded=before.content,
                current=now.content,
            )
        return Difference(kind="prompt", field=field, recorded=old[2:], current=new[2:])
    if len(recorded) != len(current):
        at = min(len(recorded), len(current))
        return Difference(
            kind="prompt",
            field=f"messages[{at}]",
            recorded=recorded[at].content if at < len(recorded) else None,
            current=current[at].content if at < len(current) else None,
        )
    return None


def values_differ(
    recorded: Any, current: Any, field: str = "", ids_count: Callable[[Any], bool] | None = None
) -> tuple[str, Any, Any] | None:
    """The first place where two values differ, with what is there.

    Args:
        recorded: a value.
        current: another one.
        field: its name.
        ids_count: whether the id of a recorded message must be the same; all must, by default.
    """
    if isinstance(recorded, BaseMessage) and isinstance(current, BaseMessage):
        if type(recorded) is not type(current):
            return f"{field}.type", recorded.type, current.type
        old, new = dict(recorded.__dict__), dict(current.__dict__)
        if ids_count is not None and not ids_count(recorded.id):
            del old["id"], new["id"]
        return values_differ(old, new, field, ids_count)
    if isinstance(recorded, Mapping) and isinstance(current, Mapping):
        for name in [*recorded, *(name for name in current if name not in recorded)]:
            inner = f"{field}.{name}" if field else str(name)
            found = values_differ(recorded.get(name), current.get(name), inner, ids_count)
            if found is not None:
                return found
        return None
    if isinstance(recorded, (list, tuple)) and isinstance(current, (list, tuple)):
        for index in range(max(len(recorded), len(current))):
            old_item = recorded[index] if index < len(recorded) else None
            new_item = current[index] if index < len(current) else None
            found = values_differ(old_item, new_item, f"{field}[{index}]", ids_count)
            if found is not None:
                return found
        return None
    return None if recorded == current else (field, recorded, current)
