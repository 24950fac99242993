"""Several processes on one thread: one runs, the others wait or are refused, zombies write nothing.

Every process is real. One that plays another machine has an owner of another host: only its lease
says whether it lives. On a file and on a server alike: a lease is a row.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from building import fork, in_child, wait
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command
from serving import fresh_address

from langgraph_resilient import (
    LostOwnership,
    ResilientSaver,
    ThreadBusy,
    current_call,
    effect,
    tool_node,
)
from langgraph_resilient.ledger import Book, Ledger, Reading
from langgraph_resilient.ledger.owner import this_process

Place = Path | str
CONFIG: Any = {"configurable": {"thread_id": "t"}}
CALL = {"name": "pay", "args": {"amount": 5}, "id": "c1", "type": "tool_call"}


class World:
    """A file outside: one line an effect, fsynced."""

    def __init__(self, path: Path):
        self.path = path

    def note(self, line: str) -> None:
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(handle, f"{line}\n".encode())
        os.fsync(handle)
        os.close(handle)

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def wait_for(self, line: str) -> None:
        deadline = time.monotonic() + 20
        while line not in self.lines():
            assert time.monotonic() < deadline, f"no {line!r} in {self.lines()}"
            time.sleep(0.005)


def graph(
    saver: ResilientSaver, world: World, kind: Any = "external", during: Callable[[], Any] = str
) -> Any:
    @effect(kind)
    @tool
    def pay(amount: int) -> str:
        """Pay."""
        call = current_call()
        assert call is not None
        world.note(f"paid {call.attempt}")
        during()
        return f"receipt {call.attempt}"

    def model(state: MessagesState) -> dict[str, Any]:
        if state["messages"][-1].type == "tool":
            return {"messages": [AIMessage("done", id="m2")]}
        return {"messages": [AIMessage("", tool_calls=[CALL], id="m1")]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", tool_node([pay]))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    builder.add_edge("tools", END)
    return builder.compile(checkpointer=saver)


def opened(path: Place, *, elsewhere: bool = False, **options: Any) -> ResilientSaver:
    saver = ResilientSaver.from_conn_string(path, **options)
    if elsewhere:
        book = Book(
            saver._engine,
            Reading,
            saver._engine.now,
            lambda: replace(this_process(), boot="another", host="elsewhere/1"),
        )
        saver._ledger = (saver, Ledger(book))
    return saver


def asked(path: Place, world: World) -> None:
    """A thread that stops right before its tool step."""
    with opened(path) as saver:
        stopped = graph(saver, world)
        stopped.interrupt_before_nodes = ["tools"]
        stopped.invoke({"messages": [("user", "go")]}, CONFIG, durability="sync")


@pytest.fixture(params=["file", "server"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    place = tmp_path / "agent.db" if request.param == "file" else fresh_address()
    asked(place, World(tmp_path / "none"))
    return place


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


def resume(path: Place, world: World, **more: Any) -> Any:
    options = {k: more.pop(k) for k in ("lease", "lease_wait", "elsewhere") if k in more}
    with opened(path, **options) as saver:
        return graph(saver, world, **more).invoke(None, CONFIG, durability="sync")


@pytest.mark.parametrize("kind", ["external", "idempotent", "pure"])
def test_two_processes_resume_a_thread_at_once_and_one_runs_the_tool(
    path: Place, world: World, kind: str
) -> None:
    def worker() -> None:
        world.note("ready")
        deadline = time.monotonic() + 20
        while world.lines().count("ready") < 2:
            assert time.monotonic() < deadline
        out = resume(path, world, kind=kind, during=lambda: time.sleep(0.4))
        assert out["messages"][-1].content == "receipt 1"

    workers = [fork(worker), fork(worker)]
    assert [wait(pid) for pid in workers] == [0, 0]
    assert world.lines().count("paid 1") == 1
    assert not any(line.startswith("paid 2") for line in world.lines())


def test_a_second_process_that_waits_too_long_is_told_who_is_busy(
    path: Place, world: World
) -> None:
    def worker() -> None:
        resume(path, world, during=lambda: world.wait_for("let go"))

    pid = fork(worker)
    world.wait_for("paid 1")
    with pytest.raises(ThreadBusy, match=f"process {pid} on "):
        resume(path, world, lease_wait=0.3)
    world.note("let go")
    assert wait(pid) == 0
    assert world.lines().count("paid 1") == 1


def test_other_calls_of_the_thread_wait_too_while_one_runs_elsewhere(
    path: Place, world: World
) -> None:
    pid = fork(lambda: resume(path, world, during=lambda: world.wait_for("let go")))
    world.wait_for("paid 1")
    with opened(path, lease_wait=0.3) as saver:
        other = graph(saver, world)
        edited = {**CALL, "args": {"amount": 6}}
        other.update_state(CONFIG, {"messages": [AIMessage("", tool_calls=[edited], id="m1")]})
        with pytest.raises(ThreadBusy):
            other.invoke(None, CONFIG)
    world.note("let go")
    assert wait(pid) == 0


def test_a_process_that_was_killed_is_dead_at_once(path: Place, world: World) -> None:
    pid = fork(lambda: resume(path, world, during=lambda: time.sleep(60)))
    world.wait_for("paid 1")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    before = time.monotonic()
    out = resume(path, world)
    assert time.monotonic() - before < 5
    [question] = out["__interrupt__"]
    assert question.value["kind"] == "unknown_outcome"
    assert world.lines() == ["paid 1"]


def test_a_call_that_takes_longer_than_its_lease_keeps_it(path: Place, world: World) -> None:
    def worker() -> None:
        resume(path, world, elsewhere=True, lease=0.4, during=lambda: time.sleep(1.6))

    pid = fork(worker)
    world.wait_for("paid 1")
    out = resume(path, world, kind="idempotent")  # waits, for longer than the lease
    assert out["messages"][-1].content == "receipt 1"
    assert wait(pid) == 0
    assert world.lines() == ["paid 1"]


def test_a_zombie_of_another_machine_writes_nothing(path: Place, world: World) -> None:
    def zombie() -> None:
        with pytest.raises(LostOwnership):
            resume(
                path,
                world,
                elsewhere=True,
                lease=0.4,
                kind="idempotent",
                during=lambda: world.wait_for("wake up"),
            )
        world.note("refused")

    pid = fork(zombie)
    world.wait_for("paid 1")
    os.kill(pid, signal.SIGSTOP)  # its lease runs out
    out = resume(path, world, kind="idempotent")
    assert out["messages"][-1].content == "receipt 2"
    with opened(path) as saver:
        [before] = saver.ledger.entries("t")
    world.note("wake up")
    os.kill(pid, signal.SIGCONT)
    assert wait(pid) == 0
    assert world.lines() == ["paid 1", "paid 2", "wake up", "refused"]
    with opened(path) as saver:
        assert saver.ledger.entries("t") == [before]
        assert before.epoch == 2
        assert before.attempt == 2


def test_an_external_call_of_a_zombie_is_asked_about_and_its_late_end_is_refused(
    path: Place, world: World
) -> None:
    def zombie() -> None:
        with pytest.raises(LostOwnership):
            resume(
                path,
                world,
                elsewhere=True,
                lease=0.4,
                during=lambda: world.wait_for("wake up"),
            )

    pid = fork(zombie)
    world.wait_for("paid 1")
    os.kill(pid, signal.SIGSTOP)
    [question] = resume(path, world)["__interrupt__"]
    with opened(path) as saver:
        answer = {"action": "succeeded", "result": "seen at the bank"}
        out = graph(saver, world).invoke(Command(resume={question.id: answer}), CONFIG)
    assert out["messages"][-1].content == "seen at the bank"
    world.note("wake up")
    os.kill(pid, signal.SIGCONT)
    assert wait(pid) == 0
    assert world.lines() == ["paid 1", "wake up"]
    with opened(path) as saver:
        [entry] = saver.ledger.entries("t")
        assert (entry.state, entry.result.content) == ("succeeded", "seen at the bank")


def test_a_forked_child_does_not_hold_its_parents_lease(path: Place, world: World) -> None:
    """With the very saver of its parent, whose calls it must wait for."""
    with opened(path, lease_wait=0.2) as saver:
        agent = graph(saver, world)
        edited = AIMessage("", tool_calls=[{**CALL, "args": {"amount": 6}}], id="m3")

        def fork_inside() -> None:
            if world.lines() != ["paid 1"]:
                return

            def child() -> None:
                agent.update_state(CONFIG, {"messages": [edited]})
                with pytest.raises(ThreadBusy):
                    agent.invoke(None, CONFIG)

            assert in_child(child) == 0

        agent = graph(saver, world, during=fork_inside)
        agent.invoke(None, CONFIG)
    assert world.lines() == ["paid 1"]


def test_a_forked_child_is_a_process_of_its_own(path: Place, world: World) -> None:
    """It must not take its parent's running calls for its own."""
    with opened(path) as saver:

        def fork_inside() -> None:
            def child() -> None:
                with opened(path, lease_wait=0.2) as own, pytest.raises(ThreadBusy):
                    graph(own, world).invoke(None, CONFIG)

            assert in_child(child) == 0

        graph(saver, world, during=fork_inside).invoke(None, CONFIG)
    assert world.lines() == ["paid 1"]
