"""A copy of the latest state only: whole in itself, and as careful as a full copy."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from building import Thread, config, facts, observe
from conftest import KEY, make_cipher
from journaling import answered
from langgraph.types import Command
from maintaining import agent, run, state
from test_maintenance_prune import filled, listed, paying
from test_policy_counts import steps
from typer.testing import CliRunner

from langgraph_resilient import ResilientSaver
from langgraph_resilient.cli.app import app
from langgraph_resilient.errors import ConfigurationError
from langgraph_resilient.maintenance import copy_thread, verify

GUARDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "keyed": {"integrity_key": KEY},
    "cipher": {"cipher": make_cipher()},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


def sound(saver: Any) -> None:
    report = verify(saver)
    assert report.ok, report.findings
    assert report.checked.get("unreachable_blobs", 0) == 0


@pytest.mark.parametrize("guard", GUARDS)
def test_state_subgraphs_and_delta_channels_are_whole_without_the_source(
    path: Path, guard: str
) -> None:
    with ResilientSaver.from_conn_string(path, **GUARDS[guard]) as saver:
        run(saver, "t", 1, 2, 3)
        before = state(saver, "t")
        saver.copy_thread("t", "copy", latest_only=True)
        saver.copy_thread("copy", "of the copy", latest_only=True)
        saver.delete_thread("t")
        sound(saver)
    with ResilientSaver.from_conn_string(path, **GUARDS[guard]) as saver:
        for name in ("copy", "of the copy"):
            assert state(saver, name)[:3] == before[:3]
            spaces = [
                item.config["configurable"]["checkpoint_ns"] for item in saver.list(config(name))
            ]
            assert len(spaces) == len(set(spaces))
            assert all(item.parent_config is None for item in saver.list(config(name)))
        run(saver, "copy", 4)
        saver.prune(["copy"])
        found = state(saver, "copy")[0]
        assert [text for text in found["log"] if text.startswith("in")] == [
            f"in {n}" for n in (1, 2, 3, 4)
        ]
        assert state(saver, "of the copy")[:3] == before[:3]
        sound(saver)


def test_a_waiting_interrupt_is_answered_in_the_copy(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        run(saver, "t", 1)
        run(saver, "t", 2, resume=False)
        saver.copy_thread("t", "all")
        saver.copy_thread("t", "latest", latest_only=True)
        assert state(saver, "latest")[:3] == state(saver, "all")[:3] == state(saver, "t")[:3]
        answers = [
            agent(saver).invoke(Command(resume="reply"), config(name))
            for name in ("all", "latest", "t")
        ]
        assert answers[0] == answers[1] == answers[2]
        assert answers[0]["asked"][-1] == "reply"
        sound(saver)


def test_an_unknown_effect_is_asked_about_in_the_copy_and_not_run(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        graph = paying(saver)
        graph.invoke({"messages": [("user", "pay")]}, config("t"))
        [asked] = saver.ledger.unknown("t")
        for name, latest_only in (("all", False), ("latest", True)):
            saver.copy_thread("t", name, latest_only=latest_only)
            again = graph.invoke(None, config(name))
            assert again["__interrupt__"][0].value["kind"] == "unknown_outcome"
            [entry] = saver.ledger.unknown(name)
            assert (entry.attempt, entry.started_at) == (1, asked.started_at)
            saver.ledger.resolve(entry.key, "succeeded", result="paid")
            assert graph.invoke(None, config(name))["messages"][-1].content == "paid"
        assert len(listed(saver, "latest")) == 2  # the copied one, and what it led to
        assert len(saver.ledger.unknown("t")) == 1
        sound(saver)


def test_finished_tool_calls_and_open_model_calls_come_along(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        graph = paying(saver)
        graph.invoke({"messages": [("user", "pay")]}, config("t"))
        saver.ledger.resolve(saver.ledger.unknown("t")[0].key, "succeeded", result="paid")
        graph.invoke(None, config("t"))
        graph.update_state(config("t"), {"messages": [("user", "thanks")]}, as_node="tools")
        answered(saver, "a long question")
        saver.copy_thread("t", "copy", latest_only=True)
        saver.delete_thread("t")
        assert [entry.result for entry in saver.ledger.entries("copy")]
        assert [call.state for call in saver.journal("copy")] == ["ended"]
        sound(saver)


def test_only_the_newest_writes_and_those_still_without_a_checkpoint_are_copied(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        for ns in ("", "child"):
            thread = Thread(saver, ns=ns)
            for n in range(3):
                saver.put_writes(thread.put({"n": n}), [("n", n)], "task")
            early = config("t", f"1f000000-0000-6000-8000-00000000000{len(ns)}", ns=ns)
            saver.put_writes(early, [("n", "early")], "task")
        report = copy_thread(saver, "t", "copy", latest_only=True)
        assert (report.checkpoints, report.writes) == (2, 4)
        seen = observe(saver, ["t", "copy"])
        newest = {item["ns"]: item for item in reversed(seen["t"])}
        copied = {item["ns"]: {**item, "thread": "t"} for item in seen["copy"]}
        assert copied == {ns: {**item, "parent": None} for ns, item in newest.items()}
        for ns in ("", "child"):
            early = config("copy", f"1f000000-0000-6000-8000-00000000000{len(ns)}", ns=ns)
            where = saver.put(
                config("copy", ns=ns),
                {**saver.get(config("copy", ns=ns)), "id": early["configurable"]["checkpoint_id"]},
                {},
                {},
            )
            assert saver.get_tuple(where).pending_writes == [("task", "n", "early")]


def test_what_a_policy_holds_back_is_copied(path: Path) -> None:
    policy: Any = lambda snapshot: "keep" in snapshot.metadata  # noqa: E731
    with ResilientSaver.from_conn_string(path, policy=policy) as saver:
        thread = Thread(saver)
        steps(thread, "|..")
        newest = facts(saver.get_tuple(config("t")))
        asyncio.run(saver.acopy_thread("t", "copy", latest_only=True))
        [found] = [facts(item) for item in saver.list(config("copy"))]
        assert found == {**newest, "thread": "copy", "parent": None}


def test_a_dry_run_tells_the_same_and_changes_nothing(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        run(saver, "t", 1, 2)
        for latest_only in (True, False):
            name = f"copy {latest_only}"
            told = copy_thread(saver, "t", name, latest_only=latest_only, dry_run=True)
            assert listed(saver, name) == []
            done = copy_thread(saver, "t", name, latest_only=latest_only)
            assert (told.dry_run, done.dry_run) == (True, False)
            assert (told.checkpoints, told.writes) == (done.checkpoints, done.writes)
            assert done.checkpoints == len(list(saver.list({"configurable": {"thread_id": name}})))


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_target_in_use_is_refused_and_a_missing_source_is_nothing(
    path: Path, dry_run: bool
) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        filled(saver, "a", 2)
        filled(saver, "b", 2)
        for target in ("a", "b"):
            with pytest.raises(ConfigurationError):
                copy_thread(saver, "a", target, latest_only=True, dry_run=dry_run)
        assert copy_thread(saver, "nobody", "b", dry_run=dry_run).checkpoints == 0
        assert set(observe(saver, ["a", "b", "nobody"])) == {"a", "b"}


def test_the_command_copies(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        filled(saver, "t", 5)

    def command(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["copy", "--db", str(path), *arguments])

    dry = json.loads(command("t", "latest", "--latest", "--dry-run", "--json").stdout)
    assert (dry["checkpoints"], dry["dry_run"]) == (1, True)
    assert json.loads(command("t", "latest", "--latest", "--json").stdout)["checkpoints"] == 1
    assert command("t", "all").exit_code == 0
    assert command("t", "all").exit_code == 2
    assert command("nobody", "else").exit_code == 1
    with ResilientSaver.from_conn_string(path) as saver:
        assert (len(listed(saver, "latest")), len(listed(saver, "all"))) == (1, 5)
