"""Whatever a tool gives back is recorded as it is, and given back as it was."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from agents import (
    KINDS,
    MODES,
    again,
    answers,
    asking,
    begin,
    built,
    call,
    entry,
    replays,
    run,
    said,
    states,
)
from langchain.agents import AgentState
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, ToolException, tool
from langgraph.types import Command

from langgraph_resilient import ResilientSaver


@pytest.fixture
def saver(db_path: str) -> Iterator[ResilientSaver]:
    with ResilientSaver.from_conn_string(db_path) as opened:
        yield opened


def twice(mode: str, kind: str, saver: ResilientSaver, made: Any, *calls: Any, **more: Any) -> Any:
    """Run calls, and then the same step once more: what the second run ends with."""
    graph = built(kind, asking(*calls), [made], saver, **more)
    first = begin(mode, graph)
    second = again(mode, graph)
    assert replays(saver) == [made.name] * len(calls)
    assert [m.id for m in answers(second)] == [m.id for m in answers(first)]
    return second


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_content_blocks_and_artifacts_come_back(mode: str, kind: str, saver: Any) -> None:
    ran: list[int] = []

    @tool(response_format="content_and_artifact")
    def look(x: int) -> Any:
        """Look."""
        ran.append(x)
        return [{"type": "text", "text": "seen"}, {"type": "text", "text": str(x)}], {"raw": b"\0"}

    state = twice(mode, kind, saver, look, call("look", x=4))
    found = answers(state)[0]
    assert ran == [4]
    assert found.content == [{"type": "text", "text": "seen"}, {"type": "text", "text": "4"}]
    assert found.artifact == {"raw": b"\0"}
    result = entry(saver, "look").result
    assert (result.id, result.artifact) == (found.id, found.artifact)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_command_with_its_message_comes_back(mode: str, kind: str, saver: Any) -> None:
    ran: list[int] = []

    @tool
    def note(x: int, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command:
        """Note."""
        ran.append(x)
        return Command(update={"messages": [ToolMessage(f"noted {x}", tool_call_id=tool_call_id)]})

    state = twice(mode, kind, saver, note, call("note", x=1))
    assert ran == [1]
    assert said(state) == ["noted 1"]
    assert states(saver)[0] == ("note", "succeeded")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_list_of_commands_and_messages_comes_back(mode: str, kind: str, saver: Any) -> None:
    ran: list[int] = []

    @tool
    def both(tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Both."""
        ran.append(1)
        return [
            Command(update={"messages": [HumanMessage("by the way")]}),
            ToolMessage("told", tool_call_id=tool_call_id),
        ]

    state = twice(mode, kind, saver, both, call("both"))
    assert ran == [1]
    assert said(state) == ["told"]
    assert sum(message.content == "by the way" for message in state["messages"]) == 1
    assert replays(saver) == ["both"]


class Noted(AgentState):
    notes: Annotated[list[str], operator.add]


@pytest.mark.parametrize("mode", MODES)
def test_other_channels_that_a_command_updates_are_updated_once(mode: str, saver: Any) -> None:
    @tool
    def note(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command:
        """Note."""
        update = {"notes": ["n"], "messages": [ToolMessage("ok", tool_call_id=tool_call_id)]}
        return Command(update=update)

    state = twice(mode, "agent", saver, note, call("note"), more={"state_schema": Noted})
    assert state["notes"] == ["n"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_handled_tool_error_is_the_recorded_result(mode: str, kind: str, saver: Any) -> None:
    ran: list[int] = []

    @tool
    def refuse(x: int) -> str:
        """Refuse."""
        ran.append(x)
        raise ToolException("out of stock")

    refuse.handle_tool_error = True
    state = twice(mode, kind, saver, refuse, call("refuse", x=1))
    assert ran == [1]
    assert said(state) == ["out of stock"]
    assert answers(state)[0].status == "error"
    found = entry(saver, "refuse")
    assert (found.state, found.flags) == ("succeeded", ("error",))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_tool_exception_is_a_definite_failure_and_runs_again(
    mode: str, kind: str, saver: Any
) -> None:
    ran: list[int] = []

    @tool
    def refuse() -> str:
        """Refuse."""
        ran.append(1)
        if len(ran) == 1:
            raise ToolException("not now")
        return "now"

    graph = built(kind, asking(call("refuse")), [refuse], saver)
    with pytest.raises(ToolException):
        begin(mode, graph)
    assert states(saver) == [("refuse", "failed")]
    assert said(run(mode, graph)) == ["now"]
    assert entry(saver, "refuse").attempt == 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_invalid_arguments_are_a_definite_failure(mode: str, kind: str, saver: Any) -> None:
    ran: list[int] = []

    @tool
    def add(x: int) -> str:
        """Add."""
        ran.append(x)
        return str(x)

    state = begin(mode, built(kind, asking(call("add", x="many")), [add], saver))
    assert ran == []
    assert answers(state)[0].status == "error"
    assert "valid integer" in said(state)[0]
    assert states(saver) == [("add", "failed")]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_unknown_names_are_told_to_the_model_and_not_recorded(
    mode: str, kind: str, saver: Any
) -> None:
    @tool
    def add(x: int) -> str:
        """Add."""
        return str(x)

    state = begin(mode, built(kind, asking(call("sum", x=1), call("add", x=1)), [add], saver))
    assert "sum is not a valid tool" in said(state)[0]
    assert states(saver) == [("add", "succeeded")]


@pytest.mark.parametrize("mode", MODES)
def test_a_result_that_cannot_be_stored_is_recorded_as_done_and_flagged(
    mode: str, saver: Any
) -> None:
    ran: list[int] = []

    @tool(response_format="content_and_artifact")
    def connect() -> Any:
        """Connect."""
        ran.append(1)
        return "open", (item for item in ())

    graph = built("node", asking(call("connect")), [connect], saver)
    try:
        begin(mode, graph)
    except Exception:  # the graph itself may refuse to store it
        run(mode, graph)
    assert ran == [1]
    found = entry(saver, "connect")
    assert found.state == "succeeded"
    assert "degraded" in found.flags
    assert found.result.content == "open"


@pytest.mark.parametrize("mode", MODES)
def test_return_direct_returns_the_recorded_result(mode: str, saver: Any) -> None:
    ran: list[int] = []

    @tool(return_direct=True)
    def final(x: int) -> str:
        """Final."""
        ran.append(x)
        return f"final {x}"

    graph = built("agent", asking(call("final", x=2)), [final], saver)
    state = begin(mode, graph)
    assert state["messages"][-1].content == "final 2"
    assert isinstance(state["messages"][-1], ToolMessage)
    assert ran == [2]
