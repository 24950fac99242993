"""What a snapshot policy did is counted in the file: by every process, and right after a crash."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from building import Thread, config, in_child
from conftest import KEY, make_cipher
from test_policies import INPUT, POLICIES, graph
from typer.testing import CliRunner

from langgraph_resilient import AfterTools, Cipher, EveryStep, ResilientSaver
from langgraph_resilient.cli.app import app
from langgraph_resilient.errors import DatabaseLocked
from langgraph_resilient.maintenance import (
    compact,
    prune,
    rekey,
    repair,
    stats,
    threads,
    verify,
)

WANTED: Callable[[Any], bool] = lambda snapshot: "keep" in snapshot.metadata  # noqa: E731
GUARDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "keyed": {"integrity_key": KEY},
    "cipher": {"cipher": make_cipher()},
}


def steps(thread: Thread, pattern: str) -> None:
    """Store checkpoints in the middle of a run: ``.`` may be skipped, ``|`` is kept."""
    for sign in pattern:
        more = {"metadata": {"keep": True}} if sign == "|" else {}
        thread.put({"branch:to:node": sign}, **more)


def opened(path: Path, **options: Any) -> ResilientSaver:
    return ResilientSaver.from_conn_string(path, policy=WANTED, **options)


def counted(saver: Any) -> tuple[int, int, int]:
    return tuple(stats(saver).snapshots.values())  # type: ignore[return-value]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.mark.parametrize("name", POLICIES)
def test_the_file_counts_what_the_process_counts(path: Path, name: str) -> None:
    with ResilientSaver.from_conn_string(path, policy=POLICIES[name]) as saver:
        graph(saver).invoke(INPUT, config())
        process = saver.snapshots
        assert process.skipped > 0
        assert stats(saver).snapshots == {
            "stored": process.stored,
            "skipped": process.skipped,
            "bridged": process.bridged,
        }


@pytest.mark.parametrize("guard", GUARDS)
def test_every_process_adds_to_the_same_counts(path: Path, guard: str) -> None:
    for _ in range(2):
        with opened(path, **GUARDS[guard]) as saver:
            for name, ns in (("a", ""), ("a", "child"), ("b", "")):
                steps(Thread(saver, name, ns=ns), "|..|.|")
    with opened(path, **GUARDS[guard]) as saver:
        assert counted(saver) == (2 * 9, 2 * 9, 2 * 6)
        found = {info.thread_id: info.snapshots for info in threads(saver)}
        assert found == {
            "a": {"stored": 12, "skipped": 12, "bridged": 8},
            "b": {"stored": 6, "skipped": 6, "bridged": 4},
        }
        report = verify(saver)
        assert report.ok, report.findings


def test_writers_side_by_side_lose_no_count(path: Path) -> None:
    with opened(path) as one, opened(path) as other:
        first, second = Thread(one), Thread(other)
        for _ in range(5):
            steps(first, ".|")
            steps(second, "..|")
        assert counted(one) == counted(other) == (10, 15, 10)


def test_a_killed_process_leaves_right_counts(path: Path) -> None:
    """What it had skipped since it last stored something was never counted."""

    def dies() -> None:
        with opened(path) as saver:
            steps(Thread(saver), "|...|..")
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(dies) == -signal.SIGKILL
    with opened(path) as saver:
        assert counted(saver) == (2, 3, 1)
        steps(Thread(saver), ".|")
        assert counted(saver) == (3, 4, 2)


def test_what_is_held_and_stored_after_all_was_not_skipped(path: Path) -> None:
    with opened(path) as saver:
        steps(Thread(saver), "|...")
    with opened(path) as saver:
        assert counted(saver) == (2, 2, 1)


def test_a_put_that_failed_and_is_done_again_counts_once(path: Path) -> None:
    with opened(path, busy_timeout=0.05) as saver:
        thread = Thread(saver)
        steps(thread, "|..")
        given = thread.prepare({"branch:to:node": "|"}, {"keep": True}, None)
        with closing(sqlite3.connect(path, isolation_level=None)) as conn:
            conn.execute("BEGIN IMMEDIATE")
            with pytest.raises(DatabaseLocked):
                saver.put(*given)
            conn.execute("ROLLBACK")
        saver.put(*given)
        assert counted(saver) == (2, 2, 1)


def test_counting_takes_no_commit_and_nothing_where_nothing_is_skipped(path: Path) -> None:
    with opened(path) as saver:
        thread = Thread(saver)
        steps(thread, "|..")
        said: list[str] = []
        saver.conn.set_trace_callback(said.append)
        steps(thread, "|")
        assert said.count("COMMIT") == 1
        assert len([line for line in said if "INTO resilient_snapshots" in line]) == 1
        said.clear()
        steps(thread, "|")
        assert not [line for line in said if "resilient_snapshots" in line]
        saver.conn.set_trace_callback(None)


@pytest.mark.parametrize("policy", [None, EveryStep()])
def test_without_skipping_all_that_was_stored_counts(path: Path, policy: Any) -> None:
    with ResilientSaver.from_conn_string(path, policy=policy) as saver:
        steps(Thread(saver), "||||")
        assert counted(saver) == (4, 0, 0)
        prune(saver, keep=1)
        saver.delete_for_runs(["nobody's"])
        assert counted(saver) == (4, 0, 0)
        assert stats(saver).checkpoints == 1


@pytest.mark.parametrize("guard", GUARDS)
def test_upkeep_keeps_the_counts(path: Path, guard: str) -> None:
    with opened(path, **GUARDS[guard]) as saver:
        steps(Thread(saver), "|..|.|" * 3)
        prune(saver, keep=2)
        compact(saver)
        saver.copy_thread("t", "copy")
        assert [info.snapshots for info in threads(saver)] == [
            {"stored": 2, "skipped": 0, "bridged": 0},
            {"stored": 9, "skipped": 9, "bridged": 6},
        ]
        saver.delete_thread("t")
        assert counted(saver) == (2, 0, 0)
        assert verify(saver).ok
        with saver._engine.reading() as session:
            assert session.all("orphan_snapshots") == []


def test_a_lost_checkpoint_was_stored_all_the_same(path: Path) -> None:
    with opened(path) as saver:
        steps(Thread(saver), "|..||")
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("UPDATE resilient_checkpoints SET frame = x'00' WHERE seq = 3")
        conn.commit()
    with opened(path) as saver:
        assert len(repair(saver, "t").lost) == 1
        assert counted(saver) == (3, 2, 1)


def test_a_new_key_seals_the_counts_too(path: Path) -> None:
    old, new = bytes(range(32)), bytes(range(32, 64))
    with opened(path, cipher=Cipher(old)) as saver:
        steps(Thread(saver), "|..|")
    with opened(path, cipher=Cipher(new, old)) as saver:
        rekey(saver)
    with opened(path, cipher=Cipher(new)) as saver:
        assert counted(saver) == (2, 2, 1)
        assert verify(saver).ok


@pytest.mark.parametrize("guard", GUARDS)
def test_altered_counts_are_found_and_stop_nobody(path: Path, guard: str) -> None:
    with opened(path, **GUARDS[guard]) as saver:
        thread = Thread(saver)
        steps(thread, "|..|")
        with closing(sqlite3.connect(path)) as conn:
            conn.execute("UPDATE resilient_snapshots SET skipped = 7")
            conn.execute(
                "INSERT INTO resilient_snapshots SELECT 99, 1, 1, 1, seal FROM resilient_snapshots"
            )
            conn.commit()
        steps(thread, ".|")
        assert counted(saver) == (3, 0, 0)
        assert {finding.kind for finding in verify(saver).findings} == {"namespace", "orphan"}
        prune(saver)
        assert saver.get_tuple(config()) is not None


def test_the_command_shows_the_counts(path: Path) -> None:
    with ResilientSaver.from_conn_string(path, policy=AfterTools()) as saver:
        graph(saver).invoke(INPUT, config())
        wanted = stats(saver).snapshots

    def command(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["stats", "--db", str(path), *arguments])

    assert json.loads(command("--json").stdout)["snapshots"] == wanted
    assert "snapshots skipped" in command().stdout
    [shown] = json.loads(command("--thread", "t", "--json").stdout)["threads"]
    assert (shown["thread_id"], shown["snapshots"]) == ("t", wanted)
    assert "snapshots bridged" in command("--thread", "t").stdout
    assert command("--thread", "nobody").exit_code == 1
