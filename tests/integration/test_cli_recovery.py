"""``langgraph-resilient unfinished`` and ``recover``: what they list, do, and their exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_cli import Outcome
from test_cli import run as command

from langgraph_resilient import ResilientSaver

MODULE = """
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt
from langgraph_resilient import guarded

broken = set()


def work(state):
    what = state["messages"][0].content
    if what == "ask":
        interrupt("how many?")
    if what in broken:
        raise RuntimeError("no such luck")
    return {"messages": [("ai", "worked")]}


def build(saver=None):
    builder = StateGraph(MessagesState)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    builder.add_edge("work", END)
    return builder.compile(checkpointer=saver)


graph = build()


class Agents:
    guarded = staticmethod(lambda saver: guarded(build(saver)))


number = 7
"""


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a thread that failed twice over, one that asks and one that is done."""
    (tmp_path / "agents_of_mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "agents_of_mine", raising=False)
    agents = __import__("agents_of_mine")
    agents.broken.update({"bad", "worse"})
    path = tmp_path / "agent.db"
    with ResilientSaver.from_conn_string(path) as saver:
        graph = agents.build(saver)
        for name in ("bad", "worse"):
            with pytest.raises(RuntimeError):
                graph.invoke({"messages": [("user", name)]}, {"configurable": {"thread_id": name}})
        for name in ("ask", "fine"):
            graph.invoke({"messages": [("user", name)]}, {"configurable": {"thread_id": name}})
    agents.broken.discard("bad")
    return path


def run(database: Path, *arguments: str) -> Outcome:
    return command(*arguments, "--db", database)


NAMES = ["agents_of_mine:graph", "agents_of_mine:build", "agents_of_mine:Agents.guarded"]


@pytest.mark.parametrize("name", NAMES)
def test_unfinished_lists_what_was_stopped(database: Path, name: str) -> None:
    found = run(database, "unfinished", name, "--json")
    assert found.code == 0
    listed = {one["thread"]: one for one in found.json["unfinished"]}
    assert list(listed) == ["bad", "worse", "ask"]
    assert [one["waits"] for one in listed.values()] == [False, False, True]
    assert listed["bad"]["next"] == ["work"]
    table = run(database, "unfinished", name, "--thread", "bad")
    assert "bad" in table.out
    assert "worse" not in table.out


@pytest.mark.parametrize("name", NAMES)
def test_recover_goes_on_and_says_what_became_of_each(database: Path, name: str) -> None:
    found = run(database, "recover", name, "--json")
    assert found.code == 1
    assert [(one["thread"], one["outcome"]) for one in found.json["recovered"]] == [
        ("bad", "finished"),
        ("worse", "failed"),
        ("ask", "waiting"),
    ]
    again = run(database, "recover", name, "--attempts", "1")
    assert again.code == 1
    assert "given_up" in again.out
    assert "finished" not in again.out
    only = run(database, "recover", name, "--thread", "ask")
    assert (only.code, "waits for an answer" in only.out) == (0, True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("agents_of_mine", "names no graph; give MODULE:NAME"),
        ("agents_of_mine:missing", "cannot be imported"),
        ("no_such_module:graph", "cannot be imported"),
        ("agents_of_mine:number", "a compiled graph is needed"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(database: Path, name: str, said: str) -> None:
    found = run(database, "unfinished", name)
    assert found.code == 2
    assert said in found.err
