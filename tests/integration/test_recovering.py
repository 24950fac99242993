"""`unfinished` and `recover`: what a crash has left is found, and gone on with once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agents import MODES, where
from building import fork, in_child, kill, wait
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from serving import fresh_address

from langgraph_resilient import (
    Cipher,
    ConfigurationError,
    Precondition,
    Recovery,
    ResilientSaver,
    arecover,
    aunfinished,
    guarded,
    recover,
    unfinished,
)
from langgraph_resilient.calls import read_lease
from langgraph_resilient.draft import Draft
from langgraph_resilient.maintenance import rekey, verify
from langgraph_resilient.records import Owner

Step = Callable[[MessagesState], dict]


@pytest.fixture(params=["file", "postgres"])
def db_path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new file, or a new schema on a server."""
    return str(tmp_path / "agent.db") if request.param == "file" else fresh_address()


@pytest.fixture
def saver(db_path: str) -> Iterator[ResilientSaver]:
    with ResilientSaver.from_conn_string(db_path) as opened:
        yield opened


def made(saver: ResilientSaver, step: Step, *, name: str = "work", **options: Any) -> Any:
    """Begins, works, ends."""
    builder = StateGraph(MessagesState)
    builder.add_node("begin", lambda _: {"messages": [("ai", "begun")]})
    builder.add_node(name, step)
    builder.add_edge(START, "begin")
    builder.add_edge("begin", name)
    builder.add_edge(name, END)
    return guarded(builder.compile(checkpointer=saver), **options)


def works(_: MessagesState) -> dict:
    return {"messages": [("ai", "worked")]}


def dies(_: MessagesState) -> dict:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def fails(_: MessagesState) -> dict:
    raise RuntimeError("no such luck")


def asks(_: MessagesState) -> dict:
    return {"messages": [("ai", interrupt("how many?"))]}


def left_by(path: str, step: Step, *thread_ids: str, plain: bool = False, **options: Any) -> None:
    """Runs of these threads, each in a process of its own that dies with it."""
    for thread_id in thread_ids:

        def body(thread_id: str = thread_id) -> None:
            with ResilientSaver.from_conn_string(path) as saver:
                graph = made(saver, step, **options)
                if plain:
                    graph = graph.builder.compile(checkpointer=saver)
                graph.invoke({"messages": [("user", "go")]}, where(thread_id), durability="sync")

        assert in_child(body) in (-signal.SIGKILL, 0)


def outcomes(found: list[Recovery]) -> list[tuple[str, str, int]]:
    return [(one.thread_id, one.outcome, one.attempt) for one in found]


def last(graph: Any, thread_id: str) -> str:
    return str(graph.get_state(where(thread_id)).values["messages"][-1].content)


def recovered(mode: str, graph: Any, *given: Any, **options: Any) -> list[Recovery]:
    if mode == "invoke":
        return recover(graph, *given, **options)
    return asyncio.run(arecover(graph, *given, **options))


@pytest.mark.parametrize("plain", [False, True], ids=["guarded", "plain"])
@pytest.mark.parametrize("mode", MODES)
def test_what_died_is_found_and_finished(db_path: str, mode: str, plain: bool) -> None:
    left_by(db_path, dies, "a", "b", plain=plain)
    left_by(db_path, works, "done")
    with ResilientSaver.from_conn_string(db_path) as saver:
        graph = made(saver, works)
        found = unfinished(graph)
        assert [(one.thread_id, one.next, one.waits) for one in found] == [
            ("a", ("work",), False),
            ("b", ("work",), False),
        ]
        assert [one.held_by for one in found] == [None, None]
        assert asyncio.run(aunfinished(graph)) == found
        told: list[Recovery] = []
        ended = recovered(mode, graph, on_progress=told.append)
        assert outcomes(ended) == [("a", "finished", 1), ("b", "finished", 1)]
        assert sorted(outcomes(told)) == outcomes(ended)
        assert [last(graph, name) for name in "ab"] == ["worked", "worked"]
        assert unfinished(graph) == recovered(mode, graph) == []


