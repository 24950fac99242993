"""A time to live is kept with its thread, sealed, and honoured by `expire`."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
from building import Thread, checkpoint, config, in_child
from calling import call
from calling import run as call_run
from conftest import KEY, make_cipher
from journaling import begun
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command
from maintaining import agent, run
from test_maintenance_prune import filled, listed, paying
from typer.testing import CliRunner

from langgraph_resilient import Cipher, ResilientSaver, lifetimes
from langgraph_resilient.cli.app import app
from langgraph_resilient.errors import (
    ConfigurationError,
    DataCorrupt,
    DecryptionFailed,
    TamperDetected,
)
from langgraph_resilient.maintenance import (
    compact,
    expire,
    export,
    gc,
    migrate,
    prune,
    rekey,
    repair,
    stats,
    threads,
    verify,
)
from langgraph_resilient.maintenance.expiring import _Expire

DAY = 86_400
GUARDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "keyed": {"integrity_key": KEY},
    "cipher": {"cipher": make_cipher()},
}
REFUSALS = {"plain": DataCorrupt, "keyed": TamperDetected, "cipher": DecryptionFailed}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


def lives(saver: Any, thread_id: str, days: float, *, ago: float = 1000) -> None:
    """Set a time to live, as it was set so many days ago."""
    now = time.time() - ago * DAY
    lifetimes.set_lifetime(saver._engine, thread_id, round(days * DAY * 1000), now=now)


def over(saver: Any, **options: Any) -> list[str]:
    return expire(saver, dry_run=True, **options).threads


# --- whose time is over -----------------------------------------------------------------------


def test_a_thread_goes_when_its_own_time_is_over(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        for name, days in (("short", 10), ("long", 100), ("none", 0)):
            filled(saver, name, 2, days=60)
            if days:
                lives(saver, name, days)
        assert over(saver) == ["short"]
        assert over(saver, threads=["long", "none"]) == []
        # An age is for threads that have no time of their own.
        assert over(saver, older_than=timedelta(days=30)) == ["short", "none"]
        assert expire(saver).threads == ["short"]
        assert [len(listed(saver, name)) for name in ("short", "long", "none")] == [0, 2, 2]
        assert expire(saver).threads == []
        assert verify(saver).ok


def test_the_time_counts_from_the_last_write_or_from_when_it_was_set(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        filled(saver, "t", 2, days=60)
        saver.set_ttl("t", timedelta(days=10))
        assert over(saver) == []
        lives(saver, "t", 10, ago=11)
        assert over(saver) == ["t"]
        Thread(saver, "t", ns="child").put({"n": 1})
        assert over(saver) == []


def test_without_a_time_a_thread_lives_for_ever(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        filled(saver, "t", 2, days=60)
        lives(saver, "t", 10)
        saver.set_ttl("t", None)
        assert saver.get_ttl("t") is None
        assert over(saver) == []
        saver.set_ttl("nobody", None)
        assert saver.get_ttl("nobody") is None
        assert [info.thread_id for info in threads(saver)] == ["t"]


def test_a_time_can_be_set_before_the_first_run(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        saver.set_ttl("t", 90)
        Thread(saver, "t").put({"n": 1})
        assert saver.get_ttl("t") == 90
        lives(saver, "empty", 10)
        assert expire(saver).threads == ["empty"]
        assert [info.thread_id for info in threads(saver)] == ["t"]


def test_a_thread_that_somebody_goes_on_with_is_not_deleted(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        filled(saver, "t", 2, days=60)
        lives(saver, "t", 10)
        work = _Expire(saver, None, force=False)
        assert work.look("t") == ""
        Thread(saver, "t").put({"n": 1})
        assert not work.delete("t")
        assert len(listed(saver, "t")) == 3


def test_interrupted_it_has_done_whole_threads_and_goes_on(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        for name in "abc":
            filled(saver, name, 2, days=60)
            lives(saver, name, 10)

        def stop(progress: Any) -> None:
            if progress.done == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            expire(saver, progress=stop)
        assert [len(listed(saver, name)) for name in "abc"] == [0, 0, 2]
        assert expire(saver).threads == ["c"]
        assert verify(saver).ok


def test_killed_it_has_done_whole_threads_and_goes_on(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        for name in "abc":
            filled(saver, name, 2, days=60)
            lives(saver, name, 10)

    def dies() -> None:
        with ResilientSaver.from_conn_string(path) as saver:
            expire(saver, progress=lambda at: os.kill(os.getpid(), SIGKILL) if at.done == 1 else 0)

    assert in_child(dies) == -SIGKILL
    with ResilientSaver.from_conn_string(path) as saver:
        assert [len(listed(saver, name)) for name in "abc"] == [0, 2, 2]
        assert verify(saver).ok
        assert expire(saver).threads == ["b", "c"]


# --- what is still needed ---------------------------------------------------------------------


def test_a_waiting_interrupt_keeps_its_thread(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        run(saver, "t", 1, resume=False)
        report = expire(saver, older_than=timedelta(0))
        assert report.threads == []
        assert "interrupt" in report.skipped[0].reason
        assert over(saver, older_than=timedelta(0), force=True) == ["t"]
        agent(saver).invoke(Command(resume="reply"), config("t"))
        assert over(saver, older_than=timedelta(0)) == ["t"]
        run(saver, "t", 2, resume=False)
        assert expire(saver, older_than=timedelta(0), force=True).threads == ["t"]


def test_an_unknown_effect_keeps_its_thread(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        paying(saver).invoke({"messages": [("user", "pay")]}, config("t"))
        report = expire(saver, older_than=timedelta(0))
        assert report.threads == []
        assert "charge" in report.skipped[0].reason
        assert expire(saver, older_than=timedelta(0), force=True).threads == ["t"]


def test_a_running_tool_call_keeps_its_thread(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        filled(saver, "t", 1, days=60)
        found: list[Any] = []

        def body(current: Any) -> Any:
            found.append(expire(saver, older_than=timedelta(0)))
            return "sent"

        assert call_run(saver, call("t", body=body)) == "sent"
        assert found[0].threads == []
        assert "running" in found[0].skipped[0].reason
        assert over(saver, older_than=timedelta(0)) == ["t"]


def test_a_model_call_under_way_counts_as_a_write(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        filled(saver, "t", 1, days=60)
        lives(saver, "t", 10)
        assert over(saver) == ["t"]
        begun(saver, thread="t")
        assert over(saver) == []
        assert expire(saver).skipped == []


# --- the saver's option -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ttl", "seconds"),
    [
        (90, 90),
        (0.5, 0.5),
        (timedelta(days=1), DAY),
        ({"default_ttl": 1.5}, 90),
        ({"default_ttl": 60, "refresh_on_read": True}, 3600),
        ({}, None),
        (None, None),
    ],
)
def test_the_option_is_stored_with_each_new_thread(path: Path, ttl: Any, seconds: Any) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        Thread(saver, "before").put({"n": 1})
    with ResilientSaver.from_conn_string(path, ttl=ttl) as saver:
        for name in ("before", "new"):
            Thread(saver, name).put({"n": 2})
        saver.put_writes(config("writes first", "1"), [("x", 1)], "task")
        call_run(saver, call("call first"))
    with ResilientSaver.from_conn_string(path) as saver:
        found = {info.thread_id: info.ttl for info in threads(saver)}
        new = dict.fromkeys(("new", "writes first", "call first"), seconds)
        assert found == {"before": None, **new}
        assert stats(saver).ttl_threads == (3 if seconds else 0)


@pytest.mark.parametrize(
    "ttl",
    [
        0,
        -1,
        float("nan"),
        float("inf"),
        True,
        "1h",
        timedelta(0),
        {"default_ttl": -1},
        {"default_ttl": 60, "sweep_interval_minutes": 5},
        {"refresh_on_read": True},
    ],
    ids=str,
)
def test_nonsense_is_refused(path: Path, ttl: Any) -> None:
    with pytest.raises(ConfigurationError, match="ttl"):
        ResilientSaver.from_conn_string(path, ttl=ttl)
    if not isinstance(ttl, dict):
        with ResilientSaver.from_conn_string(path) as saver:
            with pytest.raises(ConfigurationError, match="ttl"):
                saver.set_ttl("t", ttl)
            assert threads(saver) == []


def test_reading_begins_a_life_anew_where_that_is_wanted(path: Path) -> None:
    wanted: Any = {"default_ttl": 10 * DAY / 60, "refresh_on_read": True}
    with ResilientSaver.from_conn_string(path) as saver:
        filled(saver, "t", 1, days=60)
        lives(saver, "t", 10, ago=9)
        before = lifetimes.lifetime_of(saver._engine, "t")
        assert saver.get_tuple(config("t")) is not None
        assert lifetimes.lifetime_of(saver._engine, "t") == before
    with ResilientSaver.from_conn_string(f"file:{path}?mode=ro", ttl=wanted) as saver:
        assert saver.get_tuple(config("t")) is not None
    with ResilientSaver.from_conn_string(path, ttl=wanted) as saver:
        assert asyncio.run(saver.aget_tuple(config("t"))) is not None
        after = lifetimes.lifetime_of(saver._engine, "t")
        assert before is not None
        assert after is not None
        assert after.ttl == before.ttl
        assert after.since - before.since > 8 * DAY * 1000
        said: list[str] = []
        saver.conn.set_trace_callback(said.append)
        saver.get_tuple(config("t"))  # so soon again is not worth a commit
        saver.conn.set_trace_callback(None)
        assert not [line for line in said if line.startswith("UPDATE")]
        assert lifetimes.lifetime_of(saver._engine, "t") == after


def test_a_read_is_given_also_when_the_file_is_locked(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted: Any = {"default_ttl": 10, "refresh_on_read": True}
    with ResilientSaver.from_conn_string(path, ttl=wanted, busy_timeout=0.05) as saver:
        Thread(saver, "t").put({"n": 1})
        lives(saver, "t", 10, ago=9)
        with closing(sqlite3.connect(path, isolation_level=None)) as conn:
            conn.execute("BEGIN IMMEDIATE")
            assert saver.get_tuple(config("t")) is not None
            conn.execute("ROLLBACK")
    assert "life" in caplog.text


def test_the_coroutines_do_the_same() -> None:
    for name in ("set_ttl", "get_ttl"):
        sync, other = getattr(ResilientSaver, name), getattr(ResilientSaver, f"a{name}")
        assert inspect.signature(sync).parameters == inspect.signature(other).parameters

    async def steps(saver: Any) -> Any:
        await saver.aset_ttl("t", 5)
        return await saver.aget_ttl("t")

    with ResilientSaver.from_conn_string(":memory:") as saver:
        assert asyncio.run(steps(saver)) == saver.get_ttl("t") == 5


# --- kept, sealed, carried along --------------------------------------------------------------


@pytest.mark.parametrize("guard", GUARDS)
def test_nobody_alters_or_takes_away_a_time_unseen(path: Path, guard: str) -> None:
    options = GUARDS[guard]
    with ResilientSaver.from_conn_string(path, **options) as saver:
        for name in ("mortal", "free"):
            Thread(saver, name).put({"n": 1})
        saver.set_ttl("mortal", 60)
    with closing(sqlite3.connect(path)) as conn:
        seals = dict(conn.execute("SELECT thread_id, seal FROM resilient_threads"))
    seal = seals["mortal"]
    edits: list[Callable[[bytes], bytes]] = [
        lambda seal: seal[:3] + bytes((seal[3] ^ 1,)) + seal[4:],
        lambda seal: seal[17:],
        lambda seal: seals["free"],
        lambda seal: b"",
    ]
    for edit in edits:
        with closing(sqlite3.connect(path)) as conn:
            statement = "UPDATE resilient_threads SET seal = ? WHERE thread_id = 'mortal'"
            conn.execute(statement, (edit(seal),))
            conn.commit()
        with ResilientSaver.from_conn_string(path, **options) as saver:
            with pytest.raises(REFUSALS[guard]):
                saver.get_ttl("mortal")
            with pytest.raises(DataCorrupt):
                saver.get_tuple(config("mortal"))
            report = expire(saver, older_than=timedelta(0), force=True, dry_run=True)
            assert (report.threads, len(report.skipped)) == (["free"], 1)
            assert "thread" in {finding.kind for finding in verify(saver).findings}
            assert {info.ttl for info in threads(saver)} == {None}
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("UPDATE resilient_threads SET seal = ? WHERE thread_id = 'mortal'", (seal,))
        conn.commit()
    with ResilientSaver.from_conn_string(path, **options) as saver:
        assert saver.get_ttl("mortal") == 60


def test_upkeep_and_other_writers_leave_it_alone(path: Path) -> None:
    old, new = bytes(range(32)), bytes(range(32, 64))
    with ResilientSaver.from_conn_string(path, cipher=Cipher(old)) as saver:
        thread = Thread(saver, "t")
        for n in range(30):
            thread.put({"n": n, "text": f"{n}" * 3000})
        with ResilientSaver.from_conn_string(path, cipher=Cipher(old)) as other:
            other.set_ttl("t", 60)
        thread.put({"n": 30})
        assert prune(saver, keep=2).checkpoints == 29
        gc(saver)
        compact(saver)
        repair(saver, "t")
        thread.put({"n": 31})
        assert saver.get_ttl("t") == 60
        assert verify(saver).ok
    with ResilientSaver.from_conn_string(path, cipher=Cipher(new, old)) as saver:
        rekey(saver)
    with ResilientSaver.from_conn_string(path, cipher=Cipher(new)) as saver:
        assert saver.get_ttl("t") == 60
        assert verify(saver).ok


@pytest.mark.parametrize("latest_only", [False, True])
def test_a_copy_lives_as_long_from_now_on(path: Path, latest_only: bool) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        filled(saver, "t", 2, days=60)
        lives(saver, "t", 10)
        saver.set_ttl("has its own", 90)
        for name in ("copy", "has its own"):
            saver.copy_thread("t", name, latest_only=latest_only)
        assert saver.get_ttl("copy") == saver.get_ttl("t") == 10 * DAY
        assert saver.get_ttl("has its own") == 90
        assert over(saver) == ["t"]


def test_a_thread_that_is_deleted_takes_its_time_along(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        Thread(saver, "t").put({"n": 1})
        saver.set_ttl("t", 60)
        saver.delete_thread("t")
        assert saver.get_ttl("t") is None
        Thread(saver, "t").put({"n": 1})
        assert saver.get_ttl("t") is None


def test_threads_of_sqlite_saver_live_from_their_move_on(path: Path) -> None:
    with closing(sqlite3.connect(path, check_same_thread=False)) as conn:
        for name in ("moved", "written", "given"):
            body = {**checkpoint({"n": 1}), "ts": "2020-01-01T00:00:00+00:00"}
            SqliteSaver(conn).put(config(name), body, {}, {})
    with ResilientSaver.from_conn_string(path, ttl=60) as saver:
        assert saver.get_ttl("moved") is None
        saver.set_ttl("given", 30)
        saver.put_writes(config("written", "1"), [("n", 2)], "task")
        assert migrate(saver, thread_ids=["moved"]).threads == 1
        assert [saver.get_ttl(name) for name in ("moved", "written", "given")] == [60, 60, 30]
        assert over(saver) == []
        assert saver.get_tuple(config("given")).checkpoint["channel_values"] == {"n": 1}
        assert export(saver, path.with_name("plain.db")).threads == 3


# --- seen -------------------------------------------------------------------------------------


def test_it_is_seen_and_set_by_commands(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        filled(saver, "t", 2, days=60)
        filled(saver, "u", 2)

    def command(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["--db", str(path), *arguments])

    def said(*arguments: str) -> Any:
        return json.loads(command(*arguments, "--json").stdout)

    assert said("ttl", "t") == {"thread_id": "t", "ttl": None, "expires_at": None}
    assert "for ever" in command("ttl", "t").stdout
    before = datetime.now(timezone.utc)
    shown = said("ttl", "t", "30d")
    end = datetime.fromisoformat(shown["expires_at"])
    assert shown["ttl"] == 30 * DAY
    assert timedelta(0) <= end - before - timedelta(days=30) < timedelta(hours=1)
    assert "30 days" in command("ttl", "t").stdout
    assert said("threads")["threads"][0]["expires_at"] == shown["expires_at"]
    assert said("threads")["threads"][1]["expires_at"] is None
    assert said("show", "t")["expires_at"] == shown["expires_at"]
    assert "30 days" in command("show", "t").output
    assert said("stats")["ttl_threads"] == 1
    assert said("stats", "--thread", "t")["threads"][0]["ttl"] == 30 * DAY
    assert said("ttl", "t", "none")["ttl"] is None
    assert command("ttl", "nobody", "3d").exit_code == 1
    assert command("ttl", "t", "soon").exit_code == 2
    with ResilientSaver.from_conn_string(path) as saver:
        lives(saver, "t", 10)
    assert said("expire", "--dry-run")["threads"] == ["t"]
    assert command("expire").exit_code == 0
    assert said("threads")["threads"][0]["thread_id"] == "u"
