"""Compaction: the file gets small, and everything reads, goes on and is checked as before."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from building import Thread, config, facts, observe
from langchain_core.messages import AIMessage, HumanMessage
from maintaining import options_of, run, state
from typer.testing import CliRunner

from langgraph_resilient import ResilientSaver
from langgraph_resilient.cli.app import app
from langgraph_resilient.errors import DataCorrupt
from langgraph_resilient.maintenance import compact, export, gc, rekey, stats, verify

GUARDS = ["checksum", "keyed", "cipher"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


def talk(saver: Any, thread_id: str = "t", *, turns: int = 40, size: int = 900) -> Thread:
    """A conversation of messages that resemble each other."""
    thread = Thread(saver, thread_id)
    said: list[Any] = list(thread.values.get("messages", []))
    for n in range(turns):
        text = f"{thread_id} {n} " + os.urandom(size // 4).hex() + " the same words each time" * 20
        said.append(HumanMessage(text, id=f"h{n}") if n % 2 else AIMessage(text, id=f"a{n}"))
        thread.put({"messages": list(said)})
        saver.put_writes(thread.where, [("messages", said[-1:])], f"task {n}")
    return thread


@pytest.mark.parametrize("guard", GUARDS)
def test_everything_reads_as_before(path: Path, guard: str) -> None:
    options = options_of(guard)
    with ResilientSaver.from_conn_string(path, **options) as saver:
        talk(saver, "a")
        talk(saver, "b", turns=7)
        run(saver, "graph", 1, 2, 3)
        run(saver, "waiting", 1, resume=False)
        saver.copy_thread("a", "copy")
        names = ("a", "b", "graph", "waiting", "copy")
        before = observe(saver, names), state(saver, "waiting"), saver.ledger.entries()
        report = compact(saver)
        assert report.frame_bytes_after < report.frame_bytes_before * 0.8
        assert report.file_bytes_after < report.file_bytes_before * 0.8
        assert report.vacuumed
        assert (observe(saver, names), state(saver, "waiting"), saver.ledger.entries()) == before
        assert verify(saver).findings == []
    with ResilientSaver.from_conn_string(path, **options) as saver:
        assert observe(saver, names) == before[0]
        run(saver, "graph", 4)
        assert verify(saver).findings == []


@pytest.mark.parametrize("guard", GUARDS)
def test_all_other_upkeep_works_on_a_compact_file(path: Path, guard: str, tmp_path: Path) -> None:
    options = options_of(guard)
    with ResilientSaver.from_conn_string(path, **options) as saver:
        talk(saver, "a")
        saver.copy_thread("a", "b")
        run(saver, "graph", 1, 2)
        compact(saver)
        before = observe(saver, ["b"]), state(saver, "graph")
        saver.copy_thread("b", "c")
        saver.delete_thread("a")
        if guard == "cipher":
            rekey(saver)
        gc(saver)
        assert observe(saver, ["b"]) == before[0]
        assert export(saver, tmp_path / "plain.db").skipped == []
        saver.prune(["graph", "c"])
        gc(saver)
        compact(saver)
        assert observe(saver, ["b"]) == before[0]
        assert state(saver, "graph")[:3] == before[1][:3]
        assert verify(saver).findings == []
        saver.delete_thread("b")
        saver.delete_thread("c")
        saver.delete_thread("graph")
        assert gc(saver).blobs == 0
        assert stats(saver).blobs == 0


def test_a_compact_thread_is_left_alone_and_grows_by_what_is_new(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        thread = talk(saver, turns=60)
        compact(saver)
        assert compact(saver).threads == 0
        blobs = stats(saver).blobs
    with ResilientSaver.from_conn_string(path) as saver:  # another process
        found = saver.get_tuple(thread.where)
        assert found is not None
        thread.saver = saver
        said = [*found.checkpoint["channel_values"]["messages"], HumanMessage("new", id="new")]
        thread.put({"messages": said})
        assert stats(saver).blobs == blobs + 1
        assert compact(saver).threads == 0  # so little is not worth it
        talk(saver, "t", turns=30)
        assert compact(saver).threads == 1
        assert verify(saver).findings == []


def test_an_archive_of_which_little_is_named_is_made_anew(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        thread = talk(saver)
        compact(saver)
        thread.saver = saver
        thread.put({"messages": [HumanMessage("only this")]})
        before = facts(saver.get_tuple(config("t")))
        saver.prune(["t"])
        size = stats(saver).template_bytes
        assert compact(saver).threads == 1
        assert stats(saver).template_bytes < size / 4
        assert facts(saver.get_tuple(config("t"))) == {**before, "parent": None}


def test_what_the_log_holds_counts_as_the_databases_size(path: Path) -> None:
    """A database that was just made stands in its write-ahead log; compacting it is no growth."""
    with ResilientSaver.from_conn_string(path) as saver:
        talk(saver)
        report = compact(saver)
        assert path.with_name("agent.db-wal").stat().st_size == 0
        assert report.file_bytes_after == path.stat().st_size < report.file_bytes_before


def test_a_dry_run_tells_what_it_would_come_to(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        talk(saver)
        size = path.stat().st_size, stats(saver)
        told = compact(saver, dry_run=True)
        assert (path.stat().st_size, stats(saver)) == size
        done = compact(saver)
        assert told.frame_bytes_after == pytest.approx(done.frame_bytes_after, rel=0.05)
        assert (told.threads, told.vacuumed, done.vacuumed) == (1, False, True)


def test_an_interrupted_compaction_goes_on(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        for name in "abc":
            talk(saver, name)
        before = observe(saver, "abc")

        def stop(progress: Any) -> None:
            if progress.done == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            compact(saver, progress=stop)
        assert observe(saver, "abc") == before
        assert verify(saver).ok
        assert compact(saver).threads == 1
        assert observe(saver, "abc") == before


def test_a_writer_meanwhile_loses_nothing(path: Path) -> None:
    errors: list[BaseException] = []
    ready = threading.Event()

    def write() -> None:
        try:
            with ResilientSaver.from_conn_string(path) as other:
                for n in range(12):
                    talk(other, f"w{n % 3}", turns=6)
                    ready.set()
        except BaseException as error:
            errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    with ResilientSaver.from_conn_string(path) as saver:
        ready.wait()
        while writer.is_alive():
            compact(saver, vacuum=False)
        writer.join()
        assert errors == []
        seen = observe(saver, ["w0", "w1", "w2"])
        assert [len(seen[name]) for name in sorted(seen)] == [24, 24, 24]
        compact(saver)
        assert observe(saver, ["w0", "w1", "w2"]) == seen
        assert verify(saver).findings == []


def test_the_file_is_not_rewritten_while_another_process_writes(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        talk(saver)
        compact(saver, vacuum=False)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            report = compact(saver)
            assert not report.vacuumed
            assert "another process" in report.not_vacuumed_because
            other.execute("ROLLBACK")
        assert compact(saver).vacuumed


@pytest.mark.parametrize("guard", GUARDS)
def test_damage_in_an_archive_is_found(path: Path, guard: str) -> None:
    options = options_of(guard)
    with ResilientSaver.from_conn_string(path, **options) as saver:
        talk(saver)
        compact(saver)
    with closing(sqlite3.connect(path)) as conn:
        [(frame,)] = conn.execute("SELECT frame FROM resilient_templates")
        at = len(frame) // 2
        broken = frame[:at] + bytes((frame[at] ^ 1,)) + frame[at + 1 :]
        conn.execute("UPDATE resilient_templates SET frame = ?", (broken,))
        conn.commit()
    with ResilientSaver.from_conn_string(path, **options) as saver:
        with pytest.raises(DataCorrupt):
            saver.get_tuple(config("t"))
        assert "template" in {item.kind for item in verify(saver).findings}
        assert [item.thread_id for item in compact(saver).skipped] == ["t"]


def test_noise_and_long_contents_stay_as_they_are(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        thread = Thread(saver, "t")
        thread.put({"big": os.urandom(700_000), "n": 1})
        before = facts(saver.get_tuple(thread.where))
        compact(saver)
        assert facts(saver.get_tuple(thread.where)) == before
        assert verify(saver).ok


@pytest.mark.parametrize("place", ["memory", "connection"])
def test_other_places_are_compacted_too(path: Path, place: str) -> None:
    with closing(sqlite3.connect(path, check_same_thread=False)) as conn:
        saver = (
            ResilientSaver.from_conn_string(":memory:")
            if place == "memory"
            else ResilientSaver(conn)
        )
        with saver:
            talk(saver)
            before = observe(saver, "t")
            assert compact(saver).threads == 1
            assert observe(saver, "t") == before
            talk(saver, "u")
            assert verify(saver).ok


def test_fifty_rounds_take_less_than_300_kilobytes(path: Path) -> None:
    from benchmarks.workloads import SCALES, short_chat

    made = short_chat(SCALES["full"])
    with ResilientSaver.from_conn_string(path, synchronous="OFF") as saver:
        graph = made.build(saver, None)
        for turn in made.turns:
            graph.invoke(turn.inputs, turn.config)
        before = graph.get_state(made.turns[0].config)
        compact(saver)
        assert graph.get_state(made.turns[0].config) == before
    assert path.stat().st_size <= 300_000


@pytest.mark.campaign
def test_recorded_conversations_come_near_to_one_stream_each(path: Path) -> None:
    from benchmarks.workloads import SCALES, real

    made = real(SCALES["full"])
    if made is None:
        pytest.skip("the recordings are not here")
    with ResilientSaver.from_conn_string(path, synchronous="OFF") as saver:
        graph = made.build(saver, None)
        for turn in made.turns:
            graph.invoke(turn.inputs, turn.config)
        compact(saver)
        assert verify(saver).findings == []
    assert path.stat().st_size <= 1.5 * made.floor()


def test_the_command_compacts(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        talk(saver)
    outcome = CliRunner().invoke(app, ["compact", "--db", str(path), "--dry-run", "--json"])
    assert json.loads(outcome.stdout)["threads"] == 1
    outcome = CliRunner().invoke(app, ["compact", "--db", str(path), "--json"])
    assert json.loads(outcome.stdout)["vacuumed"] is True
    assert CliRunner().invoke(app, ["compact", "--db", str(path)]).exit_code == 0
