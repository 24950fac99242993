"""What a run that goes on pays for: what was not answered before, and nothing else."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from building import in_child
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.types import RetryPolicy
from wire import Asked, Reply, Server, Tool, last_said, reply
from wire.clients import APIS, client
from wired import Crash, Lost, last, one_node, run, spread, states, thinking, user, where

from langgraph_resilient import ResilienceMiddleware, ResilientSaver, durable, effect

LIMIT = Reply(status=429, error="Rate limit reached")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def saver(path: Path) -> Iterator[ResilientSaver]:
    with ResilientSaver.from_conn_string(path) as made:
        yield made


def numbered(asked: Asked) -> Reply:
    return reply(f"{last_said(asked, 'user')} answered {asked.number}")


def three(model: Any, saver: Any, way: str = "invoke") -> Any:
    """Three questions in one node, each with the answers before it."""

    def node(state: Any) -> Any:
        said: list[Any] = []
        for index in range(3):
            said.append(HumanMessage(f"question {index}"))
            said.append(model.invoke(said))
        return {"messages": said}

    async def anode(state: Any) -> Any:
        said: list[Any] = []
        for index in range(3):
            said.append(HumanMessage(f"question {index}"))
            said.append(await model.ainvoke(said))
        return {"messages": said}

    return one_node(node if way == "invoke" else anode, saver)


# --- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "way", "process"),
    spread(
        APIS,
        ("invoke", "ainvoke"),
        ("same", "new"),
        keep=lambda api, way, process: api == "chat" or (way, process) == ("ainvoke", "new"),
    ),
)
def test_after_a_rate_limit_two_calls_are_replayed_and_one_is_sent(
    api: str, way: str, process: str, path: Path
) -> None:
    limited = [True]

    def script(asked: Asked) -> Reply:
        if "question 2" in last_said(asked, "user") and limited[0]:
            return LIMIT
        return numbered(asked)

    with Server(script) as server:

        def first() -> None:
            with ResilientSaver.from_conn_string(path) as saver:
                with pytest.raises(Exception) as caught:
                    run(three(durable(client(api, server)), saver, way), user(), way)
                assert caught.value.status_code == 429

        if process == "same":
            first()
        else:
            assert in_child(first) == 0
        assert server.paid == 3
        limited[0] = False
        with ResilientSaver.from_conn_string(path) as saver:
            assert states(saver) == ["ended", "ended", "failed"]
            got = run(three(durable(client(api, server)), saver, way), None, way)
            assert states(saver) == ["retired", "retired", "failed", "retired"]
        texts = [m.text for m in got["messages"] if isinstance(m, AIMessage)]
    assert server.paid == 4
    assert texts == [f"question {i} answered {n}" for i, n in enumerate((1, 2, 4))]
    assert server.questions() == [f"question {i}" for i in (0, 1, 2, 2)]


def test_many_limits_cost_one_answer_a_call(saver: ResilientSaver) -> None:
    """Each second request is refused; five runs until all three are answered."""

    def script(asked: Asked) -> Reply:
        return LIMIT if asked.number % 2 == 0 else numbered(asked)

    with Server(script) as server:
        made = three(durable(client("chat", server)), saver)
        given: Any = user()
        for _ in range(2):
            with pytest.raises(Exception, match="429"):
                made.invoke(given, where())
            given = None
        got = made.invoke(None, where())
    answered = [asked for asked in server.log if asked.number % 2]
    assert len(answered) == 3
    assert len(got["messages"]) == 7


# --- answers that a run choked on ---------------------------------------------------------------


@pytest.mark.parametrize("process", ["same", "new"])
@pytest.mark.parametrize("seed", [None, "auto"])
def test_a_parser_that_fails_gets_a_new_answer_in_the_next_run(
    seed: Any, process: str, path: Path
) -> None:
    def node_of(model: Any) -> Any:
        def node(state: Any) -> Any:
            good = model.invoke([HumanMessage("first")])
            bad = model.invoke([HumanMessage("number")])
            return {"messages": [good, AIMessage(str(int(bad.text)))]}

        return node

    with Server([reply("good"), reply("no number"), reply("42")]) as server:

        def first() -> None:
            with ResilientSaver.from_conn_string(path) as saver:
                made = one_node(node_of(durable(client("chat", server), seed=seed)), saver)
                with pytest.raises(ValueError, match="no number"):
                    made.invoke(user(), where())

        if process == "same":
            first()
        else:
            assert in_child(first) == 0
        with ResilientSaver.from_conn_string(path) as saver:
            assert states(saver) == ["ended", "discarded"]
            made = one_node(node_of(durable(client("chat", server), seed=seed)), saver)
            assert last(made.invoke(None, where())).text == "42"
    assert server.questions() == ["first", "number", "number"]
    if seed:
        seeds = [asked.body["seed"] for asked in server.log]
        assert len(set(seeds)) == 3, "with the same seed it would be the same bad answer"


def test_langgraphs_node_retry_calls_the_model_again(saver: ResilientSaver) -> None:
    with Server([reply("no number"), reply("42")]) as server:
        model = durable(client("responses", server))

        def node(state: Any) -> Any:
            return {"messages": [AIMessage(str(int(model.invoke(state["messages"]).text)))]}

        retry = RetryPolicy(max_attempts=2, initial_interval=0.0, jitter=False, retry_on=ValueError)
        made = one_node(node, saver, retry_policy=retry)
        assert last(made.invoke(user(), where())).text == "42"
    assert server.paid == 2
    assert states(saver) == ["retired", "retired"]


def test_a_look_at_the_state_in_the_middle_of_a_run_changes_nothing(
    saver: ResilientSaver,
) -> None:
    """Somebody polls the thread while a node asks the same thing twice."""
    with Server(numbered) as server:
        model = durable(client("chat", server))
        found: list[str] = []

        def node(state: Any) -> Any:
            for _ in range(3):
                found.append(model.invoke(state["messages"]).text)
                made.get_state(where())
                list(made.get_state_history(where()))
            return {}

        made = one_node(node, saver)
        made.invoke(user(), where())
    assert server.paid == 3
    assert len(set(found)) == 3


# --- the same question, rightly asked again -----------------------------------------------------


@pytest.mark.parametrize("api", APIS)
def test_time_travel_and_regeneration_call_the_model(api: str, saver: ResilientSaver) -> None:
    with Server(numbered) as server:
        made = thinking(durable(client(api, server)), saver)
        made.invoke(user("q", id="u"), where())
        before = next(s for s in made.get_state_history(where()) if s.next == ("think",))
        again = made.invoke(None, before.config)
        assert last(again).text == "q answered 2"
        forked = made.update_state(before.config, {"messages": [HumanMessage("r", id="u")]})
        assert last(made.invoke(None, forked)).text == "r answered 3"
        made.invoke(user("q"), where("other"))
        made.invoke(user("q"), where())
    assert server.paid == 5
    assert set(states(saver)) == {"retired"}


def test_an_interrupted_runs_answer_does_not_answer_a_fork_of_the_past(
    saver: ResilientSaver,
) -> None:
    """Two turns; the second is lost behind its call; a fork of the first asks anew."""
    with Server(numbered) as server:
        crash = Crash(0)
        made = thinking(durable(client("chat", server)), saver, "invoke", lambda: crash())
        made.invoke(user("q"), where())
        past = next(s for s in made.get_state_history(where()) if s.next == ("think",))
        crash._left = 1
        with pytest.raises(Lost):
            made.invoke(user("second"), where())
        got = made.invoke(None, past.config)
    assert last(got).text == "q answered 3"
    assert server.paid == 3


# --- agents -------------------------------------------------------------------------------------


def paying(done: list[Any], inner: Any = None) -> Any:
    """An external tool that remembers what it did."""

    @tool
    @effect("external")
    def pay(amount: int) -> str:
        """Pay an amount."""
        done.append(amount)
        text = "" if inner is None else f" {inner.invoke([HumanMessage('inside')]).text}"
        return f"paid {amount}{text}"

    return pay


def pays_twice(asked: Asked) -> Reply:
    """Two payments at once, one more, the end."""
    results = sum(role == "tool" for role, _ in asked.messages)
    if last_said(asked, "user") == "inside":
        return reply(f"inner {asked.number}")
    if results == 0:
        return reply("", Tool(name="pay", args={"amount": 1}), Tool(name="pay", args={"amount": 2}))
    if results == 2:
        return reply("", Tool(name="pay", args={"amount": 3}))
    return reply(f"done {asked.number}")


def agent(model: Any, done: list[Any], saver: Any, inner: Any = None, **options: Any) -> Any:
    return create_agent(
        model,
        [paying(done, inner)],
        middleware=[ResilienceMiddleware(**options)],
        checkpointer=saver,
    )


@pytest.mark.parametrize(
    ("api", "way", "durability"),
    spread(
        APIS,
        ("invoke", "ainvoke"),
        ("exit", "async", "sync"),
        keep=lambda api, way, durability: api == "messages" or (way, durability)[1] == "exit",
    ),
)
def test_nothing_is_paid_twice_after_the_last_call_was_limited(
    api: str, way: str, durability: Any, saver: ResilientSaver
) -> None:
    """An agent with three payments; its last question is refused; the run is begun again.

    With "exit" nothing was stored but what the journal and the ledger hold.
    """
    done: list[Any] = []
    limited = [True]

    def script(asked: Asked) -> Reply:
        given = pays_twice(asked)
        return LIMIT if given.pieces and limited[0] else given

    with Server(script) as server:
        made = agent(client(api, server), done, saver)
        with pytest.raises(Exception) as caught:
            run(made, user(id="u"), way, durability=durability)
        assert caught.value.status_code == 429
        ids = [e.answer.id for e in saver.journal("t") if e.answer]
        limited[0] = False
        got = run(made, None, way, durability=durability)
    assert sorted(done) == [1, 2, 3]
    assert server.paid == 4
    said = [m for m in got["messages"] if isinstance(m, AIMessage)]
    assert [m.id for m in said[:2]] == ids
    assert sum(isinstance(m, ToolMessage) for m in got["messages"]) == 3


@pytest.mark.parametrize("api", APIS)
def test_a_run_that_was_lost_whole_is_submitted_again_and_costs_nothing(
    api: str, path: Path
) -> None:
    """SIGKILL before the first checkpoint is stored: message and tool call ids are the same."""
    effects = path.with_suffix(".effects")
    with Server(pays_twice) as server:

        def lost() -> None:
            with ResilientSaver.from_conn_string(path) as saver:
                done = _File(effects)
                made = agent(client(api, server), done, saver)
                turns = 0
                for event in made.stream(user(id="u"), where(), durability="exit"):
                    if any(m.text == "" for m in event.get("model", {}).get("messages", ())):
                        turns += 1
                    if turns == 2:  # both payments of the first turn are done
                        os.kill(os.getpid(), signal.SIGKILL)

        assert in_child(lost) == -9
        paid = server.paid
        with ResilientSaver.from_conn_string(path) as saver:
            recorded = [e.answer for e in saver.journal("t") if e.answer]
            made = agent(client(api, server), _File(effects), saver)
            assert not made.get_state(where()).values, "nothing of the run is stored"
            got = made.invoke(user(id="u"), where())
            assert {e.state for e in saver.ledger.entries("t")} == {"succeeded"}
    assert sorted(effects.read_text().split()) == ["1", "2", "3"]
    assert server.paid == 3
    assert paid == len(recorded)
    said = [m for m in got["messages"] if isinstance(m, AIMessage)]
    assert said[0].id == recorded[0].id
    assert [c["id"] for c in said[0].tool_calls] == [c["id"] for c in recorded[0].tool_calls]


class _File(list[Any]):
    """A list of effects in a file, which outlives its process."""

    def __init__(self, path: Path):
        super().__init__()
        self._path = path

    def append(self, item: Any) -> None:
        with self._path.open("a") as file:
            file.write(f"{item}\n")


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
def test_a_call_inside_a_recorded_tool_retires_with_its_success(
    way: str, saver: ResilientSaver
) -> None:
    """The tool dies behind its model call: that is replayed; once it has succeeded it is not."""
    done: list[Any] = []
    crash = Crash()

    with Server(pays_twice) as server:
        inner = durable(client("chat", server))

        @tool
        @effect("idempotent")
        def pay(amount: int) -> str:
            """Pay an amount."""
            text = inner.invoke([HumanMessage("inside")]).text
            if amount == 2:
                crash()
            done.append(amount)
            return f"paid {amount} {text}"

        made = create_agent(
            client("chat", server),
            [pay],
            middleware=[ResilienceMiddleware()],
            checkpointer=saver,
        )
        with pytest.raises(Lost):
            run(made, user(id="u"), way)
        inside = [e for e in saver.journal("t") if e.tool_call]
        assert "ended" in {e.state for e in inside}
        run(made, None, way)
    assert set(done) == {
        1,
        2,
        3,
    }  # an idempotent call that is cancelled with its sibling runs again
    assert server.questions().count("inside") == 3
    assert {e.state for e in saver.journal("t")} == {"retired"}


@pytest.mark.parametrize("durability", ["exit", "async"])
def test_sub_agents_inside_tools_are_paid_once(durability: Any, saver: ResilientSaver) -> None:
    """An agent in a tool of an agent; the outer one is refused its last answer, twice."""
    limits = [2]

    def script(asked: Asked) -> Reply:
        if last_said(asked, "user").startswith("inner"):
            if not any(role == "tool" for role, _ in asked.messages):
                return reply("", Tool(name="look", args={"what": "it"}))
            return reply(f"found {asked.number}")
        results = sum(role == "tool" for role, _ in asked.messages)
        if results < 2:
            return reply("", Tool(name="research", args={"topic": f"t{results}"}))
        limits[0] -= 1
        return LIMIT if limits[0] >= 0 else reply("done")

    looked: list[str] = []
    with Server(script) as server:

        def look(what: str) -> str:
            """Look."""
            looked.append(what)
            return "seen"

        inner = create_agent(
            client("messages", server), [look], middleware=[ResilienceMiddleware()]
        )

        def research(topic: str) -> str:
            """Research a topic."""
            found = inner.invoke({"messages": [HumanMessage(f"inner {topic}")]})
            return str(found["messages"][-1].text)

        made = create_agent(
            client("chat", server),
            [research],
            middleware=[ResilienceMiddleware()],
            checkpointer=saver,
        )
        given: Any = user(id="u")
        for _ in range(2):
            with pytest.raises(Exception, match="429"):
                made.invoke(given, where(), durability=durability)
            given = None
        got = made.invoke(None, where(), durability=durability)
    assert last(got).text == "done"
    apis = [asked.api for asked in server.log]
    assert (apis.count("messages"), apis.count("chat")) == (4, 5)
    assert looked == ["it", "it"]


def test_a_resumed_path_equals_the_original_at_temperature_one(path: Path) -> None:
    """No seed, temperature 1, an answer that is never the same twice: recorded answers decide."""
    paths: list[list[tuple[str, Any]]] = []

    def script(asked: Asked) -> Reply:
        assert asked.body["temperature"] == 1
        turns = sum(role == "tool" for role, _ in asked.messages)
        if turns < 3:
            return reply("", Tool(name="step", args={"number": random.randrange(10**9)}))
        return reply(f"end {random.randrange(10**9)}")

    def step(number: int) -> str:
        """Step."""
        return f"stepped {number}"

    with Server(script) as server:
        for crash in (Crash(), Crash(0)):
            with ResilientSaver.from_conn_string(path) as saver:
                made = create_agent(
                    client("messages", server, temperature=1),
                    [step],
                    middleware=[_Behind(crash), ResilienceMiddleware()],
                    checkpointer=saver,
                )
                if not paths:
                    with pytest.raises(Lost):
                        made.invoke(user(id="u"), where())
                    recorded = [e.answer for e in saver.journal("t") if e.state == "ended"]
                    paths.append([(m.id, m.tool_calls) for m in recorded])
                else:
                    got = made.invoke(None, where())
                    said = [m for m in got["messages"] if isinstance(m, AIMessage)]
                    paths.append([(m.id, m.tool_calls) for m in said])
    assert paths[0]
    assert all(one in paths[1] for one in paths[0])
    assert server.paid == 4


def _behind() -> Any:
    from langchain.agents.middleware.types import AgentMiddleware

    class Behind(AgentMiddleware[Any, Any, Any]):
        """Loses the line behind the third model call."""

        def __init__(self, crash: Crash):
            super().__init__()
            self._crash = crash

        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            answer = handler(request)
            if sum(isinstance(m, AIMessage) for m in request.messages) == 2:
                self._crash()
            return answer

    return Behind


_Behind = _behind()
