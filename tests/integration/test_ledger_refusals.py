"""Where errors become messages, the ledger's refusals must not: told "error", a model asks again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from building import fork, kill
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, tool
from langgraph.graph import END, START, MessagesState, StateGraph

from langgraph_resilient import (
    DatabaseFull,
    LostOwnership,
    NotRecorded,
    ResilienceMiddleware,
    ResilientSaver,
    ThreadBusy,
    ToolPolicy,
    UnknownOutcome,
    effect,
    tool_node,
)

CONFIG: Any = {"configurable": {"thread_id": "t"}}
START_INPUT: Any = {"messages": [("user", "pay")]}
CALL = {"name": "pay", "args": {"amount": 5}, "id": "c1", "type": "tool_call"}


class _Model(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self


def told_by_the_node(tool: BaseTool, policy: ToolPolicy, saver: Any) -> Any:
    """A tool node that turns every error into a message."""
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda _: {"messages": [AIMessage("", id="a1", tool_calls=[CALL])]})
    node = tool_node([tool], policies={"pay": policy}, handle_tool_errors=True)
    builder.add_node("tools", node)
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    builder.add_edge("tools", END)
    return builder.compile(checkpointer=saver)


def told_by_middleware(tool: BaseTool, policy: ToolPolicy, saver: Any) -> Any:
    """An agent whose retry middleware tells the model when it gives up."""
    model = _Model(messages=iter([AIMessage("", id="a1", tool_calls=[CALL]), AIMessage("done")]))
    retry = ToolRetryMiddleware(max_retries=1, initial_delay=0, jitter=False)
    recorded = ResilienceMiddleware(tools={"pay": policy})
    return create_agent(model, [tool], middleware=[retry, recorded], checkpointer=saver)


BUILDS = [told_by_the_node, told_by_middleware]
Build = Callable[[BaseTool, ToolPolicy, Any], Any]


def run(mode: str, graph: Any, given: Any) -> Any:
    if mode == "invoke":
        return graph.invoke(given, CONFIG)
    return asyncio.run(graph.ainvoke(given, CONFIG))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "agent.db")


@pytest.fixture
def saver(path: str) -> Iterator[ResilientSaver]:
    with ResilientSaver.from_conn_string(path) as opened:
        yield opened


@pytest.mark.parametrize("mode", ["invoke", "ainvoke"])
@pytest.mark.parametrize("build", BUILDS)
def test_an_unknown_outcome_that_is_to_be_raised_is_raised(
    saver: ResilientSaver, build: Build, mode: str
) -> None:
    ran = []

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        ran.append(amount)
        raise ConnectionResetError("line broke")

    graph = build(pay, ToolPolicy(effect="external", on_unknown="raise"), saver)
    with pytest.raises(UnknownOutcome, match="line broke"):
        run(mode, graph, START_INPUT)
    with pytest.raises(UnknownOutcome):
        run(mode, graph, None)
    assert ran == [5]


@pytest.mark.parametrize("mode", ["invoke", "ainvoke"])
@pytest.mark.parametrize("build", BUILDS)
def test_a_thread_that_another_process_runs_stops_the_run(
    path: str, tmp_path: Path, build: Build, mode: str
) -> None:
    """Two workers, one thread: the second one must not go on with an error message."""
    beginning = tmp_path / "beginning"
    os.mkfifo(beginning)

    @tool
    def wait(amount: int) -> str:
        """Pay, for a long time."""
        with beginning.open("w") as pipe:
            pipe.write("running")
        while True:
            os.read(os.open(beginning, os.O_RDONLY), 1)

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        raise AssertionError("it ran twice")

    wait.name = "pay"

    def first() -> None:
        with ResilientSaver.from_conn_string(path) as saver:
            build(wait, ToolPolicy(effect="external"), saver).invoke(START_INPUT, CONFIG)

    pid = fork(first)
    try:
        assert beginning.read_text() == "running"
        with ResilientSaver.from_conn_string(path, lease_wait=0.1) as saver:
            graph = build(pay, ToolPolicy(effect="external"), saver)
            with pytest.raises(ThreadBusy, match=f"process {pid}"):
                run(mode, graph, None)
            messages = graph.get_state(CONFIG).values["messages"]
            assert [message.type for message in messages] == ["human", "ai"]
    finally:
        kill(pid)


@pytest.mark.parametrize("mode", ["invoke", "ainvoke"])
@pytest.mark.parametrize("build", BUILDS)
def test_an_end_that_cannot_be_stored_stops_the_run_and_is_asked_about(
    saver: ResilientSaver, build: Build, mode: str
) -> None:
    ran = []

    @tool
    def pay(amount: int) -> str:
        """Pay; the disk is full afterwards."""
        ran.append(amount)
        [pages] = saver.conn.execute("PRAGMA page_count").fetchone()
        saver.conn.execute(f"PRAGMA max_page_count = {pages}")
        return os.urandom(50_000).hex()

    graph = build(pay, ToolPolicy(effect="external"), saver)
    with pytest.raises(NotRecorded, match="is full") as caught:
        run(mode, graph, START_INPUT)
    assert isinstance(caught.value.__cause__, DatabaseFull)
    saver.conn.execute("PRAGMA max_page_count = 1000000")
    [question] = run(mode, graph, None)["__interrupt__"]
    assert question.value["kind"] == "unknown_outcome"
    assert ran == [5]


@pytest.mark.parametrize("build", BUILDS)
def test_a_call_that_somebody_resolved_meanwhile_stops_the_run(
    saver: ResilientSaver, build: Build
) -> None:
    @tool
    def pay(amount: int) -> str:
        """Pay, while somebody deletes the thread."""
        saver.delete_thread("t", force=True)
        return "paid"

    graph = build(pay, ToolPolicy(effect="external"), saver)
    with pytest.raises(LostOwnership):
        graph.invoke(START_INPUT, CONFIG)


def test_files_that_cannot_be_named_leave_the_call_recorded(
    saver: ResilientSaver, caplog: pytest.LogCaptureFixture
) -> None:
    ran = []

    def nameless(result: Any) -> Any:
        raise KeyError("path")

    @effect("external", artifacts=nameless)
    @tool
    def pay(amount: int) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    state = told_by_the_node(pay, ToolPolicy(), saver).invoke(START_INPUT, CONFIG)
    assert state["messages"][-1].content == "paid"
    assert [entry.state for entry in saver.ledger.entries("t")] == ["succeeded"]
    assert "artifacts= failed" in caplog.text
