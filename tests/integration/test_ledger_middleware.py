"""The ledger among other middleware: retries, limits, humans in the loop, structured output."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from agents import (
    MODES,
    again,
    agent,
    answers,
    asking,
    begin,
    call,
    calling,
    entry,
    replays,
    run,
    said,
    script,
    states,
)
from langchain.agents import create_agent
from langchain.agents.middleware import (
    HumanInTheLoopMiddleware,
    ToolCallLimitMiddleware,
    ToolRetryMiddleware,
)
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.types import Command
from pydantic import BaseModel

from langgraph_resilient import ResilienceMiddleware, ResilientSaver, ToolPolicy, effect
from langgraph_resilient.integrations import runtime

RETRY = {"initial_delay": 0.0, "jitter": False, "backoff_factor": 0.0}


@pytest.fixture
def saver(db_path: str) -> Iterator[ResilientSaver]:
    with ResilientSaver.from_conn_string(db_path) as opened:
        yield opened


def flaky(fails: list[Exception], kind: str = "external") -> Any:
    @tool
    @effect(kind)
    def fetch(x: int) -> str:
        """Fetch."""
        if fails:
            raise fails.pop(0)
        return f"got {x}"

    return fetch


@pytest.mark.parametrize("mode", MODES)
def test_a_retry_outside_begins_recorded_attempts(mode: str, saver: Any) -> None:
    made = agent(
        asking(call("fetch", x=1)),
        [flaky([ValueError("a"), ValueError("b")])],
        saver,
        before=[ToolRetryMiddleware(max_retries=2, **RETRY)],
    )
    assert said(begin(mode, made)) == ["got 1"]
    found = entry(saver, "fetch")
    assert (found.state, found.attempt) == ("succeeded", 3)
    assert "attempt 3 (was failed)" in [event.what for event in found.history]


@pytest.mark.parametrize("mode", MODES)
def test_a_retry_outside_does_not_repeat_an_unknown_outcome(mode: str, saver: Any) -> None:
    fails: list[Exception] = [TimeoutError("slow")]
    made = agent(
        asking(call("fetch", x=1)),
        [flaky(fails)],
        saver,
        before=[ToolRetryMiddleware(max_retries=2, **RETRY)],
    )
    state = begin(mode, made)
    assert entry(saver, "fetch").state == "unknown"
    [question] = state["__interrupt__"]
    assert question.value["kind"] == "unknown_outcome"
    state = run(mode, made, Command(resume={"action": "retry"}))
    assert said(state) == ["got 1"]
    assert entry(saver, "fetch").attempt == 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("inside", [False, True])
def test_a_retry_that_turns_the_last_error_into_a_message_hides_no_unknown_outcome(
    mode: str, inside: bool, saver: Any
) -> None:
    retry = ToolRetryMiddleware(max_retries=0, on_failure="continue", **RETRY)
    middleware = [ResilienceMiddleware()]
    middleware.insert(1 if inside else 0, retry)
    made = create_agent(
        asking(call("fetch", x=1)),
        [flaky([TimeoutError("slow")])],
        middleware=middleware,
        checkpointer=saver,
    )
    [question] = begin(mode, made)["__interrupt__"]
    assert entry(saver, "fetch").state == "unknown"
    assert question.value["error"] == "TimeoutError: slow"


@pytest.mark.parametrize("mode", MODES)
def test_a_retry_inside_is_warned_about_once(
    mode: str, saver: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "_warned", set())
    calls = [call("fetch", "a", x=1), call("fetch", "b", x=2)]
    made = create_agent(
        asking(*calls),
        [flaky([ValueError("a"), ValueError("b")])],
        middleware=[ResilienceMiddleware(), ToolRetryMiddleware(max_retries=2, **RETRY)],
        checkpointer=saver,
    )
    with caplog.at_level(logging.WARNING):
        state = begin(mode, made)
    assert said(state) == ["got 1", "got 2"]
    warnings = [r.getMessage() for r in caplog.records if "innermost" in r.getMessage()]
    assert len(warnings) == 1
    assert "'fetch'" in warnings[0]
    assert {one.state for one in saver.ledger.entries("t")} == {"succeeded"}
    assert sum(one.attempt for one in saver.ledger.entries("t")) == 4


@pytest.mark.parametrize("mode", MODES)
def test_calls_that_a_limit_blocks_are_not_recorded(mode: str, saver: Any) -> None:
    made = agent(
        script(calling(call("fetch", "a", x=1)), calling(call("fetch", "b", x=2))),
        [flaky([])],
        saver,
        before=[ToolCallLimitMiddleware(run_limit=1, exit_behavior="continue")],
    )
    state = begin(mode, made)
    assert said(state)[0] == "got 1"
    assert answers(state)[1].status == "error"
    assert states(saver) == [("fetch", "succeeded")]


def review(*decisions: Any) -> Command:
    return Command(resume={"decisions": list(decisions)})


@pytest.mark.parametrize("mode", MODES)
def test_arguments_that_a_human_edits_are_the_ones_that_run(mode: str, saver: Any) -> None:
    human = HumanInTheLoopMiddleware(interrupt_on={"fetch": True})
    made = agent(
        asking(call("fetch", "a", x=1), call("fetch", "b", x=2)),
        [flaky([])],
        saver,
        before=[human],
    )
    assert begin(mode, made)["__interrupt__"]
    assert states(saver) == []
    edited = {"type": "edit", "edited_action": {"name": "fetch", "args": {"x": 10}}}
    state = run(mode, made, review(edited, {"type": "reject", "message": "no"}))
    assert "reason: no" in said(state)[0]
    assert said(state)[1].endswith("got 10")
    [found] = saver.ledger.entries("t")
    assert (found.arguments, found.tool_call_id) == ({"x": 10}, "a")
    again(mode, made)
    assert replays(saver) == ["fetch"]


@pytest.mark.parametrize("mode", MODES)
def test_an_edit_after_time_travel_runs_and_the_same_decision_does_not(
    mode: str, saver: Any
) -> None:
    human = HumanInTheLoopMiddleware(interrupt_on={"fetch": True})
    made = agent(asking(call("fetch", x=1)), [flaky([])], saver, before=[human])
    first = begin(mode, made)
    assert first["__interrupt__"]
    asked = made.get_state({"configurable": {"thread_id": "t"}}).config
    run(mode, made, review({"type": "approve"}))
    for decision, count in (
        ({"type": "approve"}, 1),
        ({"type": "edit", "edited_action": {"name": "fetch", "args": {"x": 2}}}, 2),
    ):
        run(mode, made, None, asked)  # a fork that asks anew
        run(mode, made, review(decision))
        assert len(saver.ledger.entries("t")) == count


class Weather(BaseModel):
    """The weather."""

    degrees: int


@pytest.mark.parametrize("mode", MODES)
def test_structured_output_is_no_tool_call(mode: str, saver: Any) -> None:
    made = agent(
        script(calling(call("fetch", x=1)), calling(call("Weather", degrees=20))),
        [flaky([])],
        saver,
        more={"response_format": ToolStrategy(Weather)},
    )
    state = begin(mode, made)
    assert state["structured_response"] == Weather(degrees=20)
    assert states(saver) == [("fetch", "succeeded")]


@pytest.mark.parametrize("mode", MODES)
def test_interrupts_before_and_after_the_tools(mode: str, saver: Any) -> None:
    made = agent(
        asking(call("fetch", x=1)),
        [flaky([])],
        saver,
        more={"interrupt_before": ["tools"], "interrupt_after": ["tools"]},
    )
    begin(mode, made)
    assert states(saver) == []
    run(mode, made)
    assert states(saver) == [("fetch", "succeeded")]
    assert run(mode, made)["messages"][-1].content == "done"
    assert entry(saver, "fetch").attempt == 1


@pytest.mark.parametrize("mode", MODES)
def test_the_same_words_in_a_later_turn_are_another_call(mode: str, saver: Any) -> None:
    ran: list[int] = []

    @tool
    def pay(x: int) -> str:
        """Pay."""
        ran.append(x)
        return "paid"

    same = calling(call("pay", "call_1", x=1))
    made = agent(script(same, same, AIMessage("ok"), same), [pay], saver)
    begin(mode, made)
    begin(mode, made)
    assert ran == [1, 1, 1]
    assert states(saver) == [("pay", "succeeded")] * 3


def test_policies_by_name_go_before_what_the_tool_says(saver: Any) -> None:
    made = create_agent(
        asking(call("fetch", x=1)),
        [flaky([TimeoutError()])],
        middleware=[ResilienceMiddleware(tools={"fetch": ToolPolicy(effect="idempotent")})],
        checkpointer=saver,
    )
    with pytest.raises(TimeoutError):
        begin("invoke", made)
    assert said(run("invoke", made)) == ["got 1"]
    assert entry(saver, "fetch").effect == "idempotent"
