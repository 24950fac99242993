"""A tool call as operators, probes and preconditions see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from langgraph_resilient.records import CallRecord, CallState, Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A recorded tool call.

    Attributes:
        key: for `saver.ledger.resolve` and the CLI, in hexadecimal.
        state: ``started``, ``unknown``, ``suspended``, ``failed`` or ``succeeded``. A call whose
            process died is shown as ``unknown``, also before anybody resumed its thread.
        effect: ``pure``, ``idempotent`` or ``external``.
        attempt: how often its body was begun.
        epoch: which change of the thread's owner it was begun in.
        owner: the process that began it last.
        started_at: seconds since 1970.
        ended_at: seconds since 1970, or None.
        version: counts the changes; give it to `resolve` to be sure of what you decide on.
        business_key: the user's own key, or None.
        message_id: the AI message that asked; empty when none did.
        arguments: what it was called with, or None when that could not be stored.
        result: what it gave back, or None.
        error: what its last failure said.
        flags: see `langgraph_resilient.records.CallRecord`.
        history: what happened to it, by whom and why.
    """

    key: str
    thread_id: str
    tool: str
    state: str
    effect: str
    attempt: int
    epoch: int
    owner: str
    started_at: float
    ended_at: float | None
    version: int
    tool_call_id: str
    message_id: str
    parent: str
    business_key: str | None
    arguments: Any
    result: Any
    error: str
    flags: tuple[str, ...]
    history: tuple[Event, ...]

    @property
    def idempotency_key(self) -> str:
        """What the tool was given to send along."""
        return self.key


def entry_of(record: CallRecord, state: CallState, values: dict[str, Any]) -> Entry:
    """The public view of a record.

    Args:
        record: the call.
        state: its state as found out just now.
        values: its values, restored.
    """
    return Entry(
        key=record.key.hex(),
        thread_id=record.name.thread_id,
        tool=record.name.tool,
        state=state.name.lower(),
        effect=record.effect.value,
        attempt=record.attempt,
        epoch=record.epoch,
        owner=str(record.owner),
        started_at=record.started_at,
        ended_at=record.ended_at,
        version=record.version,
        tool_call_id=record.name.tool_call_id,
        message_id=record.name.message_id,
        parent=record.name.parent.hex(),
        business_key=record.name.business,
        arguments=values.get("arguments"),
        result=values.get("result"),
        error=values.get("error") or "",
        flags=tuple(sorted(record.flags)),
        history=record.history,
    )
