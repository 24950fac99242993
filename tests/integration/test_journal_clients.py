"""Real clients on real sockets: a durable model answers as the plain one, and is paid once."""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import HumanMessage
from langchain_core.runnables import ConfigurableField, RunnableConfig, RunnableLambda
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel
from typing_extensions import TypedDict
from wire import Asked, Reply, Server, Tool, last_said, reply
from wire.clients import APIS, client
from wired import (
    WAYS,
    Crash,
    Lost,
    aasked,
    asked,
    is_async,
    last,
    one_node,
    plain,
    run,
    spread,
    states,
    thinking,
    user,
    where,
)

from langgraph_resilient import ResilientSaver, durable

TEXT = "Once upon a time there was a fox"


def echo(asked: Asked) -> Reply:
    """Another answer to each request, so that a repetition shows."""
    return reply(f"{TEXT} {asked.number}", reasoning=["hm "] if _reasons(asked) else ())


def _reasons(asked: Asked) -> bool:
    return "thinking" in asked.body or "reasoning" in asked.body


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(echo) as made:
        yield made


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[ResilientSaver]:
    with ResilientSaver.from_conn_string(tmp_path / "agent.db") as made:
        yield made


def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


# --- the same answer ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "way", "version"),
    spread(
        APIS,
        WAYS,
        (None, "v1"),
        keep=lambda api, way, version: way in ("invoke", "astream") or api == "responses",
    ),
)
def test_a_durable_model_answers_as_the_plain_one(
    api: str, way: str, version: str | None, saver: ResilientSaver
) -> None:
    """Content, tool calls, metadata, usage: all but ids."""
    script = [reply(TEXT, Tool(name="pay", args={"amount": 7}))]
    with Server(script) as server:
        more = {"output_version": version} if version else {}
        model = client(api, server, temperature=0.5, **more).bind_tools([pay])
        wanted = run(thinking(model, saver, way), user(), way, where("plain"))
        model = durable(client(api, server, temperature=0.5, **more)).bind_tools([pay])
        got = run(thinking(model, saver, way), user(), way)
    assert plain(last(got)) == plain(last(wanted))
    assert type(last(got)) is type(last(wanted))
    assert states(saver) == ["retired"]
    first, second = (one.body for one in server.log)
    assert first == second


@pytest.mark.parametrize(
    ("api", "way"),
    spread(APIS, WAYS, keep=lambda api, way: api == "messages" or way in ("stream", "ainvoke")),
)
def test_a_finished_call_is_paid_once(
    api: str, way: str, server: Server, saver: ResilientSaver
) -> None:
    crash = Crash()
    made = thinking(durable(client(api, server)), saver, way, crash)
    with pytest.raises(Lost):
        run(made, user(), way)
    assert states(saver) == ["ended"]
    answer = saver.journal.entries("t")[0].answer
    got = last(run(made, None, way))
    assert server.paid == 1
    assert (got.text, got.id) == (answer.text, answer.id)
    assert states(saver) == ["retired"]
    run(made, user("go"), way)
    assert server.paid == 2, "an equal question later is a question of its own"


@pytest.mark.parametrize("api", APIS)
def test_reasoning_comes_back_whole(api: str, server: Server, saver: ResilientSaver) -> None:
    if api == "chat":
        pytest.skip("chat completions have no blocks of reasoning")
    thinks = (
        {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048}
        if api == "messages"
        else {"reasoning": {"effort": "low", "summary": "auto"}}
    )
    made = thinking(durable(client(api, server, **thinks)), saver, "stream", Crash())
    with pytest.raises(Lost):
        made.invoke(user(), where())
    before = saver.journal.entries("t")[0]
    got = last(made.invoke(None, where()))
    assert server.paid == 1
    assert got.content == before.answer.content
    assert [b["type"] for b in got.content_blocks] == ["reasoning", "text"]
    assert before.parameters.keys() & {"thinking", "reasoning"}


# --- around the model ---------------------------------------------------------------------------


