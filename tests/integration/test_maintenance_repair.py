"""A damaged thread falls back to its newest intact checkpoint, on request and never silently."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from building import Thread, config, facts
from maintaining import options_of, run, state
from typer.testing import CliRunner

from langgraph_resilient import ResilientSaver
from langgraph_resilient.cli.app import app
from langgraph_resilient.errors import DataCorrupt
from langgraph_resilient.maintenance import repair, verify

GUARDS = ["checksum", "keyed", "cipher"]


def damaged(path: Path, guard: str, *, checkpoints: int = 4, broken: int = 2) -> list[Any]:
    """A thread whose newest checkpoints hold a damaged text; what each said before."""
    with ResilientSaver.from_conn_string(path, **options_of(guard)) as saver:
        thread = Thread(saver, "t")
        for n in range(checkpoints):
            thread.put({"n": n, "text": f"{n} " * 2000})
            saver.put_writes(thread.where, [("n", n)], f"task {n}")
        before = [facts(item) for item in saver.list(config("t"))]
    with closing(sqlite3.connect(path)) as conn:
        parts = conn.execute("SELECT part FROM resilient_blobs ORDER BY part DESC").fetchall()
        for (part,) in parts[:broken]:
            conn.execute("UPDATE resilient_blobs SET frame = zeroblob(50) WHERE part = ?", (part,))
        conn.commit()
    return before


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.mark.parametrize("guard", GUARDS)
def test_the_newest_intact_checkpoint_is_the_newest_again(path: Path, guard: str) -> None:
    before = damaged(path, guard)
    with ResilientSaver.from_conn_string(path, **options_of(guard)) as saver:
        with pytest.raises(DataCorrupt):
            saver.get_tuple(config("t"))
        told = repair(saver, "t", dry_run=True)
        with pytest.raises(DataCorrupt):
            saver.get_tuple(config("t"))
        done = repair(saver, "t")
        assert [item.checkpoint_id for item in done.lost] == [item["id"] for item in before[:2]]
        assert (told.lost, done.hopeless) == (done.lost, [])
        assert [facts(item) for item in saver.list(config("t"))] == before[2:]
        saver.prune(["t"])
        assert facts(saver.get_tuple(config("t"))) == {**before[2], "parent": None}
        Thread(saver, "t").put({"n": 9})
        assert verify(saver).findings == []


def test_an_intact_thread_is_left_alone(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        run(saver, "graph", 1, 2)
        run(saver, "waiting", 1, resume=False)
        before = state(saver, "graph"), state(saver, "waiting")
        for name in ("graph", "waiting", "nobody"):
            assert repair(saver, name).lost == []
        assert (state(saver, "graph"), state(saver, "waiting")) == before


def test_where_nothing_is_intact_nothing_is_done(path: Path) -> None:
    damaged(path, "checksum", checkpoints=2, broken=2)
    with ResilientSaver.from_conn_string(path) as saver:
        report = repair(saver, "t")
        assert (report.lost, report.hopeless) == ([], [""])
        with pytest.raises(DataCorrupt):
            saver.get_tuple(config("t"))


def test_the_command_repairs(path: Path) -> None:
    damaged(path, "checksum")

    def command(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["repair", "t", "--db", str(path), *arguments])

    assert len(json.loads(command("--dry-run", "--json").stdout)["lost"]) == 2
    assert command().exit_code == 0
    assert json.loads(command("--json").stdout)["lost"] == []
