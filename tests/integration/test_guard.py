"""A guarded graph goes on with a stopped run only when what that relied on is still there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from agents import MODES, run, where
from guarding import Down, State, line, question, stop_before
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send

from langgraph_resilient import (
    Change,
    ConfigurationError,
    EnvironmentChanged,
    ResilientSaver,
    guarded,
    unfinished,
)


@pytest.fixture
def saver(db_path: str) -> Iterator[ResilientSaver]:
    with ResilientSaver.from_conn_string(db_path) as opened:
        yield opened


# --- a node that is gone --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_run_whose_next_node_is_gone_asks_before_it_goes_on(
    saver: ResilientSaver, mode: str
) -> None:
    stop_before(saver, line("a", "b", failing="b"), mode)
    changed = line("a", "c").compile(checkpointer=saver)
    assert changed.get_state(where()).next == ()  # LangGraph alone ends the run without a word

    state = run(mode, guarded(changed))
    asked = question(state)
    assert "node 'b' is gone (the stopped run still needs it)" in asked.value["message"]
    assert list(state) == ["__interrupt__"]
    assert question(run(mode, guarded(changed))).id == asked.id  # wherever it is asked
    restored = guarded(line("a", "b").compile(checkpointer=saver))
    assert run(mode, restored)["said"] == ["input", "a", "b"]


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_lets_it_go_on_and_is_noted(saver: ResilientSaver, mode: str) -> None:
    stop_before(saver, line("a", "b", "c", failing="b"), mode)
    graph = guarded(line("a", "c").compile(checkpointer=saver))
    asked = question(run(mode, graph))
    answer = {"action": "continue", "by": "Ann", "reason": "b was superfluous"}
    command = Command(resume={asked.id: answer}, goto="c")
    assert run(mode, graph, command)["said"] == ["input", "a", "c"]

    noted = graph.get_state(where()).metadata["resilient_environment"]["accepted"]
    assert noted == {**answer, "changes": ["node 'b' is gone (the stopped run still needs it)"]}
    assert run(mode, graph)["said"] == ["input", "a", "c"]  # and is not asked again


def test_a_bare_answer_does_where_nothing_else_is_asked(saver: ResilientSaver) -> None:
    stop_before(saver, line("a", "b", failing="b"))
    graph = guarded(line("a", "c").compile(checkpointer=saver))
    question(graph.invoke(None, where()))
    with pytest.raises(EnvironmentChanged, match="answered with stop"):
        graph.invoke(Command(resume="stop"), where())
    with pytest.raises(ConfigurationError, match="'perhaps' is no answer"):
        graph.invoke(Command(resume={"action": "perhaps"}), where())
    assert "__interrupt__" not in graph.invoke(Command(resume="continue"), where())


@pytest.mark.parametrize("mode", MODES)
def test_it_may_raise(saver: ResilientSaver, mode: str) -> None:
    stop_before(saver, line("a", "b", failing="b"), mode)
    graph = guarded(line("a", "c").compile(checkpointer=saver), on_change="raise")
    with pytest.raises(EnvironmentChanged, match="thread 't' does not go on: node 'b'") as caught:
        run(mode, graph)
    [change] = caught.value.changes
    assert isinstance(change, Change)
    assert (change.kind, change.name, change.serious) == ("node", "b", True)


def test_it_may_warn_and_go_on(saver: ResilientSaver, caplog: pytest.LogCaptureFixture) -> None:
    stop_before(saver, line("a", "b", failing="b"))
    graph = guarded(line("a", "c").compile(checkpointer=saver), on_change={"node": "warn"})
    with caplog.at_level(logging.WARNING, "langgraph_resilient"):
        assert graph.invoke(None, where())["said"] == ["input", "a"]
    assert "thread 't' goes on, although node 'b' is gone" in caplog.text


def test_a_send_to_a_node_that_is_gone_is_noticed(saver: ResilientSaver) -> None:
    def builder(name: str, failing: bool) -> StateGraph:
        def spread(_: State) -> list[Send]:
            return [Send(name, {"number": 1}), Send(name, {"number": 2})]

        def work(given: State) -> dict:
            if failing:
                raise Down
            return {"said": [given["number"]]}

        made = StateGraph(State)
        made.add_node("begin", lambda _: {"said": ["begin"]})
        made.add_node(name, work)
        made.add_edge(START, "begin")
        made.add_conditional_edges("begin", spread, [name])
        return made

    stop_before(saver, builder("work", failing=True))
    graph = guarded(builder("toil", failing=False).compile(checkpointer=saver), on_change="raise")
    with pytest.raises(EnvironmentChanged, match="node 'work' is gone"):
        graph.invoke(None, where())


def test_a_node_that_a_finished_sibling_leads_to_is_needed_too(saver: ResilientSaver) -> None:
    def builder(name: str, failing: bool) -> StateGraph:
        def fails(_: State) -> dict:
            if failing:
                raise Down
            return {}

        made = StateGraph(State)
        made.add_node("quick", lambda _: {"said": ["quick"]})
        made.add_node("slow", fails)
        made.add_node(name, lambda _: {"said": [name]})
        made.add_edge(START, "quick")
        made.add_edge(START, "slow")
        made.add_edge("quick", name)
        return made

    stop_before(saver, builder("after", failing=True))
    assert unfinished(builder("after", failing=False).compile(), saver)[0].next == ("slow",)
    graph = guarded(builder("later", failing=False).compile(checkpointer=saver), on_change="raise")
    with pytest.raises(EnvironmentChanged, match="node 'after' is gone"):
        graph.invoke(None, where())


def test_a_join_of_other_nodes_would_never_come_about(saver: ResilientSaver) -> None:
    def builder(*joined: str, failing: str = "") -> StateGraph:
        made = line("a", "b", failing=failing)
        made.edges.clear()
        for name in joined:
            if name not in made.nodes:
                made.add_node(name, lambda _: {"said": ["more"]})
            made.add_edge(START, name)
        made.add_node("end", lambda _: {"said": ["end"]})
        made.add_edge(list(joined), "end")
        return made

    stop_before(saver, builder("a", "b", failing="b"))
    graph = guarded(builder("a", "b", "c").compile(checkpointer=saver), on_change="raise")
    with pytest.raises(EnvironmentChanged, match=r"node 'end' is triggered otherwise \(what tr"):
        graph.invoke(None, where())
    same = guarded(builder("a", "b").compile(checkpointer=saver), on_change="raise")
    assert sorted(same.invoke(None, where())["said"]) == ["a", "b", "end", "input"]


def test_a_node_that_is_gone_inside_a_subgraph_is_noticed(saver: ResilientSaver) -> None:
    def builder(*names: str, failing: str = "") -> StateGraph:
        outer = StateGraph(State)
        outer.add_node("sub", line(*names, failing=failing).compile())
        outer.add_edge(START, "sub")
        return outer

    stop_before(saver, builder("a", "b", failing="b"))
    graph = guarded(builder("a", "c").compile(checkpointer=saver), on_change="raise")
    with pytest.raises(EnvironmentChanged, match=r"node 'sub\|b' is gone"):
        graph.invoke(None, where())
    assert guarded(builder("a", "b").compile(checkpointer=saver)).invoke(None, where())


# --- what is shown --------------------------------------------------------------------------------

PARTS: dict[str, dict] = {
    "values": {"stream_mode": "values"},
    "updates": {"stream_mode": "updates"},
    "both": {"stream_mode": ["values", "updates"]},
    "subgraphs": {"stream_mode": "updates", "subgraphs": True},
    "v2": {"stream_mode": "values", "version": "v2"},
}


@pytest.mark.parametrize("options", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["stream", "astream"])
def test_the_question_is_shown_in_every_stream_mode(
    saver: ResilientSaver, options: dict, asynchronous: bool
) -> None:
    stop_before(saver, line("a", "b", failing="b"))
    graph = guarded(line("a", "c").compile(checkpointer=saver))

    async def collected() -> list:
        return [part async for part in graph.astream(None, where(), **options)]

    parts = (
        asyncio.run(collected()) if asynchronous else list(graph.stream(None, where(), **options))
    )
    assert "environment_changed" in repr(parts)
    whole = graph.invoke(None, where(), version="v2")
    assert [one.value["kind"] for one in whole.interrupts] == ["environment_changed"]


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_that_is_left_lets_go_of_the_thread(saver: ResilientSaver, mode: str) -> None:
    graph = guarded(line("a", "b").compile(checkpointer=saver))

    async def left() -> None:
        parts = graph.astream({"said": []}, where())
        await anext(parts)
        await parts.aclose()

    if mode == "ainvoke":
        asyncio.run(left())
    else:
        parts = graph.stream({"said": []}, where())
        next(parts)
        parts.close()
    assert run(mode, graph)["said"] == ["a", "b"]
