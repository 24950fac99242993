"""Which checkpoints are stored: the rules, with values."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_resilient import AfterTools, ConfigurationError, EveryRounds, EveryStep, Snapshot
from langgraph_resilient.policy import kind_of_last, must_store

PENDING = {"channel_values": {"messages": [], "branch:to:model": None}}


def snapshot(**known: Any) -> Snapshot:
    facts = {"skipped": 0, "rounds": 0, "tools_ran": False, **known}
    return Snapshot(thread_id="t", checkpoint_ns="", checkpoint={}, metadata={}, **facts)


def test_every_step_stores_all() -> None:
    assert EveryStep()(snapshot())


@pytest.mark.parametrize(("rounds", "stored"), [(0, False), (1, False), (2, True), (3, True)])
def test_every_rounds_stores_when_enough_rounds_were_skipped(rounds: int, stored: bool) -> None:
    assert EveryRounds(2)(snapshot(rounds=rounds)) is stored


def test_every_rounds_wants_at_least_one() -> None:
    with pytest.raises(ConfigurationError, match="at least 1"):
        EveryRounds(0)


@pytest.mark.parametrize("ran", [True, False])
def test_after_tools_stores_what_tools_have_answered(ran: bool) -> None:
    assert AfterTools()(snapshot(tools_ran=ran)) is ran


@pytest.mark.parametrize("source", ["input", "update", "fork"])
def test_what_somebody_chose_is_stored(source: str) -> None:
    assert must_store(PENDING, {"source": source})


def test_a_step_with_work_before_it_may_be_skipped() -> None:
    assert not must_store(PENDING, {"source": "loop"})
    assert not must_store({"channel_values": {"__pregel_tasks": ["send"]}}, {"source": "loop"})


@pytest.mark.parametrize(
    "values", [{}, {"messages": [1]}, {"__pregel_tasks": []}, {"__end__": 3, "__previous__": 3}]
)
def test_the_last_of_a_run_and_what_cannot_be_told_is_stored(values: dict[str, Any]) -> None:
    assert must_store({"channel_values": values}, {"source": "loop"})


def test_a_thread_with_delta_channels_is_stored_whole() -> None:
    assert must_store(PENDING, {"source": "loop", "counters_since_delta_snapshot": {"m": [1, 2]}})
    whole = {"channel_values": {**PENDING["channel_values"], "log": _DeltaSnapshot([1])}}
    assert must_store(whole, {"source": "loop"})  # nothing is counted right after a snapshot


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        (AIMessage("x"), "ai"),
        (ToolMessage("x", tool_call_id="1"), "tool"),
        (HumanMessage("x"), ""),
        ("text", ""),
    ],
)
def test_the_kind_of_the_newest_message(last: Any, kind: str) -> None:
    assert kind_of_last({"channel_values": {"n": 1, "messages": [HumanMessage("q"), last]}}) == kind
    assert kind_of_last({"channel_values": {"messages": []}}) == ""
