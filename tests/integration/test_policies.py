"""Skipped checkpoints: visible in their process, kept when they must not be lost, bridged after."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import pytest
from building import fork, in_child, wait
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from langgraph_resilient import (
    AfterTools,
    EveryRounds,
    EveryStep,
    ResilientSaver,
    effect,
    journaled,
    tool_node,
)

CONFIG: Any = {"configurable": {"thread_id": "t"}}
TURNS = 5
NEVER: Callable[[Any], bool] = lambda snapshot: False  # noqa: E731
POLICIES = {"never": NEVER, "rounds": EveryRounds(2), "tools": AfterTools()}


def note(path: Path | None, line: str) -> None:
    if path is None:
        return
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(handle, f"{line}\n".encode())
    os.fsync(handle)
    os.close(handle)


def graph(
    saver: ResilientSaver,
    *,
    kind: Any = "pure",
    log: Path | None = None,
    asks: bool = False,
    fails: bool = False,
) -> Any:
    @effect(kind)
    @tool
    def look(turn: int) -> str:
        """Look."""
        note(log, f"tool {turn}")
        if fails and turn == 2:
            raise ValueError("no such page")
        return f"page {turn}" + (interrupt("go on?") if asks and turn == 2 else "")

    def answer(turn: int) -> str:
        note(log, f"model {turn}")
        return f"step {turn}"

    def model(state: MessagesState) -> dict[str, Any]:
        turn = sum(message.type == "tool" for message in state["messages"])
        text = journaled(answer)(turn)
        if turn == TURNS:
            return {"messages": [AIMessage(text, id=f"m{turn}")]}
        call = {"name": "look", "args": {"turn": turn}, "id": f"c{turn}", "type": "tool_call"}
        return {"messages": [AIMessage(text, id=f"m{turn}", tool_calls=[call])]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", tool_node([look]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges(
        "model", lambda state: "tools" if state["messages"][-1].tool_calls else END
    )
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


INPUT = {"messages": [HumanMessage("go", id="h")]}


def steps(saver: ResilientSaver) -> list[int]:
    return [found.metadata["step"] for found in saver.list(CONFIG)]


def texts(state: Any) -> list[str]:
    return [message.text for message in state["messages"]]


@pytest.fixture
def whole(tmp_path: Path) -> list[str]:
    with ResilientSaver.from_conn_string(tmp_path / "whole.db") as saver:
        return texts(graph(saver).invoke(INPUT, CONFIG))


@pytest.mark.parametrize("name", POLICIES)
def test_the_end_is_the_same_and_fewer_checkpoints_are_stored(
    tmp_path: Path, whole: list[str], name: str
) -> None:
    path = tmp_path / "agent.db"
    with ResilientSaver.from_conn_string(path, policy=POLICIES[name]) as saver:
        assert texts(graph(saver).invoke(INPUT, CONFIG)) == whole
        counts = saver.snapshots
        assert counts.skipped > 0
        assert counts.bridged > 0
    with ResilientSaver.from_conn_string(path) as saver:
        assert len(steps(saver)) == counts.stored
        assert texts(graph(saver).get_state(CONFIG).values) == whole
        parents = [found.parent_config for found in saver.list(CONFIG)]
        stored = {found.config["configurable"]["checkpoint_id"] for found in saver.list(CONFIG)}
        assert all(p is None or p["configurable"]["checkpoint_id"] in stored for p in parents)


def test_every_step_skips_nothing(tmp_path: Path, whole: list[str]) -> None:
    with ResilientSaver.from_conn_string(tmp_path / "a.db", policy=EveryStep()) as saver:
        graph(saver).invoke(INPUT, CONFIG)
        assert saver.snapshots.skipped == 0


def test_a_skipped_checkpoint_is_visible_in_its_process(tmp_path: Path) -> None:
    with ResilientSaver.from_conn_string(tmp_path / "a.db", policy=NEVER) as saver:
        agent, seen = graph(saver), []
        for _ in agent.stream(INPUT, CONFIG, durability="sync"):
            seen.append(len(agent.get_state(CONFIG).values["messages"]))
        assert seen == sorted(seen)
        assert seen[-1] > seen[0]


def test_a_look_at_the_history_keeps_what_is_held(tmp_path: Path) -> None:
    with ResilientSaver.from_conn_string(tmp_path / "a.db", policy=NEVER) as saver:
        agent = graph(saver)
        for _ in agent.stream(INPUT, CONFIG, durability="sync"):
            newest = agent.get_state(CONFIG).config
            assert next(iter(saver.list(CONFIG))).config == newest


def test_an_interrupt_is_never_skipped(tmp_path: Path, whole: list[str]) -> None:
    path = tmp_path / "agent.db"

    def stops() -> None:
        with ResilientSaver.from_conn_string(path, policy=NEVER) as saver:
            out = graph(saver, asks=True).invoke(INPUT, CONFIG)
            assert out["__interrupt__"]
            os.kill(os.getpid(), signal.SIGKILL)  # nothing is closed

    assert in_child(stops) == -signal.SIGKILL
    with ResilientSaver.from_conn_string(path, policy=NEVER) as saver:
        agent = graph(saver, asks=True)
        assert agent.get_state(CONFIG).tasks[0].interrupts
        out = agent.invoke(Command(resume=""), CONFIG)
    assert texts(out) == whole


@pytest.mark.parametrize("channel", ["__interrupt__", "__error__", "messages"])
def test_a_checkpoint_whose_writes_came_ahead_of_it_is_stored(tmp_path: Path, channel: str) -> None:
    """LangGraph saves in the background, in any order."""
    path = tmp_path / "agent.db"
    thread = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    checkpoint = {**empty_checkpoint(), "id": str(uuid6())}
    checkpoint["channel_values"] = {"branch:to:tools": None}
    named = {"configurable": {**thread["configurable"], "checkpoint_id": checkpoint["id"]}}

    def run() -> None:
        with ResilientSaver.from_conn_string(path, policy=NEVER) as saver:
            saver.put_writes(named, [(channel, "x")], "task")
            saver.put(thread, checkpoint, {"source": "loop", "step": 1}, {})
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(run) == -signal.SIGKILL
    with ResilientSaver.from_conn_string(path) as saver:
        found = saver.get_tuple(thread)
    assert found is not None
    assert found.pending_writes == [("task", channel, "x")]


def test_late_writes_of_an_earlier_checkpoint_change_nothing_for_those_that_came_ahead(
    tmp_path: Path,
) -> None:
    """A background thread may store a finished task's writes after the next checkpoint's question."""
    thread = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}

    def made(step: int) -> Any:
        return {
            **empty_checkpoint(),
            "id": str(uuid6()),
            "channel_values": {"branch:to:tools": None, "n": step},
        }

    with ResilientSaver.from_conn_string(tmp_path / "agent.db", policy=NEVER) as saver:
        first, second = made(-1), made(0)
        before = saver.put(thread, first, {"source": "input", "step": -1}, {})
        named = {"configurable": {**thread["configurable"], "checkpoint_id": second["id"]}}
        saver.put_writes(named, [("__interrupt__", "who?")], "asks")
        saver.put_writes(before, [("n", 0)], "late")
        saver.put(before, second, {"source": "loop", "step": 0}, {})
        found = saver.get_tuple(thread)
        assert found is not None
        assert found.checkpoint["id"] == second["id"]
        assert found.pending_writes == [("asks", "__interrupt__", "who?")]


def logging_graph(saver: Any, frequency: int) -> Any:
    def joined(old: list[str] | None, batches: list[list[str]]) -> list[str]:
        return [*(old or []), *chain.from_iterable(batches)]

    log = Annotated[list[str], DeltaChannel(joined, snapshot_frequency=frequency)]
    State = TypedDict("State", {"log": log, "n": int}, total=False)  # noqa: UP013
    builder = StateGraph(State)
    builder.add_node("count", lambda state: {"n": state["n"] + 1})
    builder.add_node("write", lambda state: {"log": [f"written {state['n']}"]})
    builder.add_node("end", lambda state: {"n": len(state["log"])})
    builder.add_edge(START, "count")
    builder.add_edge("count", "write")
    builder.add_edge("write", "end")
    builder.add_edge("end", END)
    return builder.compile(checkpointer=saver, interrupt_before=["end"])


@pytest.mark.parametrize("frequency", [1, 2, 3])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_nothing_is_lost_of_delta_channels(tmp_path: Path, durability: str, frequency: int) -> None:
    """Their values are rebuilt from the writes of every step since a snapshot."""
    path, memory = tmp_path / "agent.db", InMemorySaver()
    with ResilientSaver.from_conn_string(path, policy=NEVER) as saver:
        graphs = [logging_graph(one, frequency) for one in (saver, memory)]
        for n in range(8):
            inputs: Any = {"log": [f"in {n}"], "n": n * 10} if n % 3 else None if n else {"n": 0}
            ours, theirs = [one.invoke(inputs, CONFIG, durability=durability) for one in graphs]
            assert ours == theirs
            ours, theirs = [one.get_state(CONFIG) for one in graphs]
            assert (ours.values, ours.next) == (theirs.values, theirs.next)
    with ResilientSaver.from_conn_string(path) as saver:
        assert logging_graph(saver, frequency).get_state(CONFIG).values == theirs.values


def test_an_error_is_never_skipped(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"

    def breaks() -> None:
        with ResilientSaver.from_conn_string(path, policy=NEVER) as saver:
            with pytest.raises(ValueError, match="no such page"):
                graph(saver, fails=True).invoke(INPUT, CONFIG)
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(breaks) == -signal.SIGKILL
    with ResilientSaver.from_conn_string(path) as saver:
        snapshot = graph(saver).get_state(CONFIG)
        assert snapshot.tasks[0].error
        assert len(snapshot.values["messages"]) == 6


def test_what_an_external_call_was_asked_by_is_stored_before_it_starts(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with ResilientSaver.from_conn_string(path, policy=NEVER) as saver:
        graph(saver, kind="external").invoke(INPUT, CONFIG)
        assert saver.snapshots.stored >= TURNS


def test_closing_keeps_what_is_held(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with ResilientSaver.from_conn_string(path, policy=NEVER) as saver:
        agent = graph(saver)
        for _, _event in zip(
            range(3), agent.stream(INPUT, CONFIG, durability="sync"), strict=False
        ):
            pass
        newest = agent.get_state(CONFIG)
    with ResilientSaver.from_conn_string(path) as saver:
        assert graph(saver).get_state(CONFIG).values == newest.values


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_moment_no_finished_call_is_repeated(
    tmp_path: Path, whole: list[str], name: str, seed: int
) -> None:
    path, log = tmp_path / "agent.db", tmp_path / "log"
    dice = random.Random(f"{name} {seed}")
    wanted = dice.randrange(1, 2 * TURNS)

    def run() -> None:
        with ResilientSaver.from_conn_string(path, policy=POLICIES[name]) as saver:
            agent = graph(saver, log=log)
            begun = agent.get_state(CONFIG).values
            agent.invoke(None if begun else INPUT, CONFIG)

    pid = fork(run)
    while len(lines(log)) < wanted:
        assert os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    os.kill(pid, signal.SIGKILL)
    wait(pid)
    assert in_child(run) == 0
    with ResilientSaver.from_conn_string(path) as saver:
        assert texts(graph(saver).get_state(CONFIG).values) == whole
    # The one that was killed in the middle may run again: it says that it is pure.
    made = lines(log)
    assert len(made) - len(set(made)) <= 1


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