def test_a_plain_graph_and_a_saver_do(db_path: str) -> None:
    left_by(db_path, dies, "a", plain=True)
    with ResilientSaver.from_conn_string(db_path) as saver:
        graph = made(saver, works).builder.compile()
        assert outcomes(recover(graph, saver)) == [("a", "finished", 1)]


def test_a_thread_that_kills_its_process_is_given_up_in_the_end(db_path: str) -> None:
    left_by(db_path, dies, "poison")

    def start() -> None:
        with ResilientSaver.from_conn_string(db_path) as saver:
            recover(made(saver, dies), attempts=2)

    assert [in_child(start) for _ in range(3)] == [-signal.SIGKILL, -signal.SIGKILL, 0]
    with ResilientSaver.from_conn_string(db_path) as saver:
        graph = made(saver, works)
        [one] = unfinished(graph)
        assert one.attempts == 2
        assert outcomes(recover(graph, attempts=2)) == [("poison", "given_up", 2)]
        assert verify(saver).ok
        assert outcomes(recover(graph, attempts=None)) == [("poison", "finished", 3)]


@pytest.mark.parametrize("mode", MODES)
def test_a_thread_that_kills_its_process_takes_no_other_with_it(db_path: str, mode: str) -> None:
    left_by(db_path, dies, "slow 1", "poison", "slow 2")

    def some(state: MessagesState, config: RunnableConfig) -> dict:
        if config["configurable"]["thread_id"] == "poison":
            return dies(state)
        time.sleep(0.2)  # long enough to be running when the process dies
        return works(state)

    def start() -> None:
        with ResilientSaver.from_conn_string(db_path) as saver:
            recovered(mode, made(saver, some), attempts=2)

    ends = [in_child(start) for _ in range(4)]
    assert ends[-1] == 0
    with ResilientSaver.from_conn_string(db_path) as saver:
        graph = made(saver, works)
        assert [one.thread_id for one in unfinished(graph)] == ["poison"]
        assert [last(graph, name) for name in ("slow 1", "slow 2")] == ["worked", "worked"]


def test_attempts_count_anew_from_another_checkpoint(db_path: str) -> None:
    left_by(db_path, dies, "a")
    with ResilientSaver.from_conn_string(db_path) as saver:
        broken = made(saver, fails)
        assert outcomes(recover(broken)) == [("a", "failed", 1)]
        assert outcomes(recover(broken)) == [("a", "failed", 2)]
        broken.update_state(where("a"), {"messages": [("user", "once more")]}, as_node="begin")
        assert outcomes(recover(broken)) == [("a", "failed", 1)]


def test_an_error_is_one_threads_result(saver: ResilientSaver) -> None:
    def some(state: MessagesState) -> dict:
        if state["messages"][0].content == "bad":
            raise RuntimeError("no such luck")
        return works(state)

    broken = made(saver, fails)
    for name in ("bad", "good"):
        with pytest.raises(RuntimeError):
            broken.invoke({"messages": [("user", name)]}, where(name))
    assert [one.error for one in unfinished(broken)] == ["RuntimeError('no such luck')"] * 2
    bad, good = recover(made(saver, some))
    assert (bad.outcome, repr(bad.error)) == ("failed", "RuntimeError('no such luck')")
    assert (good.thread_id, good.outcome) == ("good", "finished")


@pytest.mark.parametrize("mode", MODES)
def test_a_thread_that_waits_for_an_answer_is_left_alone(saver: ResilientSaver, mode: str) -> None:
    graph = made(saver, asks)
    graph.invoke({"messages": [("user", "go")]}, where("a"))
    [one] = unfinished(graph)
    assert one.waits
    assert [asked.value for asked in one.interrupts] == ["how many?"]
    [left] = recovered(mode, graph)
    assert (left.outcome, left.attempt, left.interrupts) == ("waiting", 0, one.interrupts)
    graph.invoke(Command(resume="three"), where("a"))
    assert unfinished(graph) == []


def test_a_run_that_comes_to_ask_waits_and_counts_no_attempt(db_path: str) -> None:
    left_by(db_path, dies, "a")
    with ResilientSaver.from_conn_string(db_path) as saver:
        graph = made(saver, asks)
        [one] = recover(graph)
        assert (one.outcome, [asked.value for asked in one.interrupts]) == (
            "waiting",
            ["how many?"],
        )
        assert unfinished(graph)[0].attempts == 0


