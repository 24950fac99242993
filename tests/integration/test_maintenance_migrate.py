"""Moving the threads of `SqliteSaver` files over."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from building import Thread, config, fork, kill
from langchain_core.messages import AIMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command
from maintaining import agent, fill_old, options_of, run, seen, sql, state

from langgraph_resilient import ResilientSaver
from langgraph_resilient.maintenance import migrate, threads, verify


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def old(path: Path) -> Path:
    return fill_old(path)


NAMES = ("graph", "waiting", "plain")


@pytest.mark.parametrize("guard", ["checksum", "keyed", "cipher"])
def test_a_migrated_file_reads_as_before_and_goes_on(old: Path, guard: str) -> None:
    with SqliteSaver.from_conn_string(str(old)) as before:
        tuples = {name: seen(before, name) for name in NAMES}
        states = {name: state(before, name) for name in ("graph", "waiting")}
        (writes,) = sql(old, "SELECT count(*) FROM writes")[0]
    with ResilientSaver.from_conn_string(old, **options_of(guard)) as saver:
        steps: list[Any] = []
        report = migrate(saver, drop=True, progress=steps.append)
        assert report.skipped == []
        assert (report.threads, report.verified, report.dropped) == (4, 4, 4)
        assert report.checkpoints == sum(map(len, tuples.values()))
        assert report.writes == writes
        assert (steps[-1].done, steps[-1].total) == (4, 4)
        assert {name: seen(saver, name) for name in NAMES} == tuples
        assert {name: state(saver, name) for name in states} == states
        agent(saver).invoke(Command(resume="late"), config("waiting"))
        assert state(saver, "waiting")[0]["messages"][-1] == AIMessage("answer 1", id="a1")
        run(saver, "graph", 4)
        assert len(state(saver, "graph")[0]["messages"]) == 8
        assert verify(saver).ok
        assert migrate(saver).threads == 0
    names = {row[0] for row in sql(old, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert not {"checkpoints", "writes"} & names


def test_nothing_is_dropped_unless_it_is_asked_for(old: Path) -> None:
    rows = sql(old, "SELECT count(*) FROM checkpoints")
    with ResilientSaver.from_conn_string(old) as saver:
        assert migrate(saver).dropped == 0
        assert sql(old, "SELECT count(*) FROM checkpoints") == rows
        again = migrate(saver)
        assert (again.threads, again.verified, len(again.skipped)) == (0, 4, 4)
        last = migrate(saver, drop=True)
        assert (last.threads, last.dropped, last.skipped) == (0, 4, [])


def test_only_the_named_threads_are_moved(old: Path) -> None:
    with ResilientSaver.from_conn_string(old) as saver:
        report = migrate(saver, thread_ids=["plain", "nobody"], drop=True)
        assert (report.threads, report.dropped) == (1, 1)
        assert [item.thread_id for item in report.skipped] == ["nobody"]
        assert {i.thread_id: i.source for i in threads(saver)}["graph"] == "sqlite"
        assert state(saver, "graph")[0]["n"] == 3


def test_a_thread_that_differs_in_both_is_left_alone(old: Path) -> None:
    with ResilientSaver.from_conn_string(old) as saver:
        migrate(saver)
        with SqliteSaver.from_conn_string(str(old)) as other:
            thread = Thread(other, "plain")
            thread.where = other.get_tuple(config("plain")).config
            thread.put({"n": 99})
        report = migrate(saver, drop=True)
        assert [item.thread_id for item in report.skipped] == ["plain"]
        assert "differ" in report.skipped[0].reason
        assert report.dropped == 3
        assert sql(old, "SELECT count(*) FROM checkpoints WHERE thread_id = 'plain'") == [(6,)]


def test_a_thread_that_cannot_be_read_is_skipped_and_kept(old: Path) -> None:
    sql(old, "UPDATE checkpoints SET checkpoint = x'c1' WHERE thread_id = 'plain'")
    with ResilientSaver.from_conn_string(old) as saver:
        report = migrate(saver, drop=True)
        assert [item.thread_id for item in report.skipped] == ["plain"]
        assert report.dropped == 3
        assert verify(saver).ok
    assert sql(old, "SELECT count(*) FROM checkpoints WHERE thread_id = 'plain'") == [(5,)]


def test_a_thread_that_sqlitesaver_made_again_after_a_deletion_is_moved_whole(old: Path) -> None:
    with ResilientSaver.from_conn_string(old) as saver:
        saver.get_tuple(config("plain"))
        migrate(saver, drop=False)
        saver.delete_thread("plain")
    with SqliteSaver.from_conn_string(str(old)) as other:
        thread = Thread(other, "plain")
        for n in range(3):
            thread.put({"n": n})
    with ResilientSaver.from_conn_string(old) as saver:
        assert migrate(saver, thread_ids=["plain"], drop=True).dropped == 1
        assert len(seen(saver, "plain")) == 3


def test_another_process_may_drop_the_old_tables(old: Path) -> None:
    with ResilientSaver.from_conn_string(old) as first, ResilientSaver.from_conn_string(old) as two:
        assert state(first, "graph")[0]["n"] == 3
        assert migrate(two, drop=True).dropped == 4
        assert state(first, "graph")[0]["n"] == 3
        assert first.get_tuple(config("nobody")) is None
        assert len(list(first.list(None))) == len(list(two.list(None)))
        Thread(first, "new").put({"n": 1})
        first.delete_thread("new")
        assert {item.source for item in threads(first)} == {"resilient"}


def test_a_killed_migration_goes_on(path: Path) -> None:
    with SqliteSaver.from_conn_string(str(path)) as saver:
        for k in range(40):
            thread = Thread(saver, f"t{k:02}")
            for n in range(5):
                thread.put({"n": n, "text": f"{k} {n} " * 500})
        before = {f"t{k:02}": seen(saver, f"t{k:02}") for k in range(40)}
    for killed_after in (3, 11, 25):
        reached, told = os.pipe()

        def body(after: int = killed_after, out: int = told) -> None:
            def progress(step: Any) -> None:
                if step.done == after:
                    os.write(out, b"!")

            with ResilientSaver.from_conn_string(path) as child:
                migrate(child, drop=True, progress=progress)
                threading.Event().wait()

        pid = fork(body)
        assert os.read(reached, 1) == b"!"
        kill(pid)
        os.close(reached)
        os.close(told)
        with ResilientSaver.from_conn_string(path) as saver:
            assert verify(saver).ok
            assert {name: seen(saver, name) for name in before} == before
    with ResilientSaver.from_conn_string(path) as saver:
        report = migrate(saver, drop=True)
        assert report.skipped == []
        assert report.dropped <= 37
        assert {name: seen(saver, name) for name in before} == before
        assert {info.source for info in threads(saver)} == {"resilient"}
        assert verify(saver).ok
