"""Pruning by number and by age: what waits, is unknown or is rebuilt from stays."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from building import Thread, checkpoint, config, facts, ids
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command
from maintaining import agent, run, state
from typer.testing import CliRunner

from langgraph_resilient import ResilientSaver, effect, tool_node
from langgraph_resilient.cli.app import app
from langgraph_resilient.errors import ConfigurationError
from langgraph_resilient.maintenance import prune, verify


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


def listed(saver: Any, thread_id: str = "t") -> list[str]:
    return ids(saver.list({"configurable": {"thread_id": thread_id}}))


def filled(saver: Any, thread_id: str, count: int, *, days: int = 0) -> None:
    """A thread whose checkpoints were made a day apart, the newest so many days ago."""
    thread = Thread(saver, thread_id)
    for n in range(count):
        where, body, meta, versions = thread.prepare({"n": n, "text": f"{n}" * 2000}, None, None)
        made = datetime.now(timezone.utc) - timedelta(days=days + count - 1 - n)
        body["ts"] = made.isoformat()
        thread.where = saver.put(where, body, meta, versions)


@pytest.mark.parametrize("keep", [None, 1, 3, 50])
def test_the_newest_stay(path: Path, keep: int | None) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        filled(saver, "t", 6)
        before = [facts(item) for item in saver.list(config("t"))]
        report = prune(saver, keep=keep)
        stay = min(keep or 1, 6)
        after = [facts(item) for item in saver.list(config("t"))]
        assert [item["values"] for item in after] == [i["values"] for i in before[:stay]]
        assert report.checkpoints == 6 - stay
        assert verify(saver).ok
        assert verify(saver).checked.get("unreachable_blobs", 0) == 0


def test_only_what_is_older_goes(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        filled(saver, "t", 6)
        filled(saver, "old", 4, days=100)
        every = listed(saver)
        prune(saver, older_than=timedelta(days=2, hours=1))
        assert listed(saver) == every[:3]
        assert len(listed(saver, "old")) == 1  # the newest stays however old it is


def test_with_number_and_age_both_must_allow_it(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        filled(saver, "t", 6)
        every = listed(saver)
        prune(saver, keep=4, older_than=timedelta(hours=1))
        assert listed(saver) == every[:4]


def test_a_checkpoint_that_does_not_tell_its_time_stays(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        where = config("t")
        for name in ("a", "b", "c"):
            body = checkpoint({"n": name})
            body["ts"] = "yesterday" if name == "a" else "2001-01-01T00:00:00+00:00"
            where = saver.put(where, body, {"source": "loop", "step": 1, "parents": {}}, {})
        prune(saver, older_than=timedelta(days=1))
        assert len(listed(saver)) == 2


def test_only_the_named_threads_are_pruned(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        for name in ("a", "b"):
            filled(saver, name, 3)
        report = prune(saver, threads=["a", "nobody"])
        assert (report.threads, report.checkpoints) == (1, 2)
        assert len(listed(saver, "b")) == 3


def test_a_dry_run_tells_the_same_and_changes_nothing(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        filled(saver, "t", 6)
        filled(saver, "u", 2)
        every = listed(saver)
        told = prune(saver, keep=2, dry_run=True)
        assert listed(saver) == every
        done = prune(saver, keep=2)
        assert (told.threads, told.checkpoints) == (done.threads, done.checkpoints) == (1, 4)
        assert prune(saver, keep=2).checkpoints == 0


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_state_interrupts_subgraphs_and_delta_channels_survive(path: Path, keep: int) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        run(saver, "done", 1, 2, 3)
        run(saver, "waiting", 1, 2)
        run(saver, "waiting", 3, resume=False)
        before = {name: state(saver, name) for name in ("done", "waiting")}
        prune(saver, keep=keep)
    with ResilientSaver.from_conn_string(path) as saver:
        for name in before:
            assert state(saver, name)[:3] == before[name][:3]
        run(saver, "done", 4)
        assert verify(saver).ok


def test_a_waiting_interrupt_is_answered_after_pruning(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        run(saver, "waiting", 1)
        run(saver, "waiting", 2, resume=False)
        prune(saver)
        found = agent(saver).invoke(Command(resume="reply"), config("waiting"))
        assert found["asked"][-1] == "reply"
        assert [m.content for m in found["messages"]][-1] == "answer 2"


def paying(saver: Any) -> Any:
    @effect("external")
    @tool
    def charge(amount: int) -> str:
        """Charge the card."""
        raise TimeoutError("no answer")

    def model(found: Any) -> Any:
        if len(found["messages"]) < 9:
            return {"messages": [AIMessage("thinking")]}
        call = {"name": "charge", "args": {"amount": 5}, "id": "c1", "type": "tool_call"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    def way(found: Any) -> str:
        last = found["messages"][-1]
        if getattr(last, "tool_calls", None):
            return "tools"
        return "model" if len(found["messages"]) < 10 and last.type == "ai" else END

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", tool_node([charge]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", way, ["tools", "model", END])
    builder.add_edge("tools", END)
    return builder.compile(checkpointer=saver)


def test_what_an_unknown_outcome_needs_is_not_cut(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        graph = paying(saver)
        graph.invoke({"messages": [("user", "pay")]}, config("t"))
        [entry] = saver.ledger.unknown("t")
        asked = saver.get_tuple(config("t"))
        count = len(listed(saver))
        graph.update_state(config("t"), {"messages": [("user", "wait")]}, as_node="tools")
        prune(saver)
        assert 2 <= len(listed(saver)) < count  # the newest, and the one that asked
        kept = facts(saver.get_tuple(asked.config))
        assert kept["values"] == facts(asked)["values"]
        assert set(map(str, facts(asked)["writes"])) <= set(map(str, kept["writes"]))
        assert saver.ledger.unknown("t") == [entry]
        saver.ledger.resolve(entry.key, "succeeded", result="paid")
        found = graph.invoke(None, asked.config)
        assert found["messages"][-1].content == "paid"
        prune(saver)
        assert len(listed(saver)) == 1


def test_finished_tool_calls_go_only_on_request(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        graph = paying(saver)
        graph.invoke({"messages": [("user", "pay")]}, config("t"))
        [entry] = saver.ledger.unknown("t")
        saver.ledger.resolve(entry.key, "succeeded", result="paid")
        graph.invoke(None, config("t"))
        graph.update_state(config("t"), {"messages": [("user", "thanks")]}, as_node="tools")
        prune(saver)
        assert len(saver.ledger.entries("t")) == 1
        assert prune(saver, ledger=True, dry_run=True).calls == 1
        assert prune(saver, ledger=True).calls == 1
        assert saver.ledger.entries("t") == []
        assert verify(saver).ok


def test_nonsense_is_refused(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        with pytest.raises(ConfigurationError):
            prune(saver, keep=0)
        with pytest.raises(ConfigurationError):
            prune(saver, older_than=timedelta(seconds=-1))


def test_an_interrupted_prune_has_done_whole_threads_and_goes_on(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        for name in ("a", "b", "c"):
            filled(saver, name, 4)

        def stop(progress: Any) -> None:
            if progress.done == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            prune(saver, progress=stop)
        assert [len(listed(saver, name)) for name in "abc"] == [1, 1, 4]
        prune(saver)
        assert [len(listed(saver, name)) for name in "abc"] == [1, 1, 1]
        assert verify(saver).ok


def test_the_command_prunes(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        filled(saver, "t", 5)

    def command(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["prune", "--db", str(path), *arguments])

    dry = json.loads(command("--keep", "2", "--dry-run", "--json").stdout)
    assert (dry["checkpoints"], dry["dry_run"]) == (3, True)
    assert json.loads(command("--older-than", "3d", "--json").stdout)["checkpoints"] == 2
    assert command("--keep", "2").exit_code == 0
    assert command("--older-than", "soon").exit_code == 2
    with ResilientSaver.from_conn_string(path) as saver:
        assert len(listed(saver)) == 2
