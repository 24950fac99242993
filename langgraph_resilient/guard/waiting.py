"""What a stopped run was about to do, from what is stored of it.

The graph of today cannot tell: a node that is gone is no task of it. So the nodes to run next are found
in the checkpoint by the triggers that the environment of that time names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.types import Send

from langgraph_resilient.guard.comparing import Asking, Waiting
from langgraph_resilient.guard.environment import NESTED, Environment

START, TASKS, BRANCH, JOIN = "__start__", "__pregel_tasks", "branch:to:", "join:"


def waiting_in(
    found: CheckpointTuple, environment: Environment, values: Any = None, prefix: str = ""
) -> Waiting:
    """What one graph was about to do.

    Args:
        found: its newest checkpoint.
        environment: that it was stored with.
        values: its state, where that is not in the checkpoint itself (delta channels).
        prefix: what the names of its nodes begin with, for a subgraph.
    """
    sends = list(_sends(found))
    triggers = _triggered(found, environment, prefix)
    nodes = {*triggers, *(prefix + send.node for send in sends)}
    if nodes:  # the run has not ended, so what has begun to be joined is waited for
        triggers = _triggered(found, environment, prefix, begun=True)
        nodes |= set(triggers)
    held = [*_lists(found.checkpoint["channel_values"]), *_lists(values)]
    calls = {call["id"]: call for messages in held for call in _unanswered(messages)}
    for send in sends:
        calls.update({call.get("id"): call for call in _sent(send.arg)})
    asked = [
        Asking(name=str(call.get("name")), arguments=call.get("args") or {})
        for call in calls.values()
    ]
    return Waiting(nodes=frozenset(nodes), triggers=triggers, calls=tuple(asked))


def next_nodes(checkpoint: Mapping[str, Any]) -> list[str]:
    """The nodes that are due, as far as a checkpoint tells without its graph.

    A node is due when a channel that triggers it alone has a version that it has not seen, or
    when a ``Send`` to it waits. Nodes that wait for several others at once are not recognised.
    """
    seen = checkpoint.get("versions_seen", {})
    values = checkpoint.get("channel_values", {})
    due = []
    for channel, version in checkpoint.get("channel_versions", {}).items():
        if channel == START:
            node = START
        elif channel.startswith(BRANCH):
            node = channel.removeprefix(BRANCH)
        else:
            continue
        known = seen.get(node, {}).get(channel)
        if channel in values and (known is None or version > known):
            due.append(node)
    due += [str(task.node) for task in values.get(TASKS) or () if hasattr(task, "node")]
    return due


def together(parts: Iterable[Waiting]) -> Waiting:
    """What several graphs were about to do."""
    every = list(parts)
    return Waiting(
        nodes=frozenset().union(*(one.nodes for one in every)),
        triggers={name: fired for one in every for name, fired in one.triggers.items()},
        calls=tuple(call for one in every for call in one.calls),
    )


def _triggered(
    found: CheckpointTuple, environment: Environment, prefix: str, *, begun: bool = False
) -> dict[str, frozenset[str]]:
    """The nodes that were triggered since they last ran, or by tasks of the stopped step, and by what.

    Args:
        found: see `waiting_in`, as are the next two.
        environment: see there.
        prefix: see there.
        begun: whether a join counts for which only some of its nodes have ended.
    """
    checkpoint = found.checkpoint
    values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
    written: dict[str, list[Any]] = {}
    for _, channel, value in found.pending_writes or ():
        written.setdefault(channel, []).append(value)
    every: dict[str, frozenset[str]] = {}
    for name, triggers in (environment["graph"].get("nodes") or {}).items():
        inner = name.removeprefix(prefix)
        if (prefix and inner == name) or NESTED in inner:
            continue
        seen = checkpoint["versions_seen"].get(inner) or {}
        fired = frozenset(
            channel
            for channel in triggers
            if (channel in values and _is_new(versions.get(channel), seen.get(channel)))
            or channel in written
            if begun or _is_whole(channel, values.get(channel), written.get(channel, []))
        )
        if fired:
            every[name] = fired
    return every


def _is_whole(channel: str, value: Any, written: list[Any]) -> bool:
    """Whether a join has all its nodes, or will have them after the stopped step; others are whole."""
    if not channel.startswith(JOIN):
        return True
    # A deferred join keeps a flag beside the names.
    ended = value[0] if isinstance(value, tuple) else value
    wanted = channel.removeprefix(JOIN).rpartition(":")[0].split("+")
    return len({*(ended or ()), *written}) >= len(wanted)


def _is_new(version: Any, seen: Any) -> bool:
    return version is not None and (seen is None or version > seen)


def _sends(found: CheckpointTuple) -> Iterator[Send]:
    """The tasks of the stopped step that were sent, and those that it has sent itself."""
    held = found.checkpoint["channel_values"].get(TASKS)
    sent = [item for _, name, item in found.pending_writes or () if name == TASKS]
    for item in [*(held if isinstance(held, (list, tuple)) else ()), *sent]:
        if isinstance(item, Send):
            yield item


def _lists(values: Any) -> Iterator[list[Any]]:
    if isinstance(values, Mapping):
        yield from (item for item in values.values() if isinstance(item, list))


def _unanswered(items: list[Any]) -> Iterator[Mapping[str, Any]]:
    """The tool calls of the newest AI message of a list that no tool message answers."""
    answered: set[str] = set()
    for item in reversed(items):
        if isinstance(item, ToolMessage):
            answered.add(item.tool_call_id)
        elif isinstance(item, AIMessage):
            yield from (call for call in item.tool_calls if call["id"] not in answered)
            return


def _sent(arg: Any) -> Iterator[Mapping[str, Any]]:
    """The tool calls that a ``Send`` carries, in one of the shapes that tool nodes take."""
    given = arg.get("tool_call") if isinstance(arg, Mapping) and "tool_call" in arg else arg
    for item in given if isinstance(given, list) else [given]:
        if isinstance(item, Mapping) and item.get("type") == "tool_call":
            yield item