class Weather(BaseModel):
    """The weather."""

    town: str
    degrees: int


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # langchain-openai's own
@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream"])
@pytest.mark.parametrize("api", APIS)
def test_structured_output_is_paid_once(
    api: str, way: str, method: str, saver: ResilientSaver
) -> None:
    args = {"town": "Ulm", "degrees": 3}
    by_tool = reply("", Tool(name="Weather", args=args))
    by_text = Reply(pieces=['{"town": "Ul', 'm", "degrees": 3}'])

    def script(asked: Asked) -> Reply:
        return by_tool if asked.body.get("tools") else by_text

    found: list[Any] = []
    crash = Crash()
    with Server(script) as server:
        model = durable(client(api, server)).with_structured_output(Weather, method=method)

        def node(state: Any) -> Any:
            if way == "stream":
                found.append(list(model.stream(state["messages"]))[-1])
            else:
                found.append(model.invoke(state["messages"]))
            crash()
            return {}

        async def anode(state: Any) -> Any:
            found.append(await model.ainvoke(state["messages"]))
            crash()
            return {}

        made = one_node(anode if is_async(way) else node, saver)
        with pytest.raises(Lost):
            run(made, user(), way)
        run(made, None, way)
    assert server.paid == 1
    assert found == [Weather(**args)] * 2
    [entry] = saver.journal.entries("t")
    assert {"tools", "response_format", "text_format", "text", "output_config"} & set(entry.sent)


def test_a_retry_of_the_model_calls_it_again(saver: ResilientSaver) -> None:
    """`with_retry` inside one run: a failure, an answer; after a crash the answer is given back."""
    with Server([Reply(status=429, error="slow down"), reply(TEXT)]) as server:
        model = durable(client("chat", server)).with_retry(
            stop_after_attempt=3, wait_exponential_jitter=False
        )
        made = thinking(model, saver, "invoke", Crash())
        with pytest.raises(Lost):
            made.invoke(user(), where())
        assert (server.paid, states(saver)) == (2, ["failed", "ended"])
        assert last(made.invoke(None, where())).text == TEXT
    assert server.paid == 2


def test_a_parser_that_is_retried_gets_a_new_answer(saver: ResilientSaver) -> None:
    with Server([reply("no number"), reply("42")]) as server:
        model = durable(client("chat", server))
        parsed = (model | RunnableLambda(lambda m: int(m.text))).with_retry(
            stop_after_attempt=2, wait_exponential_jitter=False
        )
        found: list[int] = []
        crash = Crash()

        def node(state: Any) -> Any:
            found.append(parsed.invoke(state["messages"]))
            crash()
            return {}

        made = one_node(node, saver)
        with pytest.raises(Lost):
            made.invoke(user(), where())
        made.invoke(None, where())
    assert server.paid == 2
    assert found == [42, 42]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_fallback_is_journaled_as_the_call_it_is(
    asynchronous: bool, saver: ResilientSaver
) -> None:
    def script(asked: Asked) -> Reply:
        broken = asked.api == "chat"
        return Reply(status=500, error="broken") if broken else reply(TEXT)

    with Server(script) as server:
        model = durable(client("chat", server)).with_fallbacks(
            [durable(client("messages", server))]
        )
        way = "ainvoke" if asynchronous else "invoke"
        made = thinking(model, saver, way, Crash())
        with pytest.raises(Lost):
            run(made, user(), way)
        assert last(run(made, None, way)).text == TEXT
    apis = [one.api for one in server.log]
    assert apis.count("messages") == 1, "the fallback's answer is given back"
    entries = saver.journal.entries("t")
    assert [e.provider for e in entries if e.state == "retired"] == ["anthropic"]


