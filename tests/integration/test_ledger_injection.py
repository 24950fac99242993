"""What LangGraph and the ledger put into a tool's arguments is no part of the call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from agents import (
    KINDS,
    MODES,
    again,
    agent,
    asking,
    begin,
    built,
    call,
    entry,
    graph,
    replays,
    run,
    said,
    where,
)
from langchain.agents.middleware import AgentMiddleware
from langchain_core.tools import InjectedToolArg, InjectedToolCallId, StructuredTool, tool
from langgraph.prebuilt import InjectedState, InjectedStore, ToolNode, ToolRuntime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel, Field

from langgraph_resilient import (
    IdempotencyKey,
    ResilientSaver,
    current_call,
    recorded_tools,
    tool_node,
)


@pytest.fixture
def saver(db_path: str) -> Iterator[ResilientSaver]:
    with ResilientSaver.from_conn_string(db_path) as opened:
        yield opened


@tool
def everything(
    x: int,
    state: Annotated[dict, InjectedState],
    messages: Annotated[list, InjectedState("messages")],
    runtime: ToolRuntime,
    tool_call_id: Annotated[str, InjectedToolCallId],
    key: Annotated[str, IdempotencyKey()] = "",
) -> str:
    """Use everything."""
    current = current_call()
    assert current is not None
    assert key == current.idempotency_key
    assert runtime.tool_call_id == tool_call_id
    assert runtime.state["messages"] == messages == state["messages"]
    return f"{x} {tool_call_id} {len(messages)}"


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_to_which_the_model_gives_nothing_is_recorded_without_arguments(
    mode: str, saver: Any
) -> None:
    ran = []

    @tool
    def look(state: Annotated[dict, InjectedState]) -> str:
        """Look around."""
        ran.append(len(state["messages"]))
        return "seen"

    @tool
    def wait() -> str:
        """Wait."""
        return "waited"

    model = asking(call("look"), call("wait"))
    made = graph(model, ToolNode(recorded_tools([look, wait])), saver)
    assert said(begin(mode, made)) == ["seen", "waited"]
    assert (entry(saver, "look").arguments, entry(saver, "wait").arguments) == ({}, {})
    again(mode, made)
    assert ran == [2]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [*KINDS, "recorded_tools"])
def test_injected_arguments_are_given_and_are_no_part_of_the_call(
    mode: str, kind: str, saver: Any
) -> None:
    model = asking(call("everything", x=7))
    if kind == "recorded_tools":
        made = graph(model, ToolNode(recorded_tools([everything])), saver)
    else:
        made = built(kind, model, [everything], saver)
    assert said(begin(mode, made)) == ["7 call_everything 2"]
    assert said(again(mode, made)) == ["7 call_everything 2"]
    assert replays(saver) == ["everything"]
    assert entry(saver, "everything").arguments == {"x": 7}


def test_the_model_does_not_see_the_idempotency_key() -> None:
    shown = everything.tool_call_schema.model_json_schema()
    assert list(shown["properties"]) == ["x"]


@pytest.mark.parametrize("mode", MODES)
def test_a_key_that_a_model_makes_up_is_not_used(mode: str, saver: Any) -> None:
    seen: list[str] = []

    @tool
    def pay(x: int, key: Annotated[str, IdempotencyKey()] = "") -> str:
        """Pay."""
        seen.append(key)
        return "paid"

    begin(mode, built("agent", asking(call("pay", x=1, key="mine")), [pay], saver))
    assert seen == [entry(saver, "pay").idempotency_key]


@pytest.mark.parametrize("mode", MODES)
def test_the_key_is_the_same_in_every_attempt_and_another_one_for_another_call(
    mode: str, saver: Any
) -> None:
    seen: list[str] = []

    @tool
    def pay(x: int, key: Annotated[str, IdempotencyKey()] = "") -> str:
        """Pay."""
        seen.append(key)
        if len(seen) == 1:
            raise ValueError("once more")
        return "paid"

    made = built("node", asking(call("pay", x=1)), [pay], saver)
    with pytest.raises(ValueError, match="once more"):
        begin(mode, made)
    run(mode, made)
    begin(mode, made, where("other"))
    assert seen[0] == seen[1] != seen[2]


@pytest.mark.parametrize("mode", MODES)
def test_a_key_in_a_schema_of_ones_own_is_filled_too(mode: str, saver: Any) -> None:
    class Payment(BaseModel):
        x: int = Field(description="how much")
        key: Annotated[str, IdempotencyKey(), InjectedToolArg] = ""

    seen: list[str] = []

    def pay(x: int, key: str = "") -> str:
        seen.append(key)
        return "paid"

    made = StructuredTool.from_function(pay, name="pay", description="Pay", args_schema=Payment)
    assert "key" not in made.tool_call_schema.model_json_schema()["properties"]
    begin(mode, built("node", asking(call("pay", x=1)), [made], saver))
    assert seen == [entry(saver, "pay").idempotency_key]


@pytest.mark.parametrize("mode", MODES)
def test_the_store_is_injected(mode: str, saver: Any) -> None:
    @tool
    def keep(x: int, store: Annotated[BaseStore, InjectedStore()]) -> str:
        """Keep."""
        store.put(("kept",), "x", {"value": x})
        return "kept"

    store = InMemoryStore()
    made = agent(asking(call("keep", x=3)), [keep], saver, more={"store": store})
    begin(mode, made)
    assert store.get(("kept",), "x").value == {"value": 3}
    assert entry(saver, "keep").arguments == {"x": 3}


class Dynamic(AgentMiddleware[Any, Any, Any]):
    """Adds a tool when it is called."""

    def __init__(self, made: Any) -> None:
        super().__init__()
        self.made = made

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        if request.tool is None and request.tool_call["name"] == self.made.name:
            return handler(request.override(tool=self.made))
        return handler(request)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        if request.tool is None and request.tool_call["name"] == self.made.name:
            return await handler(request.override(tool=self.made))
        return await handler(request)


@pytest.mark.parametrize("mode", MODES)
def test_tools_that_other_middleware_adds_are_recorded(mode: str, saver: Any) -> None:
    ran: list[int] = []

    @tool
    def late(x: int, runtime: ToolRuntime) -> str:
        """Late."""
        ran.append(x)
        return f"late {x} {runtime.tool_call_id}"

    made = agent(asking(call("late", x=5)), [], saver, before=[Dynamic(late)])
    assert said(begin(mode, made)) == ["late 5 call_late"]
    assert said(again(mode, made)) == ["late 5 call_late"]
    assert ran == [5]
    assert replays(saver) == ["late"]


@pytest.mark.parametrize("mode", MODES)
def test_a_request_that_other_middleware_edits_is_recorded_as_it_runs(
    mode: str, saver: Any
) -> None:
    class Doubling(AgentMiddleware[Any, Any, Any]):
        def edited(self, request: Any) -> Any:
            made = {**request.tool_call, "args": {"x": request.tool_call["args"]["x"] * 2}}
            return request.override(tool_call=made)

        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            return handler(self.edited(request))

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            return await handler(self.edited(request))

    @tool
    def pay(x: int) -> str:
        """Pay."""
        return f"paid {x}"

    made = agent(asking(call("pay", x=5)), [pay], saver, before=[Doubling()])
    assert said(begin(mode, made)) == ["paid 10"]
    found = entry(saver, "pay")
    assert found.arguments == {"x": 10}
    assert found.message_id
    again(mode, made)
    assert replays(saver) == ["pay"]


@pytest.mark.parametrize("mode", MODES)
def test_async_tools_and_plain_functions_are_recorded(mode: str, saver: Any) -> None:
    async def aside(x: int) -> str:
        """Aside."""
        return f"a {x}"

    def plain(x: int) -> str:
        """Plain."""
        return f"p {x}"

    calls = [call("plain", x=1)] + ([call("aside", x=2)] if mode == "ainvoke" else [])
    made = graph(asking(*calls), tool_node([aside, plain]), saver)
    assert said(begin(mode, made)) == ["p 1", "a 2"][: len(calls)]


def test_a_coroutine_tool_in_a_sync_graph_fails_as_it_does_without_the_ledger(saver: Any) -> None:
    @tool
    async def aside(x: int) -> str:
        """Aside."""
        return f"a {x}"

    made = graph(asking(call("aside", x=1)), tool_node([aside]), saver)
    with pytest.raises(NotImplementedError):
        begin("invoke", made)
    assert entry(saver, "aside").state == "failed"
