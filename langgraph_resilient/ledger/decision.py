"""The ledger's decision rule: what happens to a call, given what is recorded of it.

A pure function of records. This is the place to change what the ledger does.
"""

from __future__ import annotations

from enum import Enum

from typing_extensions import assert_never

from langgraph_resilient.records import CallRecord, CallState, Effect


class Standing(Enum):
    """Whether the process that began a call is still running it."""

    HERE = "this process is running it"
    ELSEWHERE = "another live process is running it"
    GONE = "nobody is running it any more"


class Decision(Enum):
    """What to do with a call."""

    START = "run the body, as a new attempt"
    REPLAY = "give back the recorded result"
    WAIT = "somebody is running it: wait for its result"
    UNKNOWN = "nobody knows whether it took effect: probe, or ask"


def decide(
    record: CallRecord | None,
    standing: Standing,
    effect: Effect,
    *,
    cleared: bool = False,
) -> Decision:
    """What to do with a call.

    Args:
        record: what is recorded of it, or None.
        standing: whether somebody is running it.
        effect: what running it once more would do, as the tool says today.
        cleared: whether somebody entitled to it (a probe, a human, a policy, the run's
            ``reexecute``) has said that it may run again.
    """
    if record is None:
        return Decision.START
    state = record.state
    if state is CallState.STARTED and standing is not Standing.GONE:
        return Decision.WAIT
    if cleared:
        return Decision.START
    if state is CallState.SUCCEEDED:
        return Decision.REPLAY
    if state is CallState.FAILED:
        # With a result it is final: a human said so, and what the model is to be told.
        return Decision.START if record.value("result") is None else Decision.REPLAY
    if state is CallState.SUSPENDED:
        return Decision.START
    if state is CallState.UNKNOWN or state is CallState.STARTED:
        return Decision.UNKNOWN if effect is Effect.EXTERNAL else Decision.START
    assert_never(state)