@pytest.mark.parametrize("way", ["invoke", "astream"])
def test_configurable_fields_and_alternatives(
    way: str, server: Server, saver: ResilientSaver
) -> None:
    model = (
        durable(client("chat", server, temperature=0.1))
        .configurable_fields(temperature=ConfigurableField(id="heat"))
        .configurable_alternatives(
            ConfigurableField(id="which"),
            default_key="openai",
            claude=durable(client("messages", server)),
        )
    )
    crash = Crash(3)

    def node(state: Any, config: RunnableConfig) -> Any:
        answer = asked(model.with_config(config), way, state["messages"])
        crash()
        return {"messages": [answer]}

    async def anode(state: Any, config: RunnableConfig) -> Any:
        answer = await aasked(model.with_config(config), way, state["messages"])
        crash()
        return {"messages": [answer]}

    made = one_node(anode if is_async(way) else node, saver)
    configs = [where("a"), where("b", heat=0.9), where("c", which="claude")]
    for config in configs:
        with pytest.raises(Lost):
            run(made, user(), way, config)
    for config in configs:
        run(made, None, way, config)
    assert [one.api for one in server.log] == ["chat", "chat", "messages"]
    assert [one.body.get("temperature") for one in server.log] == [0.1, 0.9, None]
    assert [saver.journal(t)[0].parameters.get("temperature") for t in "ab"] == [0.1, 0.9]
    assert saver.journal("c")[0].provider == "anthropic"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_batch_in_one_node_gives_each_question_its_own_answer(
    asynchronous: bool, saver: ResilientSaver
) -> None:
    def script(asked: Asked) -> Reply:
        return reply(f"to {last_said(asked, 'user')} number {asked.number}")

    found: list[list[str]] = []
    crash = Crash()
    questions = [[HumanMessage(f"q{i % 4}")] for i in range(8)]
    with Server(script) as server:
        model = durable(client("responses", server))

        def node(state: Any) -> Any:
            found.append([m.text for m in model.batch(questions)])
            crash()
            return {}

        async def anode(state: Any) -> Any:
            found.append([m.text for m in await model.abatch(questions)])
            crash()
            return {}

        made = one_node(anode if asynchronous else node, saver)
        way = "ainvoke" if asynchronous else "invoke"
        with pytest.raises(Lost):
            run(made, user(), way)
        run(made, None, way)
    assert server.paid == 8
    assert [text.split()[1] for text in found[1]] == [q[0].content for q in questions]
    assert sorted(found[0]) == sorted(found[1]), "each recorded answer is used once"
    assert len(set(found[1])) == 8


