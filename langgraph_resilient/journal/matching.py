"""Which recorded call answers a call of a run that goes on: a pure function of records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from langgraph_resilient.records import ModelCallRecord, ModelCallState


class Match(Enum):
    """What the journal knows of a call that is about to be made."""

    NEW = "nothing: the model is called"
    ANSWERED = "its answer: the model is not called"
    INTERRUPTED = "that it was begun: the model is called with the same parameters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A match.

    Attributes:
        match: what is known.
        record: the recorded call; None for a new one.
        drifted: whether it was made with other parameters than the code has now.
        diverged: a call that stood at this place and asked something else.
    """

    match: Match
    record: ModelCallRecord | None = None
    drifted: bool = False
    diverged: ModelCallRecord | None = None


def find(
    candidates: Iterable[ModelCallRecord],
    *,
    request: bytes,
    sampling: bytes,
    parent: bytes,
    place: str,
) -> Found:
    """The recorded call that a call repeats.

    Calls are matched by what they ask, in the order in which they were made, within one thread and
    one tool call. Of those with the same parameters the first one fits; a call whose parameters
    have changed since fits only at the very same place of the graph, so that the samples of an
    ensemble are not taken for one another.

    Args:
        candidates: the thread's calls that are not retired and were not made or given back in this
            run, in their order.
        request: digest of what is asked.
        sampling: digest of the parameters.
        parent: key of the tool call around it, or empty.
        place: where in the graph it is made.
    """
    here = [one for one in candidates if one.parent == parent]
    same = [one for one in here if one.request == request]
    exact = [one for one in same if one.sampling == sampling]
    for record in exact:
        if record.state is ModelCallState.ENDED:
            return Found(match=Match.ANSWERED, record=record)
    at_place = [one for one in same if one.place == place and one.sampling != sampling]
    for record in at_place:
        if record.state is ModelCallState.ENDED:
            return Found(match=Match.ANSWERED, record=record, drifted=True)
    for record in [*exact, *at_place]:
        if record.state is ModelCallState.STARTED:
            drifted = record.sampling != sampling
            return Found(match=Match.INTERRUPTED, record=record, drifted=drifted)
    other = next((one for one in here if one.place == place and one.request != request), None)
    return Found(match=Match.NEW, diverged=other)
