"""`Replayer`: a thread once more, offline, and the first thing that differs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, RetryPolicy, interrupt
from typing_extensions import TypedDict

from langgraph_resilient import (
    Cipher,
    Replayer,
    ReplayReport,
    ResilienceMiddleware,
    ResilientSaver,
    durable,
    tool_node,
)
from langgraph_resilient.errors import ConfigurationError

WHERE: Any = {"configurable": {"thread_id": "t"}}
calls = {"model": 0, "tool": 0}


class Model(BaseChatModel):
    """Asks for a tool, then tells how often it was called."""

    temperature: float = 0.5
    fails: int = 0

    @property
    def _llm_type(self) -> str:
        return "counting"

    def bind_tools(self, tools: Any, **more: Any) -> Any:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **more)

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **more: Any
    ) -> ChatResult:
        calls["model"] += 1
        if self.fails and calls["model"] >= self.fails:
            raise ValueError("no more")
        if messages[-1].type == "human" and more.get("tools"):
            call = {"name": "pay", "args": {"euros": len(messages)}, "id": f"c{calls['model']}"}
            answer = AIMessage("", tool_calls=[call])
        else:
            answer = AIMessage(f"answer {calls['model']} to {messages[-1].content}")
        return ChatResult(generations=[ChatGeneration(message=answer)])


def pay(euros: int) -> str:
    """Pay."""
    calls["tool"] += 1
    return f"paid {euros}, receipt {calls['tool']}"


def agent(
    saver: Any, tool: Callable[..., Any] = pay, prompt: str = "be brief", **model: Any
) -> Any:
    middleware = [ResilienceMiddleware(pure=["pay"])]
    return create_agent(
        Model(**model), [tool], checkpointer=saver, middleware=middleware, system_prompt=prompt
    )


@pytest.fixture
def saver() -> Iterator[ResilientSaver]:
    calls.update(model=0, tool=0)
    with ResilientSaver.from_conn_string(":memory:") as opened:
        yield opened


@pytest.fixture
def recorded(saver: ResilientSaver) -> ResilientSaver:
    """A thread of two turns, each with a tool call."""
    graph = agent(saver)
    for text in ("one", "two"):
        graph.invoke({"messages": [("user", text)]}, WHERE)
    return saver


def contents(saver: ResilientSaver) -> tuple[Any, ...]:
    tuples = [(found.config, found.checkpoint) for found in saver.list(WHERE)]
    return tuples, saver.journal("t"), saver.ledger.entries("t")


def test_a_thread_with_tools_is_replayed_exactly_and_nothing_is_called(
    recorded: ResilientSaver,
) -> None:
    before, counted = contents(recorded), dict(calls)
    for graph in (agent(recorded), agent):
        report = Replayer(graph, recorded, "t").run()
        assert report == ReplayReport(equal=True, divergence=None, calls=4, tool_calls=2)
        assert str(report) == "4 model calls and 2 tool calls were replayed"
    assert calls == counted == {"model": 4, "tool": 2}
    assert contents(recorded) == before


def test_coroutines_do_the_same(recorded: ResilientSaver) -> None:
    report = asyncio.run(Replayer(agent(recorded), recorded, "t").arun())
    assert (report.equal, report.calls, report.tool_calls) == (True, 4, 2)
    assert calls == {"model": 4, "tool": 2}


def test_the_graph_that_was_given_stays_as_it_is(recorded: ResilientSaver) -> None:
    graph = agent(recorded)
    Replayer(graph, recorded, "t").run()
    assert graph.checkpointer is recorded
    graph.invoke({"messages": [("user", "three")]}, WHERE)
    assert Replayer(graph, recorded, "t").run().calls == 6


def test_a_changed_prompt_is_reported(recorded: ResilientSaver) -> None:
    report = Replayer(agent(recorded, prompt="be long"), recorded, "t").run()
    found = report.divergence
    assert not report.equal
    assert found is not None
    assert (found.kind, found.field, found.call) == ("prompt", "messages[0].content", 1)
    assert (found.recorded, found.current) == ("be brief", "be long")
    assert (report.calls, calls["model"]) == (0, 4)
    assert "'be brief' -> 'be long'" in str(report)


def test_a_changed_tool_schema_is_reported(recorded: ResilientSaver) -> None:
    def other(euros: float) -> str:
        """Pay."""
        raise AssertionError

    other.__name__ = "pay"
    found = Replayer(agent(recorded, tool=other), recorded, "t").run().divergence
    assert found is not None
    assert (found.kind, found.call) == ("tools", 1)
    assert found.field == "tools[0].function.parameters.properties.euros.type"
    assert (found.recorded, found.current) == ("integer", "number")


def test_a_changed_parameter_is_reported(recorded: ResilientSaver) -> None:
    found = Replayer(agent(recorded, temperature=0.9), recorded, "t").run().divergence
    assert found is not None
    assert (found.kind, found.field, found.call) == ("parameters", "temperature", 1)
    assert (found.recorded, found.current) == (0.5, 0.9)


def test_a_change_late_in_the_thread_is_found_there(recorded: ResilientSaver) -> None:
    from langchain.agents.middleware import AgentMiddleware

    class Shouting(AgentMiddleware):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            last = request.messages[-1]
            if last.content == "two":
                changed = [*request.messages[:-1], HumanMessage("TWO", id=last.id)]
                request = request.override(messages=changed)
            return handler(request)

    def shouting(saver: Any) -> Any:
        return create_agent(
            Model(),
            [pay],
            checkpointer=saver,
            middleware=[Shouting(), ResilienceMiddleware(pure=["pay"])],
            system_prompt="be brief",
        )

    report = Replayer(shouting, recorded, "t").run()
    found = report.divergence
    assert found is not None
    assert (report.calls, report.tool_calls) == (2, 1)
    assert (found.kind, found.field, found.call) == ("prompt", "messages[5].content", 3)
    assert (found.recorded, found.current) == ("two", "TWO")
    assert calls == {"model": 4, "tool": 2}


# --- graphs built by hand -------------------------------------------------------------------


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    note: str


def chain(*nodes: Any, **more: Any) -> Callable[[Any], Any]:
    """A graph whose nodes run one after the other."""

    def build(saver: Any) -> Any:
        graph = StateGraph(State)
        for node in nodes:
            graph.add_node(node.__name__, node, **more)
        names = [START, *(node.__name__ for node in nodes), END]
        for one, two in pairwise(names):
            graph.add_edge(one, two)
        return graph.compile(checkpointer=saver)

    return build


def asks(text: str, key: str = "note") -> Any:
    def node(state: State) -> Any:
        answer = durable(Model()).invoke(text)
        return {"messages": [answer]} if key == "messages" else {"note": answer.content}

    node.__name__ = f"asks_{text}"
    return node


def test_a_changed_order_is_reported(saver: ResilientSaver) -> None:
    chain(asks("a"), asks("b"))(saver).invoke({"note": "x"}, WHERE)
    assert Replayer(chain(asks("a"), asks("b")), saver, "t").run().equal
    found = Replayer(chain(asks("b"), asks("a")), saver, "t").run().divergence
    assert found is not None
    assert (found.kind, found.call) == ("order", 2)
    assert "asks_b" in found.current


def test_a_call_that_is_not_made_any_more_is_reported(saver: ResilientSaver) -> None:
    chain(asks("a"), asks("b", "messages"), asks("c"))(saver).invoke({"note": "x"}, WHERE)
    found = Replayer(chain(asks("a"), asks("b", "messages")), saver, "t").run().divergence
    assert found is not None
    assert (found.kind, found.field) == ("state", "note")


def test_a_call_whose_answer_made_no_difference_is_missed_too(saver: ResilientSaver) -> None:
    def twice(state: State) -> Any:
        durable(Model()).invoke("nobody reads this")
        return {"note": "x"}

    def once(state: State) -> Any:
        return {"note": "x"}

    once.__name__ = "twice"
    chain(twice)(saver).invoke({"note": "n"}, WHERE)
    found = Replayer(chain(once), saver, "t").run().divergence
    assert found is not None
    assert (found.kind, found.field, found.call, found.current) == ("order", "model call", 1, None)


def test_a_call_that_was_never_made_is_reported_and_not_made(saver: ResilientSaver) -> None:
    chain(asks("a"))(saver).invoke({"note": "x"}, WHERE)
    found = Replayer(chain(asks("a"), asks("b")), saver, "t").run().divergence
    assert found is not None
    assert (found.kind, found.field, calls["model"]) == ("order", "model call", 1)


def test_plain_code_that_has_changed_shows_in_the_state(saver: ResilientSaver) -> None:
    def plain(state: State) -> Any:
        return {"note": "old"}

    def changed(state: State) -> Any:
        return {"note": "new"}

    changed.__name__ = "plain"
    chain(plain)(saver).invoke({"note": "x"}, WHERE)
    found = Replayer(chain(changed), saver, "t").run().divergence
    assert found is not None
    assert (found.kind, found.field, found.recorded, found.current) == (
        "state",
        "note",
        "old",
        "new",
    )


def test_an_error_that_was_not_there_is_reported(saver: ResilientSaver) -> None:
    chain(asks("a"))(saver).invoke({"note": "x"}, WHERE)

    def node(state: State) -> Any:
        raise KeyError("gone")

    node.__name__ = "asks_a"
    found = Replayer(chain(node), saver, "t").run().divergence
    assert found is not None
    assert (found.kind, found.field) == ("error", "KeyError")


def test_messages_without_ids_get_other_ids_and_are_equal(saver: ResilientSaver) -> None:
    def plain(state: State) -> Any:
        return {"messages": [("ai", "from code")]}

    graph = chain(plain, asks("a", "messages"))
    graph(saver).invoke({"messages": [("user", "x")], "note": "n"}, WHERE)
    assert Replayer(graph, saver, "t").run().equal


def test_a_retry_inside_a_node_is_replayed(saver: ResilientSaver) -> None:
    def picky(state: State) -> Any:
        answer = durable(Model()).invoke("x")
        if "answer 1" in answer.content:
            raise ConnectionError("cannot be parsed")
        return {"note": answer.content}

    graph = chain(picky, retry_policy=RetryPolicy(initial_interval=0.001, jitter=False))
    assert graph(saver).invoke({"note": "x"}, WHERE)["note"] == "answer 2 to x"
    report = Replayer(graph, saver, "t").run()
    assert (report.equal, report.divergence) == (True, None)


def test_questions_to_humans_get_the_recorded_answers(saver: ResilientSaver) -> None:
    def human(state: State) -> Any:
        first = interrupt("first?")
        return {"note": f"{first} {interrupt('second?')}"}

    graph = chain(asks("a"), human, asks("b", "messages"))
    running = graph(saver)
    running.invoke({"note": "x"}, WHERE)
    running.invoke(Command(resume="yes"), WHERE)
    assert Replayer(graph, saver, "t").run().equal
    running.invoke(Command(resume="no"), WHERE)
    report = Replayer(graph, saver, "t").run()
    assert (report.equal, report.calls, str(report.divergence)) == (True, 2, "None")


def test_a_run_that_was_cut_or_failed_is_replayed_up_to_there(saver: ResilientSaver) -> None:
    with pytest.raises(ValueError, match="no more"):
        agent(saver, fails=2).invoke({"messages": [("user", "one")]}, WHERE)
    report = Replayer(agent(saver), saver, "t").run()
    assert (report.equal, report.calls, report.tool_calls) == (True, 1, 1)
    agent(saver).invoke(None, WHERE)
    report = Replayer(agent(saver), saver, "t").run()
    assert (report.equal, report.calls, report.tool_calls) == (True, 2, 1)


def test_tools_of_a_hand_built_graph_are_answered_from_the_ledger(saver: ResilientSaver) -> None:
    def model(state: State) -> Any:
        return {"messages": [durable(Model()).bind_tools([pay]).invoke(state["messages"])]}

    def build(saver: Any) -> Any:
        graph = StateGraph(State)
        graph.add_node("model", model)
        graph.add_node("tools", tool_node([pay], pure=["pay"]))
        graph.add_edge(START, "model")
        graph.add_conditional_edges(
            "model", lambda state: "tools" if state["messages"][-1].tool_calls else END
        )
        graph.add_edge("tools", "model")
        return graph.compile(checkpointer=saver)

    build(saver).invoke({"messages": [("user", "x")]}, WHERE)
    report = Replayer(build, saver, "t").run()
    assert (report.equal, report.calls, report.tool_calls) == (True, 2, 1)
    assert calls == {"model": 2, "tool": 1}


@pytest.mark.parametrize(
    "options",
    [
        {"cipher": Cipher(bytes(range(32)))},
        {"serde": EncryptedSerializer.from_pycryptodome_aes(key=bytes(range(32)))},
    ],
    ids=["cipher", "serde"],
)
def test_a_protected_thread_is_replayed_alike(tmp_path: Path, options: dict[str, Any]) -> None:
    calls.update(model=0, tool=0)
    with ResilientSaver.from_conn_string(tmp_path / "agent.db", **options) as saver:
        agent(saver).invoke({"messages": [("user", "one")]}, WHERE)
    with ResilientSaver.from_conn_string(tmp_path / "agent.db", **options) as saver:
        report = Replayer(agent, saver, "t").run()
        assert (report.equal, report.calls, report.tool_calls) == (True, 2, 1)
        other = Replayer(agent(saver, prompt="be long"), saver, "t").run().divergence
        assert other is not None
        # A user's serializer keeps no conversations in the journal, so only this can be said.
        field = "messages" if "serde" in options else "messages[0].content"
        assert (other.kind, other.field, other.call) == ("prompt", field, 1)


# --- what cannot be replayed ----------------------------------------------------------------


def test_a_thread_that_is_not_there(saver: ResilientSaver) -> None:
    with pytest.raises(ConfigurationError, match="no checkpoint"):
        Replayer(agent(saver), saver, "nobody").run()


def test_a_pruned_thread(recorded: ResilientSaver) -> None:
    recorded.prune(["t"])
    with pytest.raises(ConfigurationError, match="beginning is not stored"):
        Replayer(agent(recorded), recorded, "t").run()


def test_a_thread_that_was_changed_by_hand(recorded: ResilientSaver) -> None:
    graph = agent(recorded)
    graph.update_state(WHERE, {"messages": [HumanMessage("by hand")]})
    with pytest.raises(ConfigurationError, match="'update'"):
        Replayer(graph, recorded, "t").run()


def test_time_travel_replays_the_branch_that_counts(recorded: ResilientSaver) -> None:
    graph = agent(recorded)
    turns = [s for s in graph.get_state_history(WHERE) if s.metadata["source"] == "input"]
    assert Replayer(graph, recorded, "t").run().equal
    graph.invoke(None, turns[0].config)
    with pytest.raises(ConfigurationError, match="'fork'"):
        Replayer(graph, recorded, "t").run()
