"""Which recorded call answers a call of a run that goes on: a pure function of records."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from langgraph_resilient.records import ModelCallRecord, ModelCallState

_STEP = re.compile(r"@[^/@]*/")


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
    one tool call. Of those with the same parameters the first one fits, one of the same node before
    those of others: nodes that ask the same in parallel get back their own answers. A call whose
    parameters have changed since fits only at the very same place of the graph, so that the samples
    of an ensemble are not taken for one another.

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
    exact = sorted(
        (one for one in same if one.sampling == sampling),
        key=lambda one: (one.place != place, not _near(one, place)),
    )
    near = [one for one in exact if _near(one, place)]
    at_place = [one for one in same if one.place == place and one.sampling != sampling]
    for record in _ended(near):
        return Found(match=Match.ANSWERED, record=record)
    for record in _ended(at_place):
        return Found(match=Match.ANSWERED, record=record, drifted=True)
    for record in _begun(near):
        return Found(match=Match.INTERRUPTED, record=record)
    for record in _ended(exact):
        return Found(match=Match.ANSWERED, record=record)
    for record in _begun([*exact, *at_place]):
        drifted = record.sampling != sampling
        return Found(match=Match.INTERRUPTED, record=record, drifted=drifted)
    other = next((one for one in here if one.place == place and one.request != request), None)
    return Found(match=Match.NEW, diverged=other)


def _near(record: ModelCallRecord, place: str) -> bool:
    """Whether a call was made by the same node, in whichever step and as whichever of its calls."""
    return _node(record.place) == _node(place)


def _node(place: str) -> str:
    return _STEP.sub("/", place.rpartition("#")[0], count=1)


def _ended(records: Iterable[ModelCallRecord]) -> Iterable[ModelCallRecord]:
    return (one for one in records if one.state is ModelCallState.ENDED)


def _begun(records: Iterable[ModelCallRecord]) -> Iterable[ModelCallRecord]:
    return (one for one in records if one.answerless)
