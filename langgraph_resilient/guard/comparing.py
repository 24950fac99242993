"""What has changed between two environments, and whether a run that goes on can cope with it.

Pure functions of plain data: no graph, no database. What `Waiting` holds decides how grave a change
is: a node that is gone matters to a run that was about to enter it, and to no other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["node", "edge", "channel", "reducer", "tool", "model", "package", "precondition"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A difference between what a thread was left in and what would go on with it.

    Attributes:
        kind: what has changed: ``node``, ``edge``, ``channel`` (its type), ``reducer``, ``tool``,
            ``model``, ``package``, or a ``precondition`` of the user's.
        name: which one.
        recorded: as it was; None: it was not there.
        current: as it is; None: it is gone.
        serious: whether the run cannot simply go on: a node that was about to run is gone, a tool that
            was asked for is gone or can no longer be called like that, a channel has another type, a
            precondition does not hold.
        reason: what makes it serious.
    """

    kind: Kind
    name: str
    recorded: Any = None
    current: Any = None
    serious: bool = False
    reason: str = ""

    def __str__(self) -> str:
        if self.kind == "precondition":
            return f"precondition {self.name!r}: {self.reason}"
        what = (
            "is new"
            if self.recorded is None
            else "is gone"
            if self.current is None
            else f"was {self.recorded}, is {self.current}"
            if self.kind not in ("tool", "node")
            else "takes other arguments"
            if self.kind == "tool"
            else "is triggered otherwise"
        )
        return f"{self.kind} {self.name!r} {what}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A tool call that waits for its result."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What a stopped run was about to do.

    Attributes:
        nodes: that it still needs, those inside subgraphs as ``parent|child``.
        triggers: by node, the channels that have triggered it.
        calls: tool calls that wait for their results.
    """

    nodes: frozenset[str] = frozenset()
    triggers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    calls: tuple[Asking, ...] = ()

    def lost(self, name: str, triggers: Collection[str] | None) -> str:
        """Why a graph with these triggers of a node (None: without it) would not run it; or nothing."""
        if name not in self.nodes:
            return ""
        if triggers is None:
            return "the stopped run still needs it"
        fired = self.triggers.get(name, frozenset())
        return "" if fired <= set(triggers) else "what triggers it in the stopped run is gone"


def compare(
    recorded: Mapping[str, Any],
    current: Mapping[str, Any],
    waiting: Waiting,
    fits: Mapping[str, bool] | None = None,
) -> list[Change]:
    """The changes, the serious ones first.

    Args:
        recorded: the environment that a checkpoint was stored with.
        current: the environment of the graph that would go on.
        waiting: what the run was about to do.
        fits: by name of a tool whose arguments have changed: whether the calls that wait could
            still be made; a tool that is not there fits.
    """
    found = [
        *_structure(recorded, current, waiting),
        *_tools(recorded, current, waiting, fits or {}),
    ]
    for kind, part in (("model", "models"), ("package", "packages")):
        found.extend(_plain(kind, recorded.get(part), current.get(part)))  # type: ignore[arg-type]
    return sorted(found, key=lambda change: not change.serious)


def _structure(
    recorded: Mapping[str, Any], current: Mapping[str, Any], waiting: Waiting
) -> Iterator[Change]:
    old, new = recorded.get("graph") or {}, current.get("graph") or {}
    for change in _plain("node", old.get("nodes"), new.get("nodes")):
        reason = waiting.lost(change.name, change.current)
        yield _with(change, serious=bool(reason), reason=reason)
    before, after = set(old.get("edges") or ()), set(new.get("edges") or ())
    for edge in sorted(before | after):
        if (edge in before) != (edge in after):
            here = {"recorded": edge} if edge in before else {"current": edge}
            yield Change(kind="edge", name=edge, **here)
    kinds = [
        {name: item[0] for name, item in (side.get("channels") or {}).items()}
        for side in (old, new)
    ]
    for change in _plain("channel", *kinds):
        other = change.recorded is not None and change.current is not None
        reason = "what is stored in it may not fit" if other else ""
        yield _with(change, serious=other, reason=reason)
    reducers = [
        {name: item[1] for name, item in (side.get("channels") or {}).items() if item[1]}
        for side in (old, new)
    ]
    yield from (c for c in _plain("reducer", *reducers) if c.recorded and c.current)


def _tools(
    recorded: Mapping[str, Any],
    current: Mapping[str, Any],
    waiting: Waiting,
    fits: Mapping[str, bool],
) -> Iterator[Change]:
    asked = {call.name for call in waiting.calls}
    for change in _plain("tool", recorded.get("tools"), current.get("tools")):
        if change.name not in asked:
            yield change
        elif change.current is None:
            yield _with(change, serious=True, reason="a call of it waits for its result")
        elif fits.get(change.name, True):
            yield change
        else:
            yield _with(change, serious=True, reason="a call that waits can no longer be made")


def _plain(
    kind: Kind, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None
) -> list[Change]:
    before, after = old or {}, new or {}
    return [
        Change(kind=kind, name=name, recorded=before.get(name), current=after.get(name))
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]


def _with(change: Change, *, serious: bool, reason: str) -> Change:
    return Change(
        kind=change.kind,
        name=change.name,
        recorded=change.recorded,
        current=change.current,
        serious=serious,
        reason=reason,
    )
