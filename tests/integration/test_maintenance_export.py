"""Exporting real files to `SqliteSaver`."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from building import Thread, config, facts, fork, kill
from conftest import make_cipher
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command
from maintaining import agent, fill, fill_old, run, seen, sql, state

from langgraph_resilient import ResilientSaver
from langgraph_resilient.errors import ConfigurationError, StorageError
from langgraph_resilient.maintenance import export, migrate, threads, verify


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def filled(path: Path) -> Path:
    return fill(path)


@pytest.fixture
def old(path: Path) -> Path:
    return fill_old(path)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return tmp_path / "plain.db"


def test_an_exported_thread_has_the_same_state_and_goes_on(filled: Path, plain: Path) -> None:
    with ResilientSaver.from_conn_string(filled) as saver:
        steps: list[Any] = []
        report = export(saver, plain, progress=steps.append)
        assert (report.threads, report.skipped, report.lossy) == (6, [], [])
        assert (steps[-1].done, steps[-1].total) == (6, 6)
        assert report.bytes == plain.stat().st_size
        with SqliteSaver.from_conn_string(str(plain)) as other:
            for name in ("graph", "waiting", "pruned", "heir"):
                assert state(other, name) == state(saver, name)
                assert list(agent(other).get_state_history(config(name)))
            for name in ("graph", "waiting", "long", "copy", "heir"):
                ours, theirs = seen(saver, name), seen(other, name)
                assert [as_numbers(item) for item in theirs] == [as_numbers(item) for item in ours]
            for back in (saver, other):
                agent(back).invoke(Command(resume="late"), config("waiting"))
                for name in ("graph", "pruned", "heir"):
                    run(back, name, 7)
            for name in ("graph", "waiting", "pruned", "heir"):
                assert state(other, name)[:3] == state(saver, name)[:3]
    assert oct(plain.stat().st_mode & 0o777) == "0o600"


def as_numbers(found: dict) -> dict:
    """The facts of a tuple, versions as numbers."""

    def plain(versions: dict) -> dict:
        return {k: v if isinstance(v, int) else int(v.split(".")[0]) for k, v in versions.items()}

    return {
        **found,
        "versions": plain(found["versions"]),
        "seen": {node: plain(item) for node, item in found["seen"].items()},
        "metadata": as_lists(found["metadata"]),
        "writes": as_lists(found["writes"]),
    }


def as_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_lists(item) for key, item in value.items()}
    return [as_lists(item) for item in value] if isinstance(value, tuple | list) else value


def test_the_history_of_a_pruned_thread_is_the_same_on_the_other_side(
    filled: Path, plain: Path
) -> None:
    channels = ["log", "messages"]
    with ResilientSaver.from_conn_string(filled) as saver:
        export(saver, plain, thread_ids=["pruned"])
        ours = saver.get_delta_channel_history(config=config("pruned"), channels=channels)
    with SqliteSaver.from_conn_string(str(plain)) as other:
        theirs = other.get_delta_channel_history(config=config("pruned"), channels=channels)
    for channel in channels:
        values = [value for _, _, value in ours[channel]["writes"]]
        assert [value for _, _, value in theirs[channel]["writes"]] == values
        assert theirs[channel].get("seed") == ours[channel].get("seed")
    assert ours["log"]["writes"]
    assert "seed" in ours["messages"]


def test_an_export_can_be_migrated_again(filled: Path, plain: Path) -> None:
    with ResilientSaver.from_conn_string(filled) as saver:
        export(saver, plain)
        expected = {name: state(saver, name)[:3] for name in ("graph", "waiting", "pruned")}
    with ResilientSaver.from_conn_string(plain) as saver:
        report = migrate(saver, drop=True)
        assert (report.skipped, report.verified) == ([], 6)
        assert {name: state(saver, name)[:3] for name in expected} == expected
        assert verify(saver).ok


def test_threads_of_the_old_tables_are_exported_as_they_are(old: Path, plain: Path) -> None:
    with ResilientSaver.from_conn_string(old) as saver:
        migrate(saver, thread_ids=["graph"])
        report = export(saver, plain)
    assert (report.threads, report.skipped) == (4, [])
    text = "SELECT * FROM {} WHERE thread_id = 'plain' ORDER BY checkpoint_id"
    assert sql(plain, text.format("checkpoints")) == sql(old, text.format("checkpoints"))
    with (
        SqliteSaver.from_conn_string(str(plain)) as new,
        SqliteSaver.from_conn_string(str(old)) as before,
    ):
        assert seen(new, "graph") == seen(before, "graph")


def test_the_newest_checkpoint_stays_the_newest(path: Path, plain: Path) -> None:
    """SqliteSaver takes the greatest id, this package the one written last."""
    with ResilientSaver.from_conn_string(path) as saver:
        thread = Thread(saver)
        thread.put({"n": 1}, id="1ef00000-0000-6000-8000-000000000009")
        thread.put({"n": 2}, id="1ef00000-0000-6000-8000-000000000003")
        saver.put_writes(thread.where, [("n", 3)], "task")
        report = export(saver, plain)
        assert report.lossy
        with SqliteSaver.from_conn_string(str(plain)) as other:
            ours, theirs = facts(saver.get_tuple(config())), facts(other.get_tuple(config()))
    for key in ("values", "parent", "writes", "metadata"):
        assert theirs[key] == ours[key]


class Odd:
    """SqliteSaver has no way to store it; this package stores its fields."""

    def __init__(self) -> None:
        self.inner = 1


def test_what_sqlitesaver_changes_or_refuses_is_told(path: Path, plain: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        Thread(saver, "good").put({"x": [1, "two"]})
        Thread(saver, "changed").put({"x": {"deep": [(1, 2)]}, "y": [HumanMessage("a", id="b")]})
        Thread(saver, "refused").put({"x": 1, "y": {"odd": 1 << 80}})
        report = export(saver, plain)
    assert report.threads == 2
    assert [(item.thread_id, item.channel, item.type_name) for item in report.lossy] == [
        ("changed", "x", "builtins.tuple")
    ]
    (skipped,) = report.skipped
    assert skipped.thread_id == "refused"
    assert "'y'" in skipped.reason
    with SqliteSaver.from_conn_string(str(plain)) as other:
        assert other.get_tuple(config("refused")) is None
        assert other.get_tuple(config("good")).checkpoint["channel_values"] == {"x": [1, "two"]}


def test_a_damaged_thread_does_not_keep_the_others_from_being_exported(
    filled: Path, plain: Path
) -> None:
    sql(filled, "UPDATE resilient_writes SET frame = x'10'")
    with ResilientSaver.from_conn_string(filled) as saver:
        report = export(saver, plain)
    assert report.skipped
    assert {"long", "copy"} <= {item.thread_id for item in report.skipped}


def leftovers(plain: Path) -> list[str]:
    return sorted(item.name for item in plain.parent.iterdir() if "plain" in item.name)


def test_a_target_in_use_is_refused_and_stays_as_it_is(filled: Path, plain: Path) -> None:
    with ResilientSaver.from_conn_string(filled) as saver:
        plain.write_bytes(b"mine")
        with pytest.raises(ConfigurationError, match="exists"):
            export(saver, plain)
        assert plain.read_bytes() == b"mine"
        plain.write_bytes(b"")
        assert export(saver, plain).threads == 6
        with pytest.raises(ConfigurationError, match="exists"):
            export(saver, filled)
        other = plain.with_name("plain2.db")
        Path(f"{other}-wal").write_bytes(b"old")
        with pytest.raises(ConfigurationError, match=r"plain2\.db-wal"):
            export(saver, other)
        with pytest.raises(ConfigurationError, match="no thread 'nobody'"):
            export(saver, plain.with_name("plain3.db"), thread_ids=["nobody"])
        with pytest.raises(ConfigurationError, match="folder"):
            export(saver, plain / "sub" / "x.db")
    assert leftovers(plain) == ["plain.db", "plain2.db-wal"]


@pytest.mark.parametrize("raised", [KeyboardInterrupt, StorageError])
def test_an_interrupted_export_leaves_nothing_behind(
    filled: Path, plain: Path, raised: type[BaseException]
) -> None:
    def progress(step: Any) -> None:
        if step.done == 3:
            raise raised

    with ResilientSaver.from_conn_string(filled) as saver:
        with pytest.raises(raised):
            export(saver, plain, progress=progress)
        assert leftovers(plain) == []
        assert export(saver, plain).threads == 6


def test_a_killed_export_leaves_nothing_under_the_final_name(filled: Path, plain: Path) -> None:
    reached, told = os.pipe()

    def body() -> None:
        def progress(step: Any) -> None:
            if step.done == 2:
                os.write(told, b"!")
                threading.Event().wait()

        with ResilientSaver.from_conn_string(filled) as child:
            export(child, plain, progress=progress)

    pid = fork(body)
    assert os.read(reached, 1) == b"!"
    kill(pid)
    os.close(reached)
    os.close(told)
    assert not plain.exists()
    with ResilientSaver.from_conn_string(filled) as saver:
        assert verify(saver).ok
        assert export(saver, plain).threads == 6


def test_a_simple_graph_is_exported_from_an_encrypted_file(path: Path, plain: Path) -> None:
    def graph(saver: Any) -> Any:
        builder = StateGraph(MessagesState)
        builder.add_node("echo", lambda state: {"messages": [AIMessage("yes", id="a")]})
        builder.add_edge(START, "echo")
        return builder.compile(checkpointer=saver)

    with ResilientSaver.from_conn_string(path, cipher=make_cipher()) as saver:
        graph(saver).invoke({"messages": [HumanMessage("no?", id="h")]}, config("t"))
        export(saver, plain)
        expected = graph(saver).get_state(config("t")).values
    with SqliteSaver.from_conn_string(str(plain)) as other:
        assert graph(other).get_state(config("t")).values == expected


def test_a_thread_whose_runs_were_all_deleted_does_not_come_back_from_its_old_rows(
    old: Path,
) -> None:
    with SqliteSaver.from_conn_string(str(old)) as before:
        Thread(before, "brief").put({"n": 1}, metadata={"run_id": "r"})
    with ResilientSaver.from_conn_string(old) as saver:
        migrate(saver)
        saver.delete_for_runs(["r"])
    with ResilientSaver.from_conn_string(old) as saver:
        assert saver.get_tuple(config("brief")) is None
        assert "brief" not in [info.thread_id for info in threads(saver)]
