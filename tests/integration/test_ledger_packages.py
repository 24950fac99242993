"""Tools and agents of other packages: MCP servers, deepagents, swarm, supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from agents import (
    MODES,
    USER,
    Scripted,
    again,
    agent,
    answers,
    asking,
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
    where,
)
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool

from langgraph_resilient import ResilienceMiddleware, ResilientSaver, tool_node

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
    return f"paid {x}"


# --- MCP ------------------------------------------------------------------------------------------


def server() -> Any:
    """A server whose tools say what calling them does."""
    fastmcp = pytest.importorskip("mcp.server.fastmcp")
    types = pytest.importorskip("mcp.types")
    made = fastmcp.FastMCP("shop", log_level="ERROR")

    @made.tool(annotations=types.ToolAnnotations(readOnlyHint=True))
    def look(x: int) -> str:
        """Look."""
        ran.append(("look", x))
        return f"seen {x}"

    @made.tool(annotations=types.ToolAnnotations(idempotentHint=True))
    def put(x: int) -> str:
        """Put."""
        ran.append(("put", x))
        return f"put {x}"

    @made.tool()
    def order(x: int) -> dict[str, int]:
        """Order."""
        ran.append(("order", x))
        return {"ordered": x}

    @made.tool()
    def refuse() -> str:
        """Refuse."""
        ran.append(("refuse",))
        raise ValueError("sold out")

    return made


@pytest.mark.parametrize("kind", ["agent", "node"])
def test_tools_of_an_mcp_server(kind: str, saver: Any) -> None:
    adapters = pytest.importorskip("langchain_mcp_adapters.tools")
    memory = pytest.importorskip("mcp.shared.memory")
    calls = [call(name, name, x=1) for name in ("look", "put", "order")]

    async def session() -> tuple[Any, Any]:
        shop = server()
        async with memory.create_connected_server_and_client_session(shop._mcp_server) as client:
            tools = await adapters.load_mcp_tools(client)
            made = built(kind, asking(*calls), tools, saver)
            first = await made.ainvoke(USER, where())
            snapshots = [s async for s in made.aget_state_history(where())]
            config = next(s.config for s in snapshots if "tools" in s.next)
            return first, await made.ainvoke(None, config)

    first, second = asyncio.run(session())
    assert sorted(ran) == [("look", 1), ("order", 1), ("put", 1)]
    effects = {one.tool: one.effect for one in saver.ledger.entries("t")}
    assert effects == {"look": "pure", "put": "idempotent", "order": "external"}
    assert replays(saver) == ["look", "order", "put"]
    assert [m.content for m in answers(second)] == [m.content for m in answers(first)]
    assert [m.artifact for m in answers(second)] == [m.artifact for m in answers(first)]
    assert answers(first)[2].artifact == {"structured_content": {"ordered": 1}}


def test_an_error_of_an_mcp_tool_is_its_answer(saver: Any) -> None:
    adapters = pytest.importorskip("langchain_mcp_adapters.tools")
    memory = pytest.importorskip("mcp.shared.memory")

    async def session() -> Any:
        async with memory.create_connected_server_and_client_session(
            server()._mcp_server
        ) as client:
            tools = await adapters.load_mcp_tools(client)
            made = agent(asking(call("refuse")), tools, saver)
            return await made.ainvoke(USER, where())

    state = asyncio.run(session())
    assert "sold out" in str(said(state)[0])
    assert answers(state)[0].status == "error"
    found = entry(saver, "refuse")  # the adapter gives the error back as the tool's answer
    assert (found.state, found.flags) == ("succeeded", ("error",))


# --- deepagents -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_deep_agents(mode: str, saver: Any) -> None:
    deepagents = pytest.importorskip("deepagents")
    inner = Scripted(replies=[calling(call("pay", "inner", x=2)), AIMessage("inner done")], seen=[])
    sub = {
        "name": "buyer",
        "description": "Buys",
        "system_prompt": "Buy.",
        "tools": [pay],
        "model": inner,
        "middleware": [ResilienceMiddleware()],
    }
    outer = script(
        calling(
            call("write_file", file_path="/note.txt", content="hello"),
            call("task", description="buy it", subagent_type="buyer"),
            call("pay", x=1),
        ),
        calling(call("read_file", file_path="/note.txt")),
    )
    made = deepagents.create_deep_agent(
        model=outer,
        tools=[pay],
        subagents=[sub],
        middleware=[ResilienceMiddleware()],
        checkpointer=saver,
    )
    state = begin(mode, made)
    assert state["messages"][-1].content == "done"
    assert sorted(ran) == [1, 2]
    found = dict(states(saver))
    assert set(found) == {"write_file", "task", "pay", "read_file"}
    assert set(found.values()) == {"succeeded"}
    parents = {one.parent for one in saver.ledger.entries("t") if one.tool == "pay"}
    assert parents == {"", entry(saver, "task").key}
    run(mode, made, None, None)
    state = again(mode, made)
    assert "hello" in str(said(state))
    assert sorted(ran) == [1, 2]


# --- handoffs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_swarm_handoffs(mode: str, saver: Any) -> None:
    swarm = pytest.importorskip("langgraph_swarm")
    to_bob = swarm.create_handoff_tool(agent_name="bob")
    alice = create_agent(
        script(calling(call("pay", "p", x=1)), calling(call(to_bob.name, "h"))),
        [pay, to_bob],
        middleware=[ResilienceMiddleware()],
        name="alice",
    )
    bob = create_agent(
        Scripted(replies=[AIMessage("Bob here")], seen=[]), [pay], name="bob", middleware=[]
    )
    made = swarm.create_swarm([alice, bob], default_active_agent="alice").compile(
        checkpointer=saver
    )
    state = begin(mode, made)
    assert state["messages"][-1].content == "Bob here"
    assert state["active_agent"] == "bob"
    assert ran == [1]
    assert sorted(states(saver)) == [("pay", "succeeded"), (to_bob.name, "succeeded")]


@pytest.mark.filterwarnings("ignore:create_react_agent")
@pytest.mark.parametrize("mode", MODES)
def test_supervisor_handoffs(mode: str, saver: Any) -> None:
    supervisor = pytest.importorskip("langgraph_supervisor")
    bob = create_agent(
        script(AIMessage("not asked"), calling(call("pay", "p", x=1))),
        [pay],
        middleware=[ResilienceMiddleware()],
        name="bob",
    )
    handoff = supervisor.create_handoff_tool(agent_name="bob")
    model = script(calling(call(handoff.name, "h")))
    made = supervisor.create_supervisor([bob], model=model, tools=tool_node([handoff])).compile(
        checkpointer=saver
    )
    state = begin(mode, made)
    assert ran == [1]
    assert (handoff.name, "succeeded") in states(saver)
    assert ("pay", "succeeded") in states(saver)
    assert state["messages"][-1].content == "done"
