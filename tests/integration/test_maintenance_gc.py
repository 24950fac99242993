"""Collecting garbage: nothing that is named goes, everything else does."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from building import Thread, observe
from maintaining import run
from typer.testing import CliRunner

from langgraph_resilient import ResilientSaver
from langgraph_resilient.cli.app import app
from langgraph_resilient.maintenance import gc, verify


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


def litter(path: Path, thread_id: str = "t", *, count: int = 39) -> None:
    """A thread that has lost its pending writes: contents that nothing names are left."""
    with ResilientSaver.from_conn_string(path) as saver:
        thread = Thread(saver, thread_id)
        thread.put({"text": "kept" * 1000})
        for n in range(count):
            value = os.urandom(1500).hex()
            saver.put_writes(thread.where, [("text", value)], f"task {n}")
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("DELETE FROM resilient_writes")
        conn.commit()


def test_what_is_named_stays_and_the_rest_goes(path: Path) -> None:
    litter(path)
    with ResilientSaver.from_conn_string(path) as saver:
        run(saver, "graph", 1, 2)
        before = observe(saver, ["graph"]), saver.get_tuple(Thread(saver, "t").where)
        told = gc(saver, dry_run=True)
        done = gc(saver)
        assert (told.blobs, told.bytes, told.templates) == (done.blobs, done.bytes, done.templates)
        assert done.blobs == 39
        assert done.bytes > 39 * 1000
        assert (observe(saver, ["graph"]), saver.get_tuple(Thread(saver, "t").where)) == before
        again = gc(saver)
        assert (again.threads, again.blobs, again.bytes) == (0, 0, 0)
    with ResilientSaver.from_conn_string(path) as saver:
        assert saver.get_tuple(Thread(saver, "t").where) == before[1]


def test_contents_that_other_threads_use_stay(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        Thread(saver, "a").put({"text": "x" * 5000})
        saver.copy_thread("a", "b")
        Thread(saver, "a").put({"text": "y" * 5000})
        saver.prune(["a"])
        saver.delete_thread("a")
        before = observe(saver, ["b"])
        assert gc(saver).blobs == 0
        assert observe(saver, ["b"]) == before
        assert verify(saver).ok


def test_contents_of_a_deleted_thread_that_nobody_uses_go(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        Thread(saver, "a").put({"text": "x" * 5000})
        saver.copy_thread("a", "b")
        saver.delete_thread("a")
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("DELETE FROM resilient_shares")
        conn.execute("DELETE FROM resilient_threads")
        conn.commit()
    with ResilientSaver.from_conn_string(path) as saver:
        assert gc(saver).blobs == 1


def test_tombstones_go_when_they_are_old(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        Thread(saver, "a").put({"n": 1})
        saver.delete_thread("a")
        assert gc(saver).tombstones == 0
        assert gc(saver, tombstones=timedelta(0), dry_run=True).tombstones == 1
        assert gc(saver, tombstones=timedelta(0)).tombstones == 1
        assert gc(saver, tombstones=timedelta(0)).tombstones == 0


def test_a_damaged_thread_is_left_alone_and_told(path: Path) -> None:
    litter(path)
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("UPDATE resilient_checkpoints SET frame = zeroblob(40)")
        conn.commit()
    with ResilientSaver.from_conn_string(path) as saver:
        report = gc(saver)
        assert [item.thread_id for item in report.skipped] == ["t"]
        assert report.blobs == 0


def test_writers_lose_nothing_to_a_collector(path: Path) -> None:
    """Contents that come and go, in two savers, while a third one collects."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def write(name: str) -> None:
        try:
            with ResilientSaver.from_conn_string(path) as saver:
                for n in range(60):
                    thread = Thread(saver, name)
                    thread.put({"text": f"{n % 3}" * 3000, "n": n})
                    if n % 5 == 4:
                        saver.prune([name])
                    found = saver.get_tuple(thread.where)
                    assert found is not None
                    assert found.checkpoint["channel_values"]["text"] == f"{n % 3}" * 3000
        except BaseException as error:
            errors.append(error)

    def collect() -> None:
        try:
            with ResilientSaver.from_conn_string(path) as saver:
                while not stop.is_set():
                    gc(saver)
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    collector = threading.Thread(target=collect)
    for one in (*writers, collector):
        one.start()
    for one in writers:
        one.join()
    stop.set()
    collector.join()
    assert errors == []
    with ResilientSaver.from_conn_string(path) as saver:
        assert verify(saver).ok


def test_the_command_collects(path: Path) -> None:
    litter(path)
    outcome = CliRunner().invoke(app, ["gc", "--db", str(path), "--json"])
    assert json.loads(outcome.stdout)["blobs"] == 39
    assert CliRunner().invoke(app, ["gc", "--db", str(path), "--dry-run"]).exit_code == 0
