"""Histories that a crash has cut are mended from the ledger before a model sees them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import MODES, Scripted, agent, asking, begin, built, call, calling, run, where
from building import in_child
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph

from langgraph_resilient import ResilientSaver, repair_messages, tool_node
from langgraph_resilient._aio import drive
from langgraph_resilient.integrations.repair import repair_flow
from langgraph_resilient.integrations.runtime import Place


@pytest.fixture
def saver(db_path: str) -> Iterator[ResilientSaver]:
    with ResilientSaver.from_conn_string(db_path) as opened:
        yield opened


def dying_tools(saver: Any, path: Path) -> list[Any]:
    @tool
    def quick(x: int) -> str:
        """Be quick."""
        return f"quick {x}"

    @tool
    def deadly() -> str:
        """Kill the process once the others are finished."""
        while sum(e.state in ("succeeded", "failed") for e in saver.ledger.entries("t")) < 2:
            time.sleep(0.002)
        path.write_text("effect")
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    @tool
    def fail() -> str:
        """Fail."""
        raise ValueError("out of stock")

    return [quick, deadly, fail]


CALLS = (call("quick", x=1), call("deadly"))


def begun(mode: str, db_path: str, tmp_path: Path, make: Any) -> None:
    """A child that dies inside a tool while the one beside it is finished."""

    def body() -> None:
        with ResilientSaver.from_conn_string(db_path) as saver:
            begin(mode, make(asking(*CALLS, call("quick", "q2", x=2)), saver, tmp_path / "effect"))

    assert in_child(body) == -signal.SIGKILL


def an_agent(model: Any, saver: Any, path: Path) -> Any:
    return agent(model, dying_tools(saver, path), saver)


def a_graph(model: Any, saver: Any, path: Path) -> Any:
    def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(repair_messages(state["messages"]))]}

    def onward(state: MessagesState) -> str:
        return "tools" if getattr(state["messages"][-1], "tool_calls", None) else END

    builder = StateGraph(MessagesState)
    builder.add_node("model", think)
    builder.add_node("tools", tool_node(dying_tools(saver, path)))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", onward)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [an_agent, a_graph])
def test_a_new_message_after_a_crash_in_a_tool(
    mode: str, make: Any, db_path: str, tmp_path: Path
) -> None:
    begun(mode, db_path, tmp_path, make)
    model = Scripted(replies=[AIMessage("sorry")], seen=[])
    with ResilientSaver.from_conn_string(db_path) as saver:
        made = make(model, saver, tmp_path / "effect")
        given = {"messages": [HumanMessage("what happened?")]}
        state = run(mode, made, given)
        assert state["messages"][-1].content == "sorry"
        [seen] = model.seen
        kinds = [message.type for message in seen]
        assert kinds == ["human", "ai", "tool", "tool", "tool", "human"]
        texts = {m.tool_call_id: m for m in seen if isinstance(m, ToolMessage)}
        assert texts["call_quick"].content == "quick 1"
        assert texts["q2"].content == "quick 2"
        truth = texts["call_deadly"]
        assert (truth.status, truth.name) == ("error", "deadly")
        assert "unknown" in truth.content
        assert (tmp_path / "effect").read_text() == "effect"


@pytest.mark.parametrize("mode", MODES)
def test_failed_suspended_and_never_begun_calls_are_told_truthfully(
    mode: str, saver: Any, tmp_path: Path
) -> None:
    tools = dying_tools(saver, tmp_path / "effect")
    model = asking(call("fail"))
    made = agent(model, tools, saver)
    with pytest.raises(ValueError, match="out of stock"):
        begin(mode, made)
    asked = made.get_state(where()).values["messages"][-1]
    more = asked.model_copy(update={"tool_calls": [*asked.tool_calls, call("quick", "never", x=1)]})
    history = [HumanMessage("go"), more, HumanMessage("well?")]
    mended = repair_messages(history, saver, "t")
    assert [m.type for m in mended] == ["human", "ai", "tool", "tool", "human"]
    assert "out of stock" in mended[2].content
    assert "interrupted before it began" in mended[3].content


@pytest.mark.parametrize("mode", MODES)
def test_the_model_goes_on_and_the_thread_stays_usable(mode: str, saver: Any) -> None:
    @tool
    def fail() -> str:
        """Fail."""
        raise ValueError("out of stock")

    made = agent(asking(call("fail")), [fail], saver)
    with pytest.raises(ValueError, match="out of stock"):
        begin(mode, made)
    for _ in range(2):
        state = run(mode, made, {"messages": [HumanMessage("again")]})
        assert state["messages"][-1].content == "done"


def test_whole_histories_are_given_on_as_they_are(saver: Any) -> None:
    history = [
        HumanMessage("go"),
        calling(call("quick", "a", x=1)),
        ToolMessage("quick 1", tool_call_id="a"),
        AIMessage("done"),
    ]
    assert drive(repair_flow(Place(where(), saver), history)) is history
    assert all(a is b for a, b in zip(repair_messages(history, saver, "t"), history, strict=True))


def test_equal_calls_get_a_result_each(saver: Any) -> None:
    numbers = iter(range(9))

    @tool
    def numbered() -> str:
        """Number."""
        return f"number {next(numbers)}"

    made = built("node", asking(*(call("numbered", "same") for _ in range(3))), [numbered], saver)
    asked = begin("invoke", made)["messages"][1]
    mended = repair_messages([HumanMessage("go"), asked], saver, "t")
    assert sorted(m.content for m in mended[2:]) == ["number 0", "number 1", "number 2"]
    assert len({m.id for m in mended}) == 5


def test_several_cut_messages_and_answers_that_came_late(saver: Any) -> None:
    history = [
        HumanMessage("go"),
        calling(call("a", "1"), call("b", "2")),
        ToolMessage("b said", tool_call_id="2"),
        HumanMessage("and?"),
        calling(call("c", "1")),
        HumanMessage("hello?"),
    ]
    mended = repair_messages(history, saver, "t")
    told = [(m.type, getattr(m, "tool_call_id", None)) for m in mended]
    assert told == [
        ("human", None),
        ("ai", None),
        ("tool", "2"),
        ("tool", "1"),
        ("human", None),
        ("ai", None),
        ("tool", "1"),
        ("human", None),
    ]
    assert repair_messages(mended, saver, "t") == mended
