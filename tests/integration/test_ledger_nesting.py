"""Agents within agents: sub-agents inside tools, sub-graphs, handoffs to the parent graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from agents import (
    MODES,
    USER,
    again,
    agent,
    answers,
    asking,
    begin,
    built,
    call,
    entry,
    graph,
    replays,
    run,
    said,
    script,
    states,
)
from langchain.agents import AgentState, create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState
from langgraph.types import Command, Send

from langgraph_resilient import ResilienceMiddleware, ResilientSaver, effect, tool_node


@pytest.fixture
def saver(db_path: str) -> Iterator[ResilientSaver]:
    with ResilientSaver.from_conn_string(db_path, barrier_wait=2.0) as opened:
        yield opened


class Counting:
    """A tool with an effect that is counted."""

    def __init__(self, fails: int = 0) -> None:
        self.ran: list[int] = []
        self.fails = fails

        @tool
        def pay(x: int) -> str:
            """Pay."""
            self.ran.append(x)
            if len(self.ran) <= self.fails:
                raise ValueError("declined")
            return f"paid {x}"

        self.tool = pay


def delegating(inner: Any, mode: str, kind: str = "idempotent") -> Any:
    """A tool that runs an agent."""

    def ask(x: int) -> str:
        """Ask the sub-agent."""
        return str(inner.invoke(USER)["messages"][-1].content)

    async def aask(x: int) -> str:
        """Ask the sub-agent."""
        return str((await inner.ainvoke(USER))["messages"][-1].content)

    return effect(kind)(tool("ask")(ask if mode == "invoke" else aask))


INNER = {
    "inherits": lambda model, tools: create_agent(
        model, tools, middleware=[ResilienceMiddleware()]
    ),
    "own": lambda model, tools: create_agent(
        model, tools, middleware=[ResilienceMiddleware()], checkpointer=True
    ),
    "node": lambda model, tools: graph(model, tool_node(tools), None),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("inner", ["inherits", "node"])
@pytest.mark.parametrize("outer", ["agent", "node"])
def test_calls_of_a_sub_agent_are_children_of_the_call_that_runs_it(
    mode: str, inner: str, outer: str, saver: Any
) -> None:
    counting = Counting()
    made = INNER[inner](asking(call("pay", x=1)), [counting.tool])
    outside = built(outer, asking(call("ask", x=1)), [delegating(made, mode)], saver)
    assert said(begin(mode, outside)) == ["done"]
    assert states(saver) == [("ask", "succeeded"), ("pay", "succeeded")]
    assert entry(saver, "pay").parent == entry(saver, "ask").key
    again(mode, outside)
    assert replays(saver) == ["ask"]
    assert counting.ran == [1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("inner", ["inherits", "node"])
def test_a_sub_agent_that_failed_late_does_not_repeat_its_finished_calls(
    mode: str, inner: str, saver: Any
) -> None:
    counting, fails = Counting(), [1]

    def broken(messages: Any) -> AIMessage:
        if fails:
            fails.pop()
            raise RuntimeError("model down")
        return AIMessage("done")

    made = INNER[inner](script(asking(call("pay", x=1)).replies[0], broken), [counting.tool])
    outside = agent(asking(call("ask", x=1)), [delegating(made, mode)], saver)
    with pytest.raises(RuntimeError, match="model down"):
        begin(mode, outside)
    assert states(saver) == [("ask", "failed"), ("pay", "succeeded")]
    assert said(run(mode, outside)) == ["done"]
    assert counting.ran == [1]


@pytest.mark.parametrize("mode", MODES)
def test_two_equal_calls_that_run_sub_agents_have_children_of_their_own(
    mode: str, saver: Any
) -> None:
    counting = Counting()
    reply = AIMessage("", id="same", tool_calls=[call("pay", "c", x=1)])
    made = INNER["inherits"](script(reply), [counting.tool])
    calls = [call("ask", "a", x=1), call("ask", "b", x=1)]
    outside = agent(asking(*calls), [delegating(made, mode)], saver)
    begin(mode, outside)
    assert counting.ran == [1, 1]
    assert {one.parent for one in saver.ledger.entries("t") if one.tool == "pay"} == {
        one.key for one in saver.ledger.entries("t") if one.tool == "ask"
    }


@pytest.mark.parametrize("mode", MODES)
def test_a_graph_without_checkpoints_inside_a_tool_does_not_wait_for_one(
    mode: str, saver: Any
) -> None:
    """Nothing of it is ever stored, so its external calls have no checkpoint to wait for."""
    counting = Counting()
    made = create_agent(
        asking(call("pay", x=1)),
        [counting.tool],
        middleware=[ResilienceMiddleware()],
        checkpointer=False,
    )
    outside = agent(asking(call("ask", x=1)), [delegating(made, mode)], saver)
    assert said(begin(mode, outside)) == ["done"]
    assert states(saver) == [("ask", "succeeded"), ("pay", "succeeded")]
    assert entry(saver, "pay").parent == entry(saver, "ask").key


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("checkpointer", [None, True])
def test_calls_in_a_sub_graph_are_recorded(mode: str, checkpointer: Any, saver: Any) -> None:
    counting = Counting()
    inner = graph(asking(call("pay", x=1)), tool_node([counting.tool]), checkpointer)
    builder = StateGraph(MessagesState)
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    builder.add_edge("inner", END)
    made = builder.compile(checkpointer=saver)
    assert said(begin(mode, made)) == ["paid 1"]
    assert states(saver) == [("pay", "succeeded")]
    assert counting.ran == [1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("checkpointer", [None, True])
def test_a_failed_call_in_a_sub_graph_is_resumed_alone(
    mode: str, checkpointer: Any, saver: Any
) -> None:
    counting = Counting(fails=1)
    inner = graph(asking(call("pay", x=1)), tool_node([counting.tool]), checkpointer)
    builder = StateGraph(MessagesState)
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    builder.add_edge("inner", END)
    made = builder.compile(checkpointer=saver)
    with pytest.raises(ValueError, match="declined"):
        begin(mode, made)
    assert said(run(mode, made)) == ["paid 1"]
    assert entry(saver, "pay").attempt == 2


# --- handoffs -----------------------------------------------------------------------------------


class Routed(AgentState):
    by: str


def handoff(ran: list[int]) -> Any:
    @tool
    def to_bob(
        tool_call_id: Annotated[str, InjectedToolCallId],
        state: Annotated[Any, InjectedState],
    ) -> Command:
        """Hand over to Bob."""
        ran.append(1)
        message = ToolMessage("now Bob", tool_call_id=tool_call_id, name="to_bob")
        update = {"messages": [*state["messages"], message], "by": "alice"}
        return Command(goto="bob", graph=Command.PARENT, update=update)

    return to_bob


def team(alice: Any, saver: Any) -> Any:
    def bob(state: Routed) -> dict[str, Any]:
        return {"messages": [AIMessage(f"Bob here, sent by {state['by']}", id="bob")]}

    builder = StateGraph(Routed)
    builder.add_node("alice", alice, destinations=("bob",))
    builder.add_node("bob", bob)
    builder.add_edge(START, "alice")
    builder.add_edge("bob", END)
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["agent", "node"])
def test_a_handoff_to_the_parent_graph_happens_once_and_is_replayed(
    mode: str, kind: str, saver: Any
) -> None:
    ran: list[int] = []
    alice = built(kind, asking(call("to_bob")), [handoff(ran)], None)
    made = team(alice, saver)
    state = begin(mode, made)
    assert state["messages"][-1].content == "Bob here, sent by alice"
    assert [m.content for m in answers(state)] == ["now Bob"]
    found = entry(saver, "to_bob")
    assert found.state == "succeeded"
    assert ran == [1]


@pytest.mark.parametrize("mode", MODES)
def test_a_handoff_beside_a_call_that_failed_is_replayed(mode: str, saver: Any) -> None:
    """The step failed after the handoff was recorded: resumed, it hands over, but once."""
    ran: list[int] = []
    counting = Counting(fails=1)
    calls = [call("to_bob"), call("pay", x=1)]
    made = team(built("node", asking(*calls), [handoff(ran), counting.tool], None), saver)
    with pytest.raises(ValueError, match="declined"):
        begin(mode, made)
    state = run(mode, made)
    assert state["messages"][-1].content == "Bob here, sent by alice"
    assert ran == [1]
    assert states(saver) == [("pay", "succeeded"), ("to_bob", "succeeded")]


@pytest.mark.parametrize("mode", MODES)
def test_commands_that_send_are_recorded(mode: str, saver: Any) -> None:
    ran: list[int] = []

    @tool
    def spread(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command:
        """Spread."""
        ran.append(1)
        sends = [Send("bob", {"by": who, "messages": []}) for who in ("ann", "cy")]
        return Command(goto=sends, graph=Command.PARENT)

    made = team(built("node", asking(call("spread")), [spread], None), saver)
    state = begin(mode, made)
    assert ran == [1]
    assert entry(saver, "spread").state == "succeeded"
    assert state["messages"][-1].content.startswith("Bob here")
