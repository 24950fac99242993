"""What else a guard looks at (tools, channels, preconditions), and being a graph like any other."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from agents import KINDS, MODES, begin, built, call, calling, run, script, where
from guarding import Down, State, line, question, stop_before
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from langgraph_resilient import (
    ConfigurationError,
    EnvironmentChanged,
    Precondition,
    Replayer,
    ResilientSaver,
    guarded,
    tool_node,
)


@pytest.fixture
def saver(db_path: str) -> Iterator[ResilientSaver]:
    with ResilientSaver.from_conn_string(db_path) as opened:
        yield opened


# --- tools ------------------------------------------------------------------------------------------


@tool
def mail(to: str) -> str:
    """Send a mail."""
    raise Down


@tool("mail")
def mail_to(address: str) -> str:
    """Send a mail."""
    return f"sent to {address}"


@tool("mail")
def mail_with(to: str, copies: int = 1) -> str:
    """Send a mail, or several."""
    return f"sent to {to}"


@tool("fax")
def fax(to: str) -> str:
    """Send a fax."""
    return f"faxed to {to}"


def asking_for_mail() -> Any:
    return script(calling(call("mail", to="Ann")))


OPTIONS: dict[str, Any] = {"default_effect": "pure"}
CHANGED: dict[str, tuple[Any, str]] = {
    "gone": (fax, "tool 'mail' is gone (a call of it waits for its result)"),
    "other arguments": (mail_to, "tool 'mail' takes other arguments (a call that waits can no"),
}


@pytest.mark.parametrize(("offered", "text"), CHANGED.values(), ids=CHANGED)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_a_tool_that_cannot_be_called_as_asked_stops_the_run(
    saver: ResilientSaver, mode: str, kind: str, offered: Any, text: str
) -> None:
    with pytest.raises(Down):
        begin(mode, guarded(built(kind, asking_for_mail(), [mail], saver, **OPTIONS)))
    graph = guarded(built(kind, asking_for_mail(), [offered], saver, **OPTIONS))
    assert text in question(run(mode, graph)).value["message"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_tool_that_still_takes_the_call_is_no_reason_to_stop(
    saver: ResilientSaver, kind: str
) -> None:
    with pytest.raises(Down):
        begin("invoke", guarded(built(kind, asking_for_mail(), [mail], saver, **OPTIONS)))
    graph = guarded(built(kind, asking_for_mail(), [mail_with, fax], saver, **OPTIONS))
    assert graph.invoke(None, where())["messages"][-1].content == "done"


def test_a_sub_agents_tool_that_is_gone_is_noticed(saver: ResilientSaver) -> None:
    def outer(offered: Any) -> Any:
        builder = StateGraph(MessagesState)
        builder.add_node(
            "agent", built("agent", asking_for_mail(), [offered], None, passthrough=True)
        )
        builder.add_edge(START, "agent")
        return guarded(builder.compile(checkpointer=saver), on_change="raise")

    with pytest.raises(Down):
        begin("invoke", outer(mail))
    with pytest.raises(EnvironmentChanged, match="tool 'mail' is gone"):
        outer(fax).invoke(None, where())


def test_tools_of_a_node_of_ones_own_can_be_named(saver: ResilientSaver) -> None:
    def builder(failing: bool) -> StateGraph:
        def tools(_: MessagesState) -> dict:
            if failing:
                raise Down
            return {}

        made = StateGraph(MessagesState)
        made.add_node("model", lambda _: {"messages": [calling(call("mail", to="Ann"))]})
        made.add_node("tools", tools)
        made.add_edge(START, "model")
        made.add_edge("model", "tools")
        return made

    with pytest.raises(Down):
        begin("invoke", guarded(builder(True).compile(checkpointer=saver), tools=[mail]))
    graph = builder(False).compile(checkpointer=saver)
    with pytest.raises(EnvironmentChanged, match="tool 'mail' is gone"):
        guarded(graph, on_change="raise", tools=[fax]).invoke(None, where())
    assert guarded(graph, on_change="raise", tools=[mail]).invoke(None, where())


# --- channels and the rest ----------------------------------------------------------------------------


class Numbered(State, total=False):
    other: int


class Worded(State, total=False):
    other: str


def test_a_channel_of_another_type_stops_the_run(saver: ResilientSaver) -> None:
    stop_before(saver, line("a", "b", failing="b", state=Numbered))
    graph = line("a", "b", state=Worded).compile(checkpointer=saver)
    with pytest.raises(EnvironmentChanged, match=r"channel 'other' was LastValue\[int\], is LastV"):
        guarded(graph, on_change="raise").invoke(None, where())
    same = line("a", "b", state=Numbered).compile(checkpointer=saver)
    assert guarded(same, on_change="raise").invoke(None, where())["said"] == ["input", "a", "b"]


def test_a_new_input_is_never_held_back(
    saver: ResilientSaver, caplog: pytest.LogCaptureFixture
) -> None:
    stop_before(saver, line("a", "b", failing="b", state=Numbered))
    graph = guarded(line("c", state=Worded).compile(checkpointer=saver), on_change="raise")
    with caplog.at_level(logging.WARNING, "langgraph_resilient"):
        assert graph.invoke({"said": ["more"]}, where())["said"] == ["input", "a", "more", "c"]
    assert "channel 'other' was LastValue[int]" in caplog.text


def test_where_nothing_is_left_to_do_nothing_is_asked(saver: ResilientSaver) -> None:
    dangling = StateGraph(MessagesState)
    dangling.add_node("model", lambda _: {"messages": [calling(call("mail", to="Ann"))]})
    dangling.add_edge(START, "model")
    graph = dangling.compile(checkpointer=saver)
    begin("invoke", guarded(graph, tools=[mail]))
    assert guarded(graph, tools=[fax], on_change="raise").invoke(None, where())["messages"]


def test_additions_are_a_line_in_the_log(
    saver: ResilientSaver, caplog: pytest.LogCaptureFixture
) -> None:
    stop_before(saver, line("a", "b", failing="b"))
    with caplog.at_level(logging.INFO, "langgraph_resilient"):
        graph = guarded(line("a", "b", "c").compile(checkpointer=saver), on_change="raise")
        assert graph.invoke(None, where())["said"] == ["input", "a", "b", "c"]
    assert "since it stopped, node 'c' is new; edge" in caplog.text


def test_what_was_run_unguarded_says_nothing_and_goes_on(saver: ResilientSaver) -> None:
    with pytest.raises(Down):
        line("a", "b", failing="b").compile(checkpointer=saver).invoke({"said": []}, where())
    graph = guarded(line("a", "b").compile(checkpointer=saver), on_change="raise")
    assert graph.invoke(None, where())["said"] == ["a", "b"]


def test_a_question_of_the_graphs_own_is_answered_beside_it(saver: ResilientSaver) -> None:
    def builder(*more: str) -> StateGraph:
        made = StateGraph(State)
        made.add_node("ask", lambda _: {"said": [interrupt("how many?")]})
        made.add_edge(START, "ask")
        for name in more:
            made.add_node(name, lambda _: {"said": [interrupt("which?")]})
            made.add_edge(START, name)
        return made

    own = guarded(builder("b").compile(checkpointer=saver))
    both = own.invoke({"said": []}, where())["__interrupt__"]
    [asked] = [one for one in both if one.value == "how many?"]
    changed = guarded(builder().compile(checkpointer=saver))
    ours = question(changed.invoke(Command(resume={asked.id: 3}), where()))
    assert question(changed.invoke(Command(resume=3), where())).id == ours.id
    answers = Command(resume={asked.id: 3, ours.id: "continue"})
    assert changed.invoke(answers, where())["said"] == [3]


# --- preconditions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_precondition_is_checked_before_the_first_resumed_step(
    saver: ResilientSaver, mode: str
) -> None:
    price = [5]
    holds = Precondition("price", lambda: price[0], on_fail="interrupt")
    stop_before(saver, line("a", "b", failing="b"), mode, preconditions=[holds])
    graph = guarded(line("a", "b").compile(checkpointer=saver), preconditions=[holds])
    price[0] = 6
    asked = question(run(mode, graph))
    assert "precondition 'price': was 5, is 6" in asked.value["message"]
    assert graph.get_state(where()).values["said"] == ["input", "a"]
    assert run(mode, graph, Command(resume={asked.id: "continue"}))["said"] == ["input", "a", "b"]


def test_an_answer_to_another_change_is_no_answer_to_this_one(saver: ResilientSaver) -> None:
    price = [5]
    holds = [Precondition("price", lambda: price[0], on_fail="interrupt")]
    stop_before(saver, line("a", "b", failing="b"), preconditions=holds)
    graph = guarded(line("a", "b").compile(checkpointer=saver), preconditions=holds)
    price[0] = 6
    first = question(graph.invoke(None, where()))
    price[0] = 600
    second = question(graph.invoke(Command(resume={first.id: "continue"}), where()))
    assert "was 5, is 600" in second.value["message"]


def test_one_that_fails_raises_by_default_and_its_values_stay_out_of_the_log(
    saver: ResilientSaver, caplog: pytest.LogCaptureFixture
) -> None:
    secret = ["s3cret"]
    kept = Precondition("token", lambda: secret[0])
    lax = Precondition("token too", lambda: secret[0], on_fail="warn")
    stop_before(saver, line("a", "b", failing="b"), preconditions=[kept, lax])
    graph = line("a", "b").compile(checkpointer=saver)
    secret[0] = "n3w"
    with pytest.raises(EnvironmentChanged, match="precondition 'token': was 's3cret', is 'n3w'"):
        guarded(graph, preconditions=[kept, lax]).invoke(None, where())
    with caplog.at_level(logging.INFO, "langgraph_resilient"):
        assert guarded(graph, preconditions=[lax]).invoke(None, where())["said"][-1] == "b"
    assert "precondition 'token too' does not hold" in caplog.text
    assert "s3cret" not in caplog.text
    assert "n3w" not in caplog.text


def test_coroutine_functions_do_with_asyncio(saver: ResilientSaver) -> None:
    version = [1]

    async def capture() -> int:
        return version[0]

    async def check(then: int, now: int) -> bool:
        return now >= then

    holds = Precondition("version", capture, check)
    stop_before(saver, line("a", "b", failing="b"), "ainvoke", preconditions=[holds])
    graph = guarded(line("a", "b").compile(checkpointer=saver), preconditions=[holds])
    version[0] = 0
    with pytest.raises(EnvironmentChanged, match="its check has failed"):
        run("ainvoke", graph)
    version[0] = 2
    assert run("ainvoke", graph)["said"] == ["input", "a", "b"]


def test_an_update_in_another_process_keeps_what_was_captured(saver: ResilientSaver) -> None:
    price = [5]
    holds = [Precondition("price", lambda: price[0])]
    stop_before(saver, line("a", "b", failing="b"), preconditions=holds)
    graph = line("a", "b").compile(checkpointer=saver)
    guarded(graph, preconditions=holds).update_state(where(), {"said": ["edited"]}, as_node="a")
    price[0] = 6
    with pytest.raises(EnvironmentChanged, match="precondition 'price'"):
        guarded(graph, preconditions=holds).invoke(None, where())


# --- being a graph like any other ------------------------------------------------------------------------


def test_a_guarded_graph_is_a_graph_of_its_class(saver: ResilientSaver) -> None:
    plain = line("a").compile(checkpointer=saver)
    graph = guarded(plain)
    assert isinstance(graph, type(plain))
    assert plain.checkpointer is saver
    configured = graph.with_config({"tags": ["mine"]})
    assert configured.invoke({"said": []}, where())["said"] == ["a"]
    assert "resilient_environment" in configured.get_state(where()).metadata
    assert "resilient_environment" not in (
        plain.invoke({"said": []}, where("other")) and plain.get_state(where("other")).metadata
    )
    assert guarded(graph, on_change="raise").invoke({"said": []}, where("third"))["said"] == ["a"]


def test_a_thread_may_be_named_by_a_number(saver: ResilientSaver) -> None:
    with pytest.raises(Down):
        guarded(line("a", "b", failing="b").compile(checkpointer=saver)).invoke(
            {"said": []}, where(42)
        )
    graph = guarded(line("a", "c").compile(checkpointer=saver))
    here = graph.get_state(where(42)).config["configurable"]
    asked = question(graph.invoke(None, where(42)))
    assert question(graph.invoke(None, {"configurable": {**here, "thread_id": 42}})).id == asked.id


def test_as_a_part_of_another_graph_it_looks_at_nothing(saver: ResilientSaver) -> None:
    inner = guarded(line("a", "b").compile(checkpointer=saver), on_change="raise")
    outer = StateGraph(State)
    outer.add_node("inner", lambda state: inner.invoke({"said": []}))
    outer.add_edge(START, "inner")
    assert outer.compile(checkpointer=saver).invoke({"said": []}, where())["said"] == ["a", "b"]


def test_a_guarded_run_can_be_replayed(saver: ResilientSaver) -> None:
    graph = guarded(built("node", script(), [fax], saver))
    begin("invoke", graph)
    assert Replayer(graph, saver, "t").run().equal


def test_the_environment_is_stored_once(saver: ResilientSaver, db_path: str) -> None:
    plain = line("a", "b").compile(checkpointer=saver)
    watched = guarded(plain)

    def grown(graph: Any, thread_id: str) -> int:
        before = size(saver)
        for _ in range(20):
            graph.invoke({"said": ["once more"]}, where(thread_id))
        return size(saver) - before

    grown(plain, "warm up")
    assert grown(watched, "watched") <= grown(plain, "plain") + 4096


def size(saver: ResilientSaver) -> int:
    [(pages,)] = saver.conn.execute("PRAGMA page_count").fetchall()
    return int(pages) * 4096


def test_what_cannot_be_guarded_is_refused_in_words(saver: ResilientSaver) -> None:
    with pytest.raises(ConfigurationError, match="takes a compiled graph"):
        guarded(line("a"))  # type: ignore[type-var]
    with pytest.raises(ConfigurationError, match="compiled with a ResilientSaver"):
        guarded(line("a").compile())
    graph = line("a").compile(checkpointer=saver)
    with pytest.raises(ConfigurationError, match="on_change is 'shout'"):
        guarded(graph, on_change="shout")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="on_change says something about 'model'"):
        guarded(graph, on_change={"model": "warn"})
    with pytest.raises(ConfigurationError, match="two preconditions have the name 'x'"):
        guarded(graph, preconditions=[Precondition("x", int), Precondition("x", int)])


def test_the_models_of_an_agent_are_known(saver: ResilientSaver) -> None:
    for kind in KINDS:
        graph = guarded(built(kind, script(AIMessage("hello")), [fax], saver))
        begin("invoke", graph, where(kind))
        noted = graph.get_state(where(kind)).metadata["resilient_environment"]
        assert noted["models"] == {"model": "scripted"}
        assert list(noted["tools"]) == ["fax"]
        assert {"langgraph", "langchain-core", "python"} <= set(noted["packages"])
    node = tool_node([fax])
    assert node.tools_by_name.keys() == {"fax"}
