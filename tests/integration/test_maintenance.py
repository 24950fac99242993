"""Counting and verifying real files."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from building import Thread, checkpoint, config
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from maintaining import fill, options_of, run, sql

from langgraph_resilient import ResilientSaver
from langgraph_resilient.maintenance import export, stats, threads, verify
from langgraph_resilient.store.migrate import newest

TABLES = ("threads", "namespaces", "checkpoints", "writes", "blobs", "templates")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def filled(path: Path) -> Path:
    return fill(path)


# --- verify ---------------------------------------------------------------------------------


def test_a_sound_file_has_no_finding(filled: Path) -> None:
    with ResilientSaver.from_conn_string(filled) as saver:
        steps: list[Any] = []
        report = verify(saver, progress=steps.append)
    assert report.findings == []
    assert report.ok
    assert report.checked["threads"] == 6
    assert report.checked["templates"] > 2
    assert report.checked["shares"] > 50
    assert report.checked["blobs"] > 60
    assert steps[-1].done == steps[-1].total


@pytest.mark.parametrize("guard", ["checksum", "keyed", "cipher"])
@pytest.mark.parametrize("table", TABLES)
def test_a_flipped_byte_in_any_row_is_found(tmp_path: Path, table: str, guard: str) -> None:
    """Also with another row damaged as well: nothing ends the search."""
    path = tmp_path / "agent.db"
    with ResilientSaver.from_conn_string(path, **options_of(guard)) as saver:
        run(saver, "t", 1)
        thread = Thread(saver, "other")
        thread.put({"messages": [HumanMessage("hello " * 40, id="1")], "text": "abc" * 700})
        saver.put_writes(thread.where, [("n", 1)], "task")
    column = "seal" if table in ("threads", "namespaces") else "frame"
    key = "rowid" if table != "writes" else "task"
    rows = sql(path, f"SELECT {key}, {column} FROM resilient_{table}")
    assert len(rows) >= 2
    for chosen in ([rows[0]], rows):
        for name, value in chosen:
            cut = len(value) // 2
            damaged = value[:cut] + bytes([value[cut] ^ 1]) + value[cut + 1 :]
            sql(path, f"UPDATE resilient_{table} SET {column} = ? WHERE {key} = ?", damaged, name)
        with ResilientSaver.from_conn_string(path, **options_of(guard)) as saver:
            report = verify(saver)
        kind = {"writes": "writes"}.get(table, table[:-1])
        mine = [item for item in report.findings if item.kind == kind]
        assert len(mine) >= len(chosen)
        assert not report.ok
        for name, value in chosen:
            sql(path, f"UPDATE resilient_{table} SET {column} = ? WHERE {key} = ?", value, name)
    with ResilientSaver.from_conn_string(path, **options_of(guard)) as saver:
        assert verify(saver).ok


DAMAGE = {
    "a checkpoint is gone": "DELETE FROM resilient_checkpoints WHERE seq = "
    "(SELECT max(head) FROM resilient_namespaces WHERE checkpoints > 2)",
    "an older checkpoint is gone": "DELETE FROM resilient_checkpoints WHERE seq = 2",
    "a checkpoint twice": "INSERT INTO resilient_checkpoints (ns, id, parent, frame) "
    "SELECT ns, x'74' || id, parent, frame FROM resilient_checkpoints WHERE seq = 2",
    "a value is gone": "DELETE FROM resilient_blobs WHERE part >> 8 = "
    "(SELECT min(blob) FROM resilient_shares)",
    "a part is gone": "DELETE FROM resilient_blobs WHERE digest IS NULL AND part & 255 = 1",
    "two values change places": "UPDATE resilient_blobs SET frame = "
    "(SELECT frame FROM resilient_blobs WHERE part = (SELECT max(part) FROM resilient_blobs)) "
    "WHERE part = (SELECT min(part) FROM resilient_blobs)",
    "an address is another": "UPDATE resilient_blobs SET digest = randomblob(16) "
    "WHERE part = (SELECT min(part) FROM resilient_blobs)",
    "a thread's row is gone": "DELETE FROM resilient_threads WHERE thread_id = 'long'",
    "a thread's name is another": "UPDATE resilient_threads SET thread_id = 'no' "
    "WHERE thread_id = 'long'",
    "a thread's name is no text": "UPDATE resilient_threads SET thread_id = "
    "CAST(x'ff80fe' AS TEXT) WHERE thread_id = 'long'",
    "the second way leads elsewhere": "UPDATE resilient_threads SET name_hash = 1 "
    "WHERE thread_id = 'long'",
    "namespaces are gone": "DELETE FROM resilient_namespaces",
    "a namespace is empty": "UPDATE resilient_namespaces SET checkpoints = 0",
    "a head is another": "UPDATE resilient_namespaces SET head = head - 1",
    "shares are gone": "DELETE FROM resilient_shares",
    "a share of one's own": "INSERT INTO resilient_shares "
    "SELECT thread, (thread << 24) + 1 FROM resilient_threads",
    "templates are gone": "DELETE FROM resilient_templates",
    "writes are moved": "UPDATE resilient_writes SET task = x'00' || task",
    "the clock stands elsewhere": "UPDATE resilient_meta SET number = 99 WHERE name = 'clock'",
    "the count of threads is lower": "UPDATE resilient_meta SET number = 1 WHERE name = 'thread'",
    "an index is gone": "DROP INDEX resilient_blobs_digest",
    "a table is gone": "DROP TABLE resilient_shares",
    "a table too many": "CREATE TABLE resilient_other (x)",
    "frames are text": "UPDATE resilient_checkpoints SET frame = 'text'",
    "frames are numbers": "UPDATE resilient_writes SET frame = 12",
    "blobs are empty": "UPDATE resilient_blobs SET frame = x''",
    "names are numbers": "UPDATE resilient_checkpoints SET id = seq",
}


@pytest.mark.parametrize("what", DAMAGE)
def test_every_kind_of_damage_is_found_and_nothing_raises(filled: Path, what: str) -> None:
    with ResilientSaver.from_conn_string(filled) as saver:
        assert verify(saver).ok
        sql(filled, DAMAGE[what])
        report = verify(saver)
        assert not report.ok
        assert report.findings
        assert all(
            "run `langgraph-resilient verify`" not in item.message for item in report.findings
        )


def test_damage_names_what_it_hits(filled: Path) -> None:
    sql(
        filled,
        "UPDATE resilient_blobs SET frame = x'00' || frame WHERE part >> 32 = "
        "(SELECT thread FROM resilient_threads WHERE thread_id = 'long')",
    )
    with ResilientSaver.from_conn_string(filled) as saver:
        hit = {(item.thread_id, item.channel) for item in verify(saver).findings}
        assert ("long", "messages") in hit
        assert ("copy", "messages") in hit
        assert not {"graph", "waiting", "pruned"} & {thread for thread, _ in hit}


def test_pages_that_sqlite_cannot_walk_are_findings(filled: Path) -> None:
    (page_size,) = sql(filled, "PRAGMA page_size")[0]
    (root,) = sql(filled, "SELECT rootpage FROM sqlite_master WHERE name = 'resilient_blobs'")[0]
    with open(filled, "r+b") as file:
        file.seek((root - 1) * page_size)
        file.write(b"\xff" * 40)
    with ResilientSaver.from_conn_string(filled) as saver:
        report = verify(saver)
    assert {"file", "blob"} <= {item.kind for item in report.findings}


def test_writers_beside_a_verification_cause_no_finding(filled: Path) -> None:
    stop = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with ResilientSaver.from_conn_string(filled, synchronous="OFF") as other:
                for n in range(10_000):
                    if stop.is_set():
                        return
                    name = f"busy{n % 3}"
                    thread = Thread(other, name)
                    for k in range(4):
                        thread.put({"messages": [HumanMessage(f"{n} {k} {i}") for i in range(9)]})
                        other.put_writes(thread.where, [("n", "y" * 2000)], f"task{k}")
                    other.prune([name])
                    other.delete_thread(f"copy{n % 3}")
                    other.copy_thread(name, f"copy{n % 3}")
                    other.delete_thread(name)
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        with ResilientSaver.from_conn_string(filled) as saver:
            for _ in range(25):
                report = verify(saver)
                assert report.findings == []
    finally:
        stop.set()
        worker.join()
    assert errors == []


def test_values_of_a_serializer_that_was_not_given_are_no_damage(tmp_path: Path) -> None:
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    path = tmp_path / "agent.db"
    with ResilientSaver.from_conn_string(path, serde=JsonPlusSerializer()) as saver:
        Thread(saver).put({"x": 1})
    with ResilientSaver.from_conn_string(path) as saver:
        report = verify(saver)
    assert report.ok
    assert report.checked["opaque"] >= 1


@dataclass
class Plan:
    goal: str


def test_a_class_that_strict_mode_refuses_is_no_damage(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        Thread(saver).put({"plan": Plan("home"), "long": [Plan("x" * 99)] * 40})
    with ResilientSaver.from_conn_string(path, strict=True) as saver:
        report = verify(saver)
    assert report.ok
    assert report.checked["not_restored"] >= 1


def test_contents_that_nothing_names_are_counted_and_no_damage(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        where = Thread(saver).put({"text": "a" * 3000}, id="1ef00000-0000-6000-8000-000000000001")
        again = checkpoint({"text": "b" * 3000}, id=where["configurable"]["checkpoint_id"])
        saver.put(config(), again, {"source": "loop", "step": 0}, {})
        report = verify(saver)
    assert report.ok
    assert report.checked["unreachable_blobs"] == 1


def test_an_older_copy_is_found_by_its_anchor(path: Path, tmp_path: Path) -> None:
    anchored = {"integrity_key": b"k" * 32, "rollback_anchor": tmp_path / "anchor"}
    with ResilientSaver.from_conn_string(path, **anchored) as saver:
        thread = Thread(saver)
        thread.put({"n": 1})
        old = path.read_bytes(), Path(f"{path}-wal").read_bytes()
        thread.put({"n": 2})
        assert verify(saver).ok
    path.write_bytes(old[0])
    Path(f"{path}-wal").write_bytes(old[1])
    saver = ResilientSaver.from_conn_string(path, **anchored)
    assert not verify(saver).ok
    saver.close()


@pytest.mark.parametrize("backend", ["memory", "connection"])
def test_maintenance_works_on_a_single_connection(path: Path, backend: str) -> None:
    with closing(sqlite3.connect(path, check_same_thread=False)) as conn:
        saver = (
            ResilientSaver(conn)
            if backend == "connection"
            else ResilientSaver.from_conn_string(":memory:")
        )
        run(saver, "t", 1)
        assert verify(saver).ok
        assert stats(saver).threads == 1
        target = path.with_name("plain.db")
        assert export(saver, target).threads == 1
        assert not conn.in_transaction
        saver.close()


# --- threads and stats ----------------------------------------------------------------------


def test_threads_tells_of_every_thread(filled: Path) -> None:
    with SqliteSaver.from_conn_string(str(filled)) as old:
        run(old, "old", 1)
    with ResilientSaver.from_conn_string(filled) as saver:
        found = {info.thread_id: info for info in threads(saver)}
        assert set(found) == {"graph", "waiting", "pruned", "long", "copy", "heir", "old"}
        for name, info in found.items():
            listed = list(saver.list({"configurable": {"thread_id": name}}))
            assert info.checkpoints == len(listed)
            stamps = {item.checkpoint["ts"] for item in listed}
            assert {info.first_ts, info.last_ts} <= stamps
            assert info.source == ("sqlite" if name == "old" else "resilient")
            assert info.bytes > 0
        assert found["graph"].namespaces == 2
        assert found["copy"].bytes < found["long"].bytes / 5


def test_stats_adds_up(filled: Path) -> None:
    with ResilientSaver.from_conn_string(filled) as saver:
        found = stats(saver)
        listed = threads(saver)
    assert found.threads == len(listed) == 6
    assert found.checkpoints == sum(info.checkpoints for info in listed)
    assert found.blob_raw_bytes > found.blob_bytes > 0
    assert found.file_bytes > found.blob_bytes + found.envelope_bytes + found.write_bytes
    assert (found.mode, found.schema, found.old_threads) == ("checksum", newest(), 0)
    assert found.shared_blobs > 50