class Trace(BaseCallbackHandler):
    """What callbacks see."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.outputs: list[Any] = []

    def on_chat_model_start(self, serialized: Any, messages: Any, **_: Any) -> None:
        self.seen.append("start")

    def on_llm_new_token(self, token: Any, **_: Any) -> None:
        self.seen.append("token")

    def on_llm_end(self, response: Any, **_: Any) -> None:
        self.seen.append("end")
        self.outputs.append(response)


@pytest.mark.parametrize("way", ["invoke", "stream"])
@pytest.mark.parametrize("api", APIS)
def test_callbacks_see_the_same_and_tell_a_replay(
    api: str, way: str, server: Server, saver: ResilientSaver
) -> None:
    traces = [Trace() for _ in range(3)]
    made = thinking(client(api, server), saver, way)
    run(made, user(), way, {**where("plain"), "callbacks": [traces[0]]})
    made = thinking(durable(client(api, server)), saver, way, Crash())
    with pytest.raises(Lost):
        run(made, user(), way, {**where(), "callbacks": [traces[1]]})
    run(made, None, way, {**where(), "callbacks": [traces[2]]})
    assert traces[1].seen == traces[0].seen
    assert (traces[2].seen[0], traces[2].seen[-1]) == ("start", "end")
    [[generation]] = traces[2].outputs[0].generations
    told = {**(generation.generation_info or {}), **generation.message.response_metadata}
    assert told.get("resilient_replayed") is True
    assert "resilient_replayed" not in saver.journal("t")[0].answer.response_metadata


# --- many at once -------------------------------------------------------------------------------


class Both(TypedDict, total=False):
    said: Annotated[list[Any], operator.add]


def branches(model: Any, saver: Any, crash: Any, count: int = 4, way: str = "invoke") -> Any:
    """Parallel nodes that ask the same; one more node crashes behind them."""
    builder = StateGraph(Both)
    prompt = [HumanMessage("the same")]

    def branch(name: str) -> Any:
        def node(state: Both) -> Any:
            answer = asked(model, way, prompt)
            crash(name)
            return {"said": [(name, answer.id, answer.text)]}

        async def anode(state: Both) -> Any:
            answer = await aasked(model, way, prompt)
            crash(name)
            return {"said": [(name, answer.id, answer.text)]}

        return anode if is_async(way) else node

    for index in range(count):
        builder.add_node(f"n{index}", branch(f"n{index}"))
        builder.add_edge(START, f"n{index}")
        builder.add_edge(f"n{index}", END)
    return builder.compile(checkpointer=saver)


def settled(saver: ResilientSaver) -> None:
    deadline = time.monotonic() + 10
    while "started" in states(saver) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert "started" not in states(saver)


@pytest.mark.parametrize(
    ("api", "way"),
    spread(
        APIS,
        ("invoke", "stream", "ainvoke", "astream"),
        keep=lambda api, way: api == "chat" or way == "astream",
    ),
)
def test_parallel_nodes_with_equal_prompts_get_an_answer_each(
    api: str, way: str, server: Server, saver: ResilientSaver
) -> None:
    """In one run each its own; after a crash each recorded answer once, where it was given."""
    given: dict[str, str] = {}
    crashed = [True]

    def crash(name: str) -> None:
        if crashed[0]:
            raise Lost("each of them")

    made = branches(durable(client(api, server)), saver, crash, way=way)
    with pytest.raises(Lost):
        run(made, {"said": []}, way)
    settled(saver)  # a coroutine that is cancelled does not wait for its answer to be recorded
    before = {e.place.split("@")[0]: e.answer.id for e in saver.journal("t") if e.answer}
    cut = states(saver).count("interrupted")  # cancelled by the first failure, before its answer
    assert len(before) + cut == server.paid
    crashed[0] = False
    got = run(made, None, way)["said"]
    given = {name: id for name, id, _ in got}
    # One that was cut is asked again, unless its whole stream had been stored by then.
    assert 4 <= server.paid <= 4 + cut
    assert len({text for _, _, text in got}) == 4
    assert {name: given[name] for name in before} == before


@pytest.mark.parametrize("api", APIS)
def test_equal_questions_in_one_run_are_asked_each(
    api: str, server: Server, saver: ResilientSaver
) -> None:
    crash = Crash()
    found: list[list[str]] = []
    model = durable(client(api, server))

    def node(state: Any) -> Any:
        found.append([model.invoke(state["messages"]).text for _ in range(3)])
        crash()
        return {}

    made = one_node(node, saver)
    with pytest.raises(Lost):
        made.invoke(user(), where())
    made.invoke(None, where())
    assert server.paid == 3
    assert len(set(found[0])) == 3
    assert found[1] == found[0]


def test_an_ensemble_keeps_its_samples_apart(server: Server, saver: ResilientSaver) -> None:
    """The same prompt at three temperatures."""
    models = [durable(client("chat", server, temperature=t)) for t in (0.1, 0.5, 0.9)]
    found: list[list[str]] = []
    crash = Crash()

    async def node(state: Any) -> Any:
        answers = await asyncio.gather(*(m.ainvoke(state["messages"]) for m in models))
        found.append([m.text for m in answers])
        crash()
        return {}

    made = one_node(node, saver)
    with pytest.raises(Lost):
        run(made, user(), "ainvoke")
    run(made, None, "ainvoke")
    assert server.paid == 3
    assert found[0] == found[1]


# --- without a saver of ours --------------------------------------------------------------------


@pytest.mark.parametrize("api", APIS)
def test_without_a_resilient_saver_it_passes_through_or_complains(
    api: str, server: Server, saver: ResilientSaver
) -> None:
    from langgraph_resilient import NoSaver

    assert durable(client(api, server)).invoke("hi").text.startswith(TEXT)
    made = thinking(durable(client(api, server)), None)
    assert last(made.invoke(user())).text.startswith(TEXT)
    with pytest.raises(NoSaver):
        thinking(durable(client(api, server), passthrough=False), None).invoke(user())
    assert server.paid == 2