@pytest.mark.parametrize("stop", [{"interrupt_before": ["work"]}, {"interrupt_after": ["begin"]}])
def test_a_graph_that_was_compiled_to_stop_there_waits(saver: ResilientSaver, stop: dict) -> None:
    graph = made(saver, works).builder.compile(checkpointer=saver, **stop)
    graph.invoke({"messages": [("user", "go")]}, where("a"))
    assert [one.waits for one in unfinished(graph)] == [True]
    assert outcomes(recover(graph)) == [("a", "waiting", 0)]
    assert last(graph, "a") == "begun"


def test_a_thread_of_a_live_process_is_left_to_it(db_path: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready"

    def hangs(_: MessagesState) -> dict:
        ready.touch()
        time.sleep(60)
        return {}

    def body() -> None:
        with ResilientSaver.from_conn_string(db_path) as saver:
            graph = made(saver, hangs)
            graph.invoke({"messages": [("user", "go")]}, where("a"), durability="sync")

    pid = fork(body)
    while not ready.exists():
        time.sleep(0.01)
    with ResilientSaver.from_conn_string(db_path) as saver:
        graph = made(saver, works)
        [one] = recover(graph)
        assert one.outcome == "held"
        assert str(pid) in str(one.held_by)
        kill(pid)
        assert outcomes(recover(graph)) == [("a", "finished", 1)]


@pytest.mark.parametrize(("seconds", "outcome"), [(60, "held"), (-1, "finished")])
def test_another_machine_has_a_thread_until_its_lease_runs_out(
    db_path: str, seconds: float, outcome: str
) -> None:
    left_by(db_path, dies, "a")
    with ResilientSaver.from_conn_string(db_path) as saver:
        book = saver.ledger.book
        there = Owner(boot="another", host="far/away", pid=1, started=1)

        def take(draft: Draft) -> None:
            with book.engine.db.read() as session:
                lease = read_lease(session, book.engine.sealer, draft.state.number)
            assert lease is not None
            until = int((book.now() + seconds) * 1000)
            taken = replace(lease, owner=there, epoch=lease.epoch + 1, expires=until)
            draft.then(book.leasing(draft.state.number, taken, lease))

        book.engine.change("a", take)
        [one] = recover(made(saver, works))
        assert one.outcome == outcome
        assert (one.held_by == "process 1 on far") is (outcome == "held")


def test_a_run_of_this_process_is_left_to_it(saver: ResilientSaver) -> None:
    graph = made(saver, works)
    parts = graph.stream({"messages": [("user", "go")]}, where("a"), durability="sync")
    next(parts)
    [one] = recover(graph)
    assert one.outcome == "held"
    assert str(os.getpid()) in str(one.held_by)
    parts.close()
    assert outcomes(recover(graph)) in ([("a", "finished", 1)], [])


def test_a_cancelled_run_lets_go_of_its_thread(saver: ResilientSaver) -> None:
    async def slowly(_: MessagesState) -> dict:
        await asyncio.sleep(60)
        return {}

    async def cancelled(graph: Any, delay: float) -> None:
        given = {"messages": [("user", "go")]}
        task = asyncio.ensure_future(graph.ainvoke(given, where("a"), durability="sync"))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.wait([task])

    for delay in (0, 0.001, 0.003, 0.01, 0.05):
        asyncio.run(cancelled(made(saver, slowly), delay))
        assert {one.held_by for one in unfinished(made(saver, works))} <= {None}


def test_workers_that_start_at_once_share_the_work(db_path: str, tmp_path: Path) -> None:
    names = [f"thread {number}" for number in range(6)]
    left_by(db_path, dies, *names)
    log = tmp_path / "log"

    def notes(state: MessagesState) -> dict:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(0.05)
        return works(state)

    def worker() -> None:
        with ResilientSaver.from_conn_string(db_path) as saver:
            for one in recover(made(saver, notes)):
                assert one.outcome in ("finished", "held"), one

    assert [wait(pid) for pid in [fork(worker) for _ in range(3)]] == [0, 0, 0]
    assert len(log.read_text().splitlines()) == len(names)
    with ResilientSaver.from_conn_string(db_path) as saver:
        assert unfinished(made(saver, works)) == []


def test_a_changed_graph_is_reported_and_costs_no_attempt(db_path: str) -> None:
    left_by(db_path, dies, "a")
    with ResilientSaver.from_conn_string(db_path) as saver:
        renamed = made(saver, works, name="toil")
        [one] = unfinished(renamed)
        assert one.next == ("work",)
        assert [change.name for change in one.changes] == ["work"]
        [found] = recover(renamed)
        assert found.outcome == "waiting"
        assert found.interrupts[0].value["kind"] == "environment_changed"
        [found] = recover(made(saver, works, name="toil", on_change="raise"))
        assert (found.outcome, type(found.error).__name__) == ("failed", "EnvironmentChanged")
        assert unfinished(renamed)[0].attempts == 0
        assert outcomes(recover(made(saver, works))) == [("a", "finished", 1)]


def test_a_precondition_holds_recovery_back(db_path: str) -> None:
    left_by(db_path, dies, "a", preconditions=[Precondition("day", lambda: "Monday")])
    with ResilientSaver.from_conn_string(db_path) as saver:
        graph = made(saver, works, preconditions=[Precondition("day", lambda: "Tuesday")])
        [found] = recover(graph)
        assert (found.outcome, type(found.error).__name__) == ("failed", "EnvironmentChanged")


def test_threads_of_another_graph_are_not_among_them(db_path: str) -> None:
    left_by(db_path, dies, "a")
    builder = StateGraph(MessagesState)
    builder.add_node("other", works)
    builder.add_edge(START, "other")
    with ResilientSaver.from_conn_string(db_path) as saver:
        assert unfinished(builder.compile(), saver) == []


def test_more_of_the_config_can_be_given(db_path: str) -> None:
    left_by(db_path, dies, "a", "b")
    seen: list[Any] = []

    def looks(state: MessagesState, config: RunnableConfig) -> dict:
        seen.append(config["configurable"]["user"])
        return works(state)

    with ResilientSaver.from_conn_string(db_path) as saver:
        graph = made(saver, looks)
        recover(graph, threads=["a"], config={"configurable": {"user": "Ann"}})
        recover(graph, config=lambda name: {"configurable": {"user": f"of {name}"}}, concurrency=1)
    assert seen == ["Ann", "of b"]


OLD, NEW = bytes(32), bytes(range(32))


def test_the_mark_of_an_attempt_survives_rekeying(db_path: str) -> None:
    with ResilientSaver.from_conn_string(db_path, cipher=Cipher(OLD)) as saver:
        graph = made(saver, fails)
        with pytest.raises(RuntimeError):
            graph.invoke({"messages": [("user", "go")]}, where("a"))
        recover(graph)
    with ResilientSaver.from_conn_string(db_path, cipher=Cipher(NEW, OLD)) as saver:
        rekey(saver)
    with ResilientSaver.from_conn_string(db_path, cipher=Cipher(NEW)) as saver:
        [one] = unfinished(made(saver, fails))
        assert one.attempts == 1


def test_what_cannot_work_is_refused_in_words(saver: ResilientSaver) -> None:
    graph = made(saver, works)
    with pytest.raises(ConfigurationError, match="attempts is 0"):
        recover(graph, attempts=0)
    with pytest.raises(ConfigurationError, match="concurrency is 0"):
        recover(graph, concurrency=0)
    with pytest.raises(ConfigurationError, match="give a ResilientSaver"):
        unfinished(graph.builder.compile())
    with pytest.raises(ConfigurationError, match="a compiled graph is needed"):
        unfinished("agent.db", saver)


def test_a_join_that_never_came_about_leaves_nothing_to_do(saver: ResilientSaver) -> None:
    def built(*joined: str) -> Any:
        builder = StateGraph(MessagesState)
        for name in ("a", "b", "end"):
            builder.add_node(name, works)
        builder.add_edge(START, "a")  # b is never run
        builder.add_edge(list(joined), "end")
        return guarded(builder.compile(checkpointer=saver))

    built("a", "b").invoke({"messages": []}, where("a"))
    assert unfinished(built("a", "b")) == []
    assert unfinished(built("a")) == []
