"""``single_writer=True``: a process that lost its thread in the middle of a run stores nothing more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from building import fork, wait
from langgraph.graph import END, START, MessagesState, StateGraph
from serving import fresh_address

from langgraph_resilient import ResilientSaver, guarded, recorded
from langgraph_resilient.errors import LostOwnership

THREAD: Any = {"configurable": {"thread_id": "t"}}


@pytest.fixture(params=["file", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new file, or a new schema on a server."""
    return str(tmp_path / "agent.db") if request.param == "file" else fresh_address()


def opened(place: str, **options: Any) -> Any:
    return ResilientSaver.from_conn_string(place, **options)


def graph(saver: Any, name: str, pause: Callable[[], None] = lambda: None) -> Any:
    """Three steps; the second one may wait for something."""

    def middle(_: MessagesState) -> dict:
        pause()
        return {"messages": [("ai", f"{name} 2")]}

    builder = StateGraph(MessagesState)
    builder.add_node("one", lambda _: {"messages": [("ai", f"{name} 1")]})
    builder.add_node("two", middle)
    builder.add_node("three", lambda _: {"messages": [("ai", f"{name} 3")]})
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    builder.add_edge("two", "three")
    builder.add_edge("three", END)
    return builder.compile(checkpointer=saver)


def until(path: Path) -> None:
    while not path.exists():
        time.sleep(0.005)


def said(saver: Any) -> list[str]:
    return [
        message.content
        for message in saver.get_tuple(THREAD).checkpoint["channel_values"]["messages"]
    ]


def slow_worker(place: str, folder: Path, mode: str, **options: Any) -> int:
    """A process that stands still in its second step until it is told to go on."""

    def pause() -> None:
        (folder / "inside").touch()
        until(folder / "go on")

    def body() -> None:
        with opened(place, **options) as saver:
            made = graph(saver, "slow", pause)
            given = {"messages": [("user", "first")]}
            try:
                if mode == "invoke":
                    made.invoke(given, THREAD, durability="sync")
                else:
                    asyncio.run(made.ainvoke(given, THREAD, durability="async"))
            except LostOwnership as error:
                (folder / "outcome").write_text(f"lost: {error}")
            else:
                (folder / "outcome").write_text("stored")

    return fork(body)


@pytest.mark.parametrize("mode", ["invoke", "ainvoke"])
@pytest.mark.parametrize("fenced", [True, False], ids=["fenced", "plain"])
def test_a_late_writer_stores_nothing(place: str, tmp_path: Path, fenced: bool, mode: str) -> None:
    pid = slow_worker(place, tmp_path, mode, single_writer=fenced)
    until(tmp_path / "inside")
    with opened(place, single_writer=fenced) as saver:
        made = graph(saver, "quick")
        if mode == "invoke":
            made.invoke({"messages": [("user", "second")]}, THREAD)
        else:
            asyncio.run(made.ainvoke({"messages": [("user", "second")]}, THREAD))
        before = said(saver)
        assert before[-3:] == ["quick 1", "quick 2", "quick 3"]
        (tmp_path / "go on").touch()
        assert wait(pid) == 0
        outcome = (tmp_path / "outcome").read_text()
        if fenced:
            assert outcome.startswith("lost: thread 't': another process began a run of it")
            assert said(saver) == before
        else:
            assert outcome == "stored"
            assert said(saver) != before  # what the option is for


def test_the_one_that_lost_may_run_it_again(place: str, tmp_path: Path) -> None:
    with opened(place, single_writer=True) as saver:
        lines: list[str] = []

        def other() -> None:
            def body() -> None:
                with opened(place, single_writer=True) as there:
                    graph(there, "other").invoke({"messages": [("user", "second")]}, THREAD)

            if not lines:
                lines.append("once")
                assert wait(fork(body)) == 0

        made = graph(saver, "mine", other)
        with pytest.raises(LostOwnership):
            made.invoke({"messages": [("user", "first")]}, THREAD, durability="sync")
        made.invoke({"messages": [("user", "third")]}, THREAD, durability="sync")
        assert said(saver)[-3:] == ["mine 1", "mine 2", "mine 3"]
        made.update_state(THREAD, {"messages": [("user", "edited")]}, as_node="three")
        saver.copy_thread("t", "copy")
        assert said(saver)[-1] == "edited"


def test_an_update_is_no_run_and_is_not_refused(place: str) -> None:
    with opened(place, single_writer=True) as saver:
        made = graph(saver, "mine")
        made.invoke({"messages": [("user", "first")]}, THREAD)

        def other() -> None:
            with opened(place, single_writer=True) as there:
                graph(there, "other").invoke({"messages": [("user", "second")]}, THREAD)

        assert wait(fork(other)) == 0
        made.update_state(THREAD, {"messages": [("user", "edited")]}, as_node="three")
        assert said(saver)[-1] == "edited"


def test_a_tool_of_the_one_that_lost_does_not_start(place: str) -> None:
    ran: list[str] = []

    @recorded
    def pay() -> str:
        ran.append("paid")
        return "paid"

    with opened(place, single_writer=True) as saver:

        def other() -> None:
            def body() -> None:
                with opened(place, single_writer=True) as there:
                    graph(there, "other").invoke({"messages": [("user", "second")]}, THREAD)

            assert wait(fork(body)) == 0
            pay()

        with pytest.raises(LostOwnership):
            graph(saver, "mine", other).invoke({"messages": [("user", "first")]}, THREAD)
        assert ran == []
        assert said(saver)[-1] == "other 3"


def test_runs_of_one_process_are_not_kept_apart(place: str) -> None:
    with opened(place, single_writer=True) as saver:
        inner = graph(saver, "inner")
        again = [True]

        def once_more() -> None:
            if again.pop() if again else False:
                inner.invoke({"messages": [("user", "second")]}, THREAD)

        graph(saver, "outer", once_more).invoke({"messages": [("user", "first")]}, THREAD)
        assert said(saver)[-1] == "outer 3"


def test_a_guarded_graph_takes_its_thread_anew(place: str) -> None:
    for name in ("first", "second"):

        def body(name: str = name) -> None:
            with opened(place, single_writer=True) as there:
                made = guarded(graph(there, name))
                made.invoke({"messages": [("user", name)]}, THREAD)
                made.invoke({"messages": [("user", name)]}, THREAD)

        assert wait(fork(body)) == 0
    with opened(place, single_writer=True) as saver:
        made = guarded(graph(saver, "third"))
        made.invoke({"messages": [("user", "third")]}, THREAD)
        assert said(saver)[-1] == "third 3"
