"""Parameters: what was really sent, what happens when the code's defaults change, and no secrets."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from wire import Asked, Reply, Server, Tool, reply
from wire.clients import APIS, SECRET, client
from wired import Crash, Lost, last, one_node, run, states, thinking, user, where

from langgraph_resilient import (
    ParametersDrifted,
    ResilienceMiddleware,
    ResilientSaver,
    RunDiverged,
    durable,
)

SET: dict[str, dict[str, Any]] = {
    "chat": {
        "temperature": 0.3,
        "top_p": 0.9,
        "seed": 11,
        "max_tokens": 99,
        "stop": ["X"],
        "frequency_penalty": 0.1,
        "reasoning_effort": "low",
        "model": "gpt-4o-2024-08-06",
    },
    "responses": {
        "temperature": 0.3,
        "top_p": 0.9,
        "max_tokens": 99,
        "reasoning_effort": "low",
        "model": "gpt-4o-2024-08-06",
    },
    "messages": {
        "temperature": 0.3,
        "top_k": 7,
        "max_tokens": 99,
        "stop": ["X"],
        "model": "claude-3-7-sonnet-20250219",
    },
}
OTHER: dict[str, dict[str, Any]] = {
    "chat": {
        "temperature": 1.0,
        "top_p": 0.5,
        "seed": 12,
        "max_tokens": 11,
        "stop": ["Y", "Z"],
        "frequency_penalty": 0.7,
        "reasoning_effort": "high",
        "model": "gpt-4o-mini",
    },
    "responses": {
        "temperature": 1.0,
        "top_p": 0.5,
        "max_tokens": 11,
        "reasoning_effort": "high",
        "model": "gpt-4o-mini",
    },
    "messages": {
        "temperature": 1.0,
        "top_k": 9,
        "max_tokens": 11,
        "stop": ["Y"],
        "model": "claude-opus-4-1",
    },
}
BROKEN = re.compile("connection|peer closed|incomplete|lost behind", re.IGNORECASE)
CUT = reply("Once upon a time there was a fox", cut=3)
WHOLE = reply("Once upon a time there was a fox")


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[ResilientSaver]:
    with ResilientSaver.from_conn_string(tmp_path / "agent.db") as made:
        yield made


def sent(asked: Asked) -> dict[str, Any]:
    """The parameters on the wire."""
    return {k: v for k, v in asked.parameters.items() if k != "stream_options" and v is not None}


def cut_then(model: Any, saver: Any, way: str = "stream") -> Any:
    """Run a graph whose call is cut in the middle."""
    made = thinking(model, saver, way)
    with pytest.raises(Exception) as caught:
        run(made, user(), way)
    assert states(saver) == ["interrupted"], caught.value
    return made


# --- what was sent ------------------------------------------------------------------------------


@pytest.mark.parametrize("api", APIS)
def test_the_journal_tells_what_went_over_the_wire(api: str, saver: ResilientSaver) -> None:
    with Server([WHOLE]) as server:
        thinking(durable(client(api, server, **SET[api])), saver).invoke(user(), where())
    [entry] = saver.journal("t")
    [asked] = server.log
    recorded = {k: v for k, v in entry.parameters.items() if v is not None}
    assert recorded == sent(asked)
    assert (entry.provider, entry.model) == (
        "anthropic" if api == "messages" else "openai",
        SET[api]["model"],
    )
    assert entry.usage["input_tokens"] == 10
    assert entry.model_version == SET[api]["model"]
    assert entry.finish_reason in ("stop", "end_turn", "completed")
    assert entry.system_fingerprint == ("fp_wire" if api == "chat" else "")
    assert [m.text for m in entry.messages] == ["go"]
    assert entry.ended_at >= entry.started_at


@pytest.mark.parametrize("api", APIS)
def test_tools_and_their_choice_are_recorded(api: str, saver: ResilientSaver) -> None:
    def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    with Server([WHOLE]) as server:
        model = durable(client(api, server)).bind_tools([pay], tool_choice="any")
        thinking(model, saver).invoke(user(), where())
    [entry] = saver.journal("t")
    assert entry.sent["tools"] == server.log[0].body["tools"]
    assert entry.sent["tool_choice"] == server.log[0].body["tool_choice"]
    assert "tools" not in entry.parameters


# --- drift --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["stream", "astream"])
@pytest.mark.parametrize("api", APIS)
def test_an_interrupted_call_goes_on_with_the_recorded_parameters(
    api: str, way: str, saver: ResilientSaver, caplog: pytest.LogCaptureFixture
) -> None:
    with Server([CUT, WHOLE]) as server:
        cut_then(durable(client(api, server, **SET[api])), saver, way)
        with caplog.at_level(logging.WARNING, "langgraph_resilient"):
            made = thinking(durable(client(api, server, **OTHER[api])), saver, way)
            run(made, None, way)
    first, second = map(sent, server.log)
    assert second == first
    [entry] = saver.journal("t")
    assert entry.state == "retired"
    assert entry.drift["temperature"] == [0.3, 1.0]
    assert entry.drift["model"] == [SET[api]["model"], OTHER[api]["model"]]
    assert "temperature: 0.3 -> 1.0" in caplog.text
    assert "model call 1 goes on" in caplog.text
    assert "go" not in [record.args for record in caplog.records]


@pytest.mark.parametrize("api", APIS)
def test_parameters_that_were_not_set_are_not_sent(api: str, saver: ResilientSaver) -> None:
    """The code has set them since."""
    same = {"model": SET[api]["model"], "max_tokens": 99}
    with Server([CUT, WHOLE]) as server:
        cut_then(durable(client(api, server, **same)), saver)
        more = {**SET[api], **same}
        thinking(durable(client(api, server, **more)), saver, "stream").invoke(None, where())
    first, second = map(sent, server.log)
    assert second == first


def test_parameters_of_the_call_drift_as_those_of_the_model(saver: ResilientSaver) -> None:
    """`bind` and `invoke(stop=…)`."""
    with Server([CUT, WHOLE]) as server:
        cut_then(durable(client("chat", server)).bind(temperature=0.3, stop=["X"]), saver)
        model = durable(client("chat", server)).bind(temperature=0.9, stop=["Y"], top_p=0.2)
        thinking(model, saver, "stream").invoke(None, where())
    first, second = map(sent, server.log)
    assert second == first


@pytest.mark.parametrize("api", APIS)
def test_current_parameters_are_sent_where_that_is_wanted(api: str, saver: ResilientSaver) -> None:
    with Server([CUT, WHOLE]) as server:
        cut_then(durable(client(api, server, **SET[api])), saver)
        model = durable(client(api, server, **OTHER[api]), on_drift="current")
        got = thinking(model, saver, "stream").invoke(None, where())
        fresh = client(api, server, **OTHER[api])
        list(fresh.stream([HumanMessage("go")]))
    assert sent(server.log[1]) == sent(server.log[2])
    assert last(got).text == WHOLE.text
    assert [e.drift for e in saver.journal("t")] == [{}, {}]


@pytest.mark.parametrize("answered", [False, True])
def test_drift_can_stop_the_run(answered: bool, saver: ResilientSaver) -> None:
    with Server([WHOLE if answered else CUT, WHOLE]) as server:
        made = thinking(durable(client("chat", server, temperature=0.3)), saver, "stream", Crash())
        with pytest.raises(Exception, match=BROKEN):
            made.invoke(user(), where())
        model = durable(client("chat", server, temperature=0.9), on_drift="raise")
        with pytest.raises(ParametersDrifted, match=r"temperature: 0\.3 -> 0\.9"):
            thinking(model, saver, "stream").invoke(None, where())
        assert server.paid == 1
        model = durable(client("chat", server, temperature=0.3), on_drift="raise")
        got = thinking(model, saver, "stream").invoke(None, where())
    assert last(got).text == WHOLE.text
    assert server.paid == (1 if answered else 2)


@pytest.mark.parametrize("api", APIS)
def test_a_finished_calls_answer_holds_whatever_the_parameters_are_now(
    api: str, saver: ResilientSaver
) -> None:
    with Server([WHOLE]) as server:
        made = thinking(durable(client(api, server, **SET[api])), saver, "invoke", Crash())
        with pytest.raises(Lost):
            made.invoke(user(), where())
        thinking(durable(client(api, server, **OTHER[api])), saver).invoke(None, where())
    assert server.paid == 1


def test_another_provider_is_not_sent_the_first_ones_parameters(saver: ResilientSaver) -> None:
    with Server([CUT, WHOLE]) as server:
        cut_then(durable(client("chat", server, **SET["chat"])), saver)
        got = thinking(durable(client("messages", server)), saver, "stream").invoke(None, where())
    assert last(got).text == WHOLE.text
    assert server.log[1].body["model"] == "claude-opus-4-7"
    assert "seed" not in server.log[1].body


def test_the_middleware_passes_the_options_on(saver: ResilientSaver) -> None:
    def agent(server: Server, temperature: float, **options: Any) -> Any:
        return create_agent(
            client("messages", server, temperature=temperature, streaming=True),
            [],
            middleware=[ResilienceMiddleware(**options)],
            checkpointer=saver,
        )

    with Server([CUT, WHOLE]) as server:
        with pytest.raises(Exception, match=BROKEN):
            agent(server, 0.3).invoke(user(), where())
        with pytest.raises(ParametersDrifted):
            agent(server, 0.9, on_drift="raise").invoke(None, where())
        agent(server, 0.9).invoke(None, where())
    assert [asked.body["temperature"] for asked in server.log] == [0.3, 0.3]


# --- divergence ---------------------------------------------------------------------------------


def asking_what(server: Server, saver: Any, text: str, crash: Any, **options: Any) -> Any:
    model = durable(client("chat", server), **options)

    def node(state: Any) -> Any:
        model.invoke([HumanMessage("same")])
        answer = model.invoke([HumanMessage(text)])
        crash()
        return {"messages": [answer]}

    return one_node(node, saver)


def test_a_run_that_asks_something_else_is_told_of_or_stopped(
    saver: ResilientSaver, caplog: pytest.LogCaptureFixture
) -> None:
    with Server([WHOLE]) as server:
        with pytest.raises(Lost):
            asking_what(server, saver, "one", Crash()).invoke(user(), where())
        with pytest.raises(RunDiverged, match="asked"):
            made = asking_what(server, saver, "two", Crash(0), on_divergence="raise")
            made.invoke(None, where())
        assert server.paid == 2
        with caplog.at_level(logging.WARNING, "langgraph_resilient"):
            asking_what(server, saver, "two", Crash(0)).invoke(None, where())
    assert server.questions() == ["same", "one", "two"]
    assert "asks something else" in caplog.text


# --- seeds --------------------------------------------------------------------------------------


def seeds(server: Server) -> list[Any]:
    return [asked.body.get("seed") for asked in server.log]


def test_an_automatic_seed_is_sent_recorded_and_stable(tmp_path: Path) -> None:
    """The same thread in another database has the same seeds; another thread has others."""
    found = []
    for name, thread in (("a", "t"), ("b", "t"), ("c", "u")):
        with ResilientSaver.from_conn_string(tmp_path / name) as saver, Server([WHOLE]) as server:
            model = durable(client("chat", server), seed="auto")

            def node(state: Any, model: Any = model) -> Any:
                for text in ("one", "two", "two"):
                    model.invoke([HumanMessage(text)])
                return {}

            one_node(node, saver).invoke(user(), where(thread))
            found.append(seeds(server))
            assert found[-1] == [e.parameters["seed"] for e in saver.journal(thread)]
    assert found[0] == found[1]
    assert len({*found[0], *found[2]}) == 6
    assert all(isinstance(seed, int) and 0 <= seed < 2**31 for seed in found[0])


def test_an_automatic_seed_survives_a_crash(saver: ResilientSaver) -> None:
    """A finished call is found, an interrupted one goes on with its seed."""
    with Server([WHOLE, CUT, WHOLE]) as server:
        model = durable(client("chat", server), seed="auto")

        def node(state: Any) -> Any:
            list(model.stream([HumanMessage("one")]))
            list(model.stream([HumanMessage("two")]))
            return {}

        made = one_node(node, saver)
        with pytest.raises(Exception, match=BROKEN):
            made.invoke(user(), where())
        made.invoke(None, where())
    first, second, third = seeds(server)
    assert second == third != first
    assert all(not entry.drift for entry in saver.journal("t"))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_automatic_seeds_do_not_depend_on_the_order_of_a_batch(
    asynchronous: bool, saver: ResilientSaver
) -> None:
    with Server([WHOLE]) as server:
        model = durable(client("chat", server), seed="auto")
        questions = [[HumanMessage(f"q{index}")] for index in range(8)]
        crash = Crash()

        def node(state: Any) -> Any:
            model.batch(questions)
            crash()
            return {}

        async def anode(state: Any) -> Any:
            await model.abatch(questions)
            crash()
            return {}

        made = one_node(anode if asynchronous else node, saver)
        way = "ainvoke" if asynchronous else "invoke"
        with pytest.raises(Lost):
            run(made, user(), way)
        run(made, None, way)
    assert server.paid == 8
    assert len(set(seeds(server))) == 8


def test_a_regenerated_answer_has_a_seed_of_its_own(saver: ResilientSaver) -> None:
    with Server([WHOLE]) as server:
        made = thinking(durable(client("chat", server), seed="auto"), saver)
        made.invoke(user(), where())
        before = next(s for s in made.get_state_history(where()) if s.next == ("think",))
        made.invoke(None, before.config)
    assert len(set(seeds(server))) == 2


@pytest.mark.parametrize("api", ["responses", "messages"])
def test_who_takes_no_seed_is_sent_none(api: str, saver: ResilientSaver) -> None:
    with Server([WHOLE]) as server:
        thinking(durable(client(api, server), seed="auto"), saver).invoke(user(), where())
    assert seeds(server) == [None]


def test_a_seed_of_the_code_is_not_replaced(saver: ResilientSaver) -> None:
    with Server([WHOLE]) as server:
        thinking(durable(client("chat", server, seed=5), seed="auto"), saver).invoke(
            user(), where()
        )
        model = durable(client("chat", server), seed="auto").bind(seed=6)
        thinking(model, saver).invoke(user(), where())
    assert seeds(server) == [5, 6]


# --- secrets ------------------------------------------------------------------------------------

HEADER = "hdr-secret-1a2b3c4d"
OTHERS = ("body-secret-77aa88bb", "mcp-secret-99cc00dd")


@pytest.mark.parametrize("api", APIS)
def test_no_secret_is_anywhere_in_the_database(api: str, tmp_path: Path) -> None:
    """Keys, headers, tokens in the body; answered, refused, cut and resumed calls."""
    path = tmp_path / "agent.db"
    more: dict[str, Any] = {"default_headers": {"X-Gateway-Token": HEADER}}
    if api == "messages":
        server_of = {"type": "url", "url": "http://x/", "name": "x"}
        more["mcp_servers"] = [{**server_of, "authorization_token": OTHERS[1]}]
        more["model_kwargs"] = {"extra_headers": {"X-Other": OTHERS[0]}}
    else:
        more["extra_body"] = {"api_key": OTHERS[0], "nested": {"headers": {"A": OTHERS[1]}}}
    refused = Reply(status=401, error=f"Incorrect API key provided: {SECRET[:8]}***.")

    def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    replies = [WHOLE, reply("", Tool(name="pay", args={"amount": 1})), refused, CUT, WHOLE]
    with Server(replies) as server:
        with ResilientSaver.from_conn_string(path) as saver:
            model = durable(client(api, server, **more))
            thinking(model, saver).invoke(user(), where("a"))
            agent = create_agent(
                client(api, server, streaming=True, **more),
                [pay],
                middleware=[ResilienceMiddleware()],
                checkpointer=saver,
            )
            with pytest.raises(Exception, match="Incorrect API key"):
                agent.invoke(user(), where())
            assert states(saver)[-1] == "failed"
            with pytest.raises(Exception, match=BROKEN):
                agent.invoke(None, where())
            agent.invoke(None, where())
            shown = str([vars_of(e) for t in "at" for e in saver.journal(t)])
            shown += str(list(saver.list(where())))
        assert server.paid == 5
        if api != "messages":
            assert server.log[0].body["api_key"] == OTHERS[0], "it was really sent"
    raw = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    for secret in (SECRET, HEADER, *OTHERS):
        assert secret not in shown
        assert secret.encode() not in raw


@pytest.mark.parametrize("api", APIS)
def test_an_error_that_repeats_the_key_is_recorded_without_it(
    api: str, saver: ResilientSaver
) -> None:
    with Server([Reply(status=401, error=f"Incorrect API key provided: {SECRET}.")]) as server:
        with pytest.raises(Exception, match="Incorrect"):
            thinking(durable(client(api, server)), saver).invoke(user(), where())
    [entry] = saver.journal("t")
    assert "Incorrect API key provided" in entry.error
    assert SECRET not in entry.error


def vars_of(entry: Any) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in entry.__slots__}
