"""What ``show`` says about a thread: pure functions of checkpoint tuples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT

from langgraph_resilient.errors import ValueRefused
from langgraph_resilient.guard.waiting import next_nodes
from langgraph_resilient.serde import ResilientSerde


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """One checkpoint, without content.

    Attributes:
        checkpoint_id, checkpoint_ns, parent_checkpoint_id: as LangGraph names them.
        ts: when it was made, ISO 8601.
        step: LangGraph's step counter; -1 is the input.
        source: input, loop, update or fork.
        next: the nodes that a resume would run.
        writes: number of stored writes of its tasks.
        waiting: ``interrupt`` or ``error`` when a task stopped with one.
        messages: number of messages in the state.
        bytes: size of the whole state when it is serialized, before any of it is compressed or
            found to be stored already; None when a value cannot be measured.
    """

    checkpoint_id: str
    checkpoint_ns: str
    parent_checkpoint_id: str | None
    ts: str
    step: int | None
    source: str
    next: list[str]
    writes: int
    waiting: list[str]
    messages: int
    bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageInfo:
    """One message; ``content`` is None unless it was asked for."""

    channel: str
    place: int
    type: str
    id: str | None
    characters: int
    tool_calls: list[str]
    content: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelInfo:
    """One channel's value; ``content`` is None unless it was asked for.

    A channel of messages never has it here: they are shown one by one.
    """

    channel: str
    type: str
    summary: str
    content: Any = None


def checkpoint_info(found: CheckpointTuple) -> CheckpointInfo:
    """What one line of ``show`` says."""
    configurable = found.config["configurable"]
    parent = (found.parent_config or {}).get("configurable", {})
    writes = found.pending_writes or []
    channels = {channel for _task, channel, _value in writes}
    kinds = ((INTERRUPT, "interrupt"), (ERROR, "error"))
    return CheckpointInfo(
        checkpoint_id=configurable["checkpoint_id"],
        checkpoint_ns=configurable.get("checkpoint_ns", ""),
        parent_checkpoint_id=parent.get("checkpoint_id"),
        ts=str(found.checkpoint.get("ts", "")),
        step=found.metadata.get("step"),
        source=str(found.metadata.get("source", "")),
        next=next_nodes(found.checkpoint),
        writes=len(writes),
        waiting=[name for channel, name in kinds if channel in channels],
        messages=sum(len(messages) for _, messages in _message_channels(found)),
        bytes=_state_bytes(found.checkpoint["channel_values"]),
    )


def message_infos(found: CheckpointTuple, *, content: bool) -> list[MessageInfo]:
    """All messages of the state, in order, channel by channel."""
    return [
        MessageInfo(
            channel=channel,
            place=place,
            type=message.type,
            id=message.id,
            characters=len(str(message.content)),
            tool_calls=[call["name"] for call in getattr(message, "tool_calls", ())],
            content=message.content if content else None,
        )
        for channel, messages in _message_channels(found)
        for place, message in enumerate(messages)
    ]


def channel_infos(found: CheckpointTuple, *, content: bool) -> list[ChannelInfo]:
    """Every channel with a value, by name."""
    values = found.checkpoint["channel_values"]
    of_messages = {channel for channel, _ in _message_channels(found)}
    return [
        ChannelInfo(
            channel=name,
            type=type(values[name]).__qualname__,
            summary=summary(values[name]),
            content=values[name] if content and name not in of_messages else None,
        )
        for name in sorted(values)
    ]


def summary(value: Any) -> str:
    """How large a value is; never what it says."""
    if isinstance(value, str):
        return f"{len(value):,} characters"
    if isinstance(value, bytes | bytearray):
        return f"{len(value):,} bytes"
    if isinstance(value, Mapping):
        return f"{len(value):,} keys"
    if isinstance(value, Sequence | set | frozenset):
        of_messages = value and all(isinstance(item, BaseMessage) for item in value)
        return f"{len(value):,} {'messages' if of_messages else 'items'}"
    return ""


def _state_bytes(values: Mapping[str, Any]) -> int | None:
    try:
        _kind, data = ResilientSerde().dumps_typed(dict(values))
    except ValueRefused:  # what a serializer of the user's own gave back, for example
        return None
    return len(data)


def _message_channels(found: CheckpointTuple) -> list[tuple[str, list[BaseMessage]]]:
    values = found.checkpoint["channel_values"]
    return [
        (name, list(value))
        for name, value in values.items()
        if isinstance(value, list | tuple)
        and value
        and all(isinstance(item, BaseMessage) for item in value)
    ]
