"""Snapshot policies: which of a run's checkpoints are stored. Pure functions of what is known.

A policy is any function of a `Snapshot` that gives True to store it. The journal and the ledger
record every call, so a crash between two snapshots repeats plain node code only. What must be
stored is stored whatever a policy says; see `must_store`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_resilient.errors import ConfigurationError

_TASKS = "__pregel_tasks"
_PENDING = ("branch:to:", "__start__")
_CHOSEN = frozenset({"input", "update", "fork"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A checkpoint that may be stored or skipped.

    Attributes:
        thread_id: its thread.
        checkpoint_ns: its namespace; empty for the root graph.
        checkpoint: the checkpoint as LangGraph gives it.
        metadata: its metadata, with ``step`` and ``source``.
        skipped: how many checkpoints were skipped since the last stored one of its namespace.
        rounds: how many rounds were skipped: steps after which a model has answered.
        tools_ran: whether tools have answered in the step that ends with it.
    """

    thread_id: str
    checkpoint_ns: str
    checkpoint: Mapping[str, Any]
    metadata: Mapping[str, Any]
    skipped: int
    rounds: int
    tools_ran: bool


@dataclass(frozen=True, slots=True)
class EveryStep:
    """Store every checkpoint, as LangGraph does."""

    def __call__(self, snapshot: Snapshot) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class EveryRounds:
    """Store once in so many rounds of an agent: a model's answer and what it leads to.

    Attributes:
        rounds: how many; at least 1.
    """

    rounds: int

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigurationError(f"EveryRounds({self.rounds}): give at least 1 round")

    def __call__(self, snapshot: Snapshot) -> bool:
        return snapshot.rounds >= self.rounds


@dataclass(frozen=True, slots=True)
class AfterTools:
    """Store after the steps in which tools have answered: their results are dear."""

    def __call__(self, snapshot: Snapshot) -> bool:
        return snapshot.tools_ran


def must_store(checkpoint: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Whether a checkpoint is never skipped.

    That are inputs, updates and forks (somebody chose them), the last one of a run, and all of a
    thread with delta channels, whose state is rebuilt from every step.
    """
    if metadata.get("source") in _CHOSEN or uses_delta(checkpoint, metadata):
        return True
    values = checkpoint.get("channel_values") or {}
    return not (values.get(_TASKS) or any(name.startswith(_PENDING) for name in values))


def uses_delta(checkpoint: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Whether a delta channel was written before a checkpoint.

    LangGraph counts the writes since a snapshot; where all delta channels have a new one, it counts
    nothing.
    """
    values = checkpoint.get("channel_values") or {}
    return "counters_since_delta_snapshot" in metadata or any(
        isinstance(value, _DeltaSnapshot) for value in values.values()
    )


def kind_of_last(checkpoint: Mapping[str, Any]) -> str:
    """The type of the newest message in a checkpoint: ``ai``, ``tool``, …; empty without one."""
    for value in (checkpoint.get("channel_values") or {}).values():
        if isinstance(value, list) and value and hasattr(value[-1], "tool_calls"):
            return "ai"
        if isinstance(value, list) and value and hasattr(value[-1], "tool_call_id"):
            return "tool"
    return ""
