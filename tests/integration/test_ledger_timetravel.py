"""Time travel and forks: what was asked before is answered as before, what is new runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from agents import (
    KINDS,
    MODES,
    answers,
    asking,
    before,
    begin,
    built,
    call,
    calling,
    entry,
    replays,
    run,
    said,
    script,
    states,
)
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.types import Command, interrupt

from langgraph_resilient import ResilientSaver, once

ran: list[Any] = []


@pytest.fixture
def saver(db_path: str) -> Iterator[ResilientSaver]:
    ran.clear()
    with ResilientSaver.from_conn_string(db_path) as opened:
        yield opened


@tool
def pay(x: int) -> str:
    """Pay."""
    ran.append(x)
    return f"receipt {len(ran)}"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_from_before_the_model_the_model_asks_anew_and_the_call_runs(
    mode: str, kind: str, saver: Any
) -> None:
    made = built(kind, asking(call("pay", x=1)), [pay], saver)
    begin(mode, made)
    state = run(mode, made, None, before(made, "model", last=False))
    assert said(state) == ["receipt 2"]
    assert states(saver) == [("pay", "succeeded")] * 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_from_before_the_tools_the_recorded_result_comes_back_and_is_seen_to(
    mode: str, kind: str, saver: Any, caplog: pytest.LogCaptureFixture
) -> None:
    made = built(kind, asking(call("pay", x=1)), [pay], saver)
    first = answers(begin(mode, made))
    with caplog.at_level(logging.INFO, logger="langgraph_resilient"):
        state = run(mode, made, None, before(made))
    assert answers(state) == first
    assert ran == [1]
    assert list(saver.ledger.book.replays) == [("t", "pay", entry(saver, "pay").key)]
    assert any("answered from the ledger" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_from_after_the_tools_no_tool_is_asked(mode: str, kind: str, saver: Any) -> None:
    made = built(kind, asking(call("pay", x=1)), [pay], saver)
    begin(mode, made)
    state = run(mode, made, None, before(made, "model"))
    assert said(state) == ["receipt 1"]
    assert replays(saver) == []
    assert ran == [1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["name", "id", "key"])
def test_a_run_may_want_a_call_run_anew(mode: str, kind: str, by: str, saver: Any) -> None:
    calls = [call("pay", "a", x=1), call("pay", "b", x=2)]
    made = built(kind, asking(*calls), [pay], saver)
    begin(mode, made)
    key = next(one.key for one in saver.ledger.entries("t") if one.tool_call_id == "a")
    wanted = {"name": "pay", "id": "a", "key": key}[by]
    config = before(made)
    options = {"resilient": {"reexecute": [wanted]}}
    run(mode, made, None, {"configurable": {**config["configurable"], **options}})
    assert sorted(ran) == ([1, 1, 2, 2] if by == "name" else [1, 1, 2])
    again = next(one for one in saver.ledger.entries("t") if one.key == key)
    assert (again.state, again.attempt) == ("succeeded", 2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_edited_call_runs_and_the_others_do_not(mode: str, kind: str, saver: Any) -> None:
    calls = [call("pay", "a", x=1), call("pay", "b", x=2)]
    made = built(kind, asking(*calls), [pay], saver)
    begin(mode, made)
    config = before(made)
    asked = made.get_state(config).values["messages"][-1]
    edited = calling(call("pay", "a", x=10), call("pay", "b", x=2), id=asked.id)
    fork = made.update_state(config, {"messages": [edited]}, as_node="model")
    state = run(mode, made, None, fork)
    assert sorted(ran) == [1, 2, 10]
    assert replays(saver) == ["pay"]
    assert said(state)[0] == "receipt 3"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_unrelated_update_of_the_state_runs_nothing_anew(
    mode: str, kind: str, saver: Any
) -> None:
    made = built(kind, asking(call("pay", x=1)), [pay], saver)
    begin(mode, made)
    config = before(made)
    asked = made.get_state(config).values["messages"][-1]
    same = asked.model_copy(update={"additional_kwargs": {"noted": True}})
    fork = made.update_state(config, {"messages": [same]}, as_node="model")
    assert said(run(mode, made, None, fork)) == ["receipt 1"]
    assert ran == [1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_both_branches_of_a_fork_go_on(mode: str, kind: str, saver: Any) -> None:
    replies = [calling(call("pay", "a", x=1)), calling(call("pay", "b", x=2)), AIMessage("ok")]
    made = built(kind, script(*replies), [pay], saver)
    begin(mode, made)
    oldest = before(made, last=False)
    state = run(mode, made, None, oldest)
    assert said(state) == ["receipt 1", "receipt 3"]  # the model asked for the second anew
    assert ran == [1, 2, 2]
    assert replays(saver) == ["pay"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_asked_gives_its_recorded_result_without_asking_again(
    mode: str, kind: str, saver: Any
) -> None:
    @tool
    def book(x: int) -> str:
        """Book."""
        once("hold", lambda: ran.append("hold"))
        answer = interrupt("sure?")
        ran.append(answer)
        return f"booked {answer}"

    made = built(kind, asking(call("book", x=1)), [book], saver)
    begin(mode, made)
    run(mode, made, Command(resume="yes"))
    state = run(mode, made, None, before(made))
    assert said(state) == ["booked yes"]
    assert ran == ["hold", "yes"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_run_anew_asks_anew_and_does_its_steps_anew(
    mode: str, kind: str, saver: Any
) -> None:
    @tool
    def book(x: int) -> str:
        """Book."""
        once("hold", lambda: ran.append("hold"))
        return f"booked {interrupt('sure?')}"

    made = built(kind, asking(call("book", x=1)), [book], saver)
    begin(mode, made)
    run(mode, made, Command(resume="yes"))
    options = {"resilient": {"reexecute": ["book"]}}
    anew = {"configurable": {**before(made)["configurable"], **options}}
    assert run(mode, made, None, anew)["__interrupt__"][0].value == "sure?"
    state = run(mode, made, Command(resume="no"))
    assert said(state) == ["booked no"]
    assert ran == ["hold", "hold"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_forked_copy_of_a_thread_does_not_run_calls_again(
    mode: str, kind: str, saver: Any
) -> None:
    made = built(kind, asking(call("pay", x=1)), [pay], saver)
    begin(mode, made)
    saver.copy_thread("t", "copy")
    config = before(made, thread_id="copy")
    assert said(run(mode, made, None, config)) == ["receipt 1"]
    assert ran == [1]
