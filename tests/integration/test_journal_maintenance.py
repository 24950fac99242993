"""Looking after the journal: what `verify` finds in it, what `rekey` seals anew, what is counted."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from building import Thread, config
from conftest import KEY, make_cipher
from journaling import ROOT, answered, begun, new_run, replayed, shown, states, streaming
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage

from langgraph_resilient import Cipher, ResilientSaver
from langgraph_resilient.errors import DataCorrupt, DecryptionFailed
from langgraph_resilient.maintenance import export, migrate, rekey, stats, threads, verify
from langgraph_resilient.records import ordinal

LONG = "a long line of words that are stored once " * 300
GUARDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sealed": {"integrity_key": KEY},
    "cipher": {"cipher": make_cipher()},
}
CALL: Any = {"name": "pay", "args": "{}", "id": "c", "index": 0}
CHUNKS = [*(f"w{n} " for n in range(70)), AIMessageChunk("", tool_call_chunks=[CALL])]


def fill(saver: Any) -> None:
    """Two threads, each with calls in every state and streams in blocks of every kind."""
    for name in ("t", "u"):
        thread = Thread(saver, name)
        thread.put({"messages": [HumanMessage(f"{name} {LONG}", id="1")]}, id=ROOT)
        answered(saver, f"{name} {LONG}", name)
        thread.put({"x": 1}, id="0002")
        answered(saver, f"{name} open {LONG}", name, where={"root": "0002"})
        saver.journal.book.fail(begun(saver, "failed", name), ValueError("x"))
        streaming(saver, CHUNKS, f"{name} stream", name)


@pytest.fixture(params=GUARDS)
def guard(request: pytest.FixtureRequest) -> dict[str, Any]:
    return GUARDS[request.param]


@pytest.fixture
def filled(tmp_path: Path, guard: dict[str, Any]) -> Path:
    path = tmp_path / "agent.db"
    with ResilientSaver.from_conn_string(path, **guard) as saver:
        fill(saver)
    return path


def sql(path: Path, text: str, *values: Any) -> list[tuple]:
    conn = sqlite3.connect(path)
    try:
        found = conn.execute(text, values).fetchall()
        conn.commit()
        return found
    finally:
        conn.close()


# --- verify ---------------------------------------------------------------------------------


def test_a_sound_journal_has_no_finding(filled: Path, guard: dict[str, Any]) -> None:
    steps: list[Any] = []
    with ResilientSaver.from_conn_string(filled, **guard) as saver:
        report = verify(saver, progress=steps.append)
    assert report.findings == []
    assert (report.checked["model_calls"], report.checked["chunk_blocks"]) == (8, 16)
    assert report.checked["unreachable_blobs"] == 0
    assert steps[-1].done == steps[-1].total


@pytest.mark.parametrize(("table", "kind"), [("journal", "journal"), ("chunks", "stream")])
def test_a_flipped_bit_in_any_row_is_found(
    filled: Path, guard: dict[str, Any], table: str, kind: str
) -> None:
    key = "rowid" if table == "journal" else "call || ':' || first"
    rows = sql(filled, f"SELECT {key}, frame FROM resilient_{table}")
    for place, frame in rows:
        cut = len(frame) // 2
        hurt = frame[:cut] + bytes([frame[cut] ^ 1]) + frame[cut + 1 :]
        sql(filled, f"UPDATE resilient_{table} SET frame = ? WHERE {key} = ?", hurt, place)
        with ResilientSaver.from_conn_string(filled, **guard) as saver:
            found = [item.kind for item in verify(saver).findings]
        assert found == [kind], place
        sql(filled, f"UPDATE resilient_{table} SET frame = ? WHERE {key} = ?", frame, place)


ONE = "(SELECT max(call) FROM resilient_journal WHERE state = 2)"
DAMAGE = {
    "a request is another": f"UPDATE resilient_journal SET request = x'00' WHERE call = {ONE}",
    "a parent is another": f"UPDATE resilient_journal SET parent = x'00' WHERE call = {ONE}",
    "a task is text": f"UPDATE resilient_journal SET task = 'text' WHERE call = {ONE}",
    "a root is another": f"UPDATE resilient_journal SET root = x'00' WHERE call = {ONE}",
    "a state is another": f"UPDATE resilient_journal SET state = 4 WHERE call = {ONE}",
    "a state is none": f"UPDATE resilient_journal SET state = 99 WHERE call = {ONE}",
    "a state is text": f"UPDATE resilient_journal SET state = 'x' WHERE call = {ONE}",
    "a call stands elsewhere": f"UPDATE resilient_journal SET call = call + 64 WHERE call = {ONE}",
    "a call is nobody's": "UPDATE resilient_journal SET call = call + (99 << 32) "
    f"WHERE call = {ONE}",
    "frames are text": "UPDATE resilient_journal SET frame = 'text'",
    "frames are empty": "UPDATE resilient_journal SET frame = x''",
    "a value is gone": "DELETE FROM resilient_blobs WHERE part >> 8 = (SELECT max(part) >> 8 "
    "FROM resilient_blobs)",
    "a thread is gone": "DELETE FROM resilient_threads WHERE thread_id = 'u'",
    "a block is text": "UPDATE resilient_chunks SET frame = 'text' WHERE first = 66",
    "a block stands elsewhere": "UPDATE resilient_chunks SET first = 90 WHERE first = 66",
    "a block is another call's": "UPDATE resilient_chunks SET call = call + 1 WHERE first = 66",
    "a block is nobody's": "UPDATE resilient_chunks SET call = call + (99 << 32) WHERE first = 66",
    "the first block is gone": "DELETE FROM resilient_chunks WHERE first = 0",
    "a block is gone": "DELETE FROM resilient_chunks WHERE first = 66",
    "a call with a stream is gone": "DELETE FROM resilient_journal WHERE state = 1",
    "the table is gone": "DROP TABLE resilient_journal",
    "the streams are gone": "DROP TABLE resilient_chunks",
    "an index is gone": "DROP INDEX resilient_journal_open",
}


@pytest.mark.parametrize("what", DAMAGE)
def test_every_kind_of_damage_is_found_and_nothing_raises(
    filled: Path, guard: dict[str, Any], what: str
) -> None:
    sql(filled, "PRAGMA wal_checkpoint(TRUNCATE)")
    with ResilientSaver.from_conn_string(filled, **guard) as saver:
        assert verify(saver).ok
        sql(filled, DAMAGE[what])
        report = verify(saver)
        assert report.findings, what
        assert not report.ok


@pytest.mark.parametrize("hole", [0, 66])
def test_a_stream_with_a_hole_is_not_shown(filled: Path, guard: dict[str, Any], hole: int) -> None:
    sql(filled, "DELETE FROM resilient_chunks WHERE first = ?", hole)
    with ResilientSaver.from_conn_string(filled, **guard) as saver:
        with pytest.raises(DataCorrupt, match="missing"):
            list(saver.stream("t"))


def test_a_finding_names_the_thread_and_the_call(filled: Path, guard: dict[str, Any]) -> None:
    ((call,),) = sql(filled, f"SELECT {ONE}")
    sql(filled, "UPDATE resilient_journal SET state = 4 WHERE call = ?", call)
    with ResilientSaver.from_conn_string(filled, **guard) as saver:
        (finding,) = verify(saver).findings
    assert (finding.kind, finding.thread_id) == ("journal", "u")
    assert f"model call {ordinal(call)}" in finding.message
    assert "run `langgraph-resilient verify`" not in finding.message


# --- counting -------------------------------------------------------------------------------


def test_model_calls_are_counted_by_state(filled: Path, guard: dict[str, Any]) -> None:
    with ResilientSaver.from_conn_string(filled, **guard) as saver:
        found = stats(saver)
        listed = {info.thread_id: info for info in threads(saver)}
        assert found.model_calls == {
            "started": 2,
            "ended": 2,
            "interrupted": 0,
            "retired": 2,
            "failed": 2,
            "discarded": 0,
        }
        assert {name: info.model_calls for name, info in listed.items()} == {"t": 4, "u": 4}
        assert found.model_call_bytes > 8 * 60
        assert found.stream_bytes > 16 * 10
        before = listed["t"].bytes
        streaming(saver, ["x" * 5000], "more", "t")
        after = {info.thread_id: info.bytes for info in threads(saver)}["t"]
        assert after - before > 5000


# --- keys -----------------------------------------------------------------------------------


def test_after_rekey_the_new_key_alone_reads_the_journal(tmp_path: Path) -> None:
    path, old, new = tmp_path / "agent.db", b"o" * 32, b"n" * 32
    with ResilientSaver.from_conn_string(path, cipher=Cipher(old)) as saver:
        fill(saver)
        before, pieces = saver.journal("t"), list(saver.stream("t"))
    with pytest.raises(DecryptionFailed):
        with ResilientSaver.from_conn_string(path, cipher=Cipher(new)) as saver:
            saver.journal("t")
    with ResilientSaver.from_conn_string(path, cipher=Cipher(new, old)) as saver:
        first, again = rekey(saver), rekey(saver)
        assert first.frames - again.frames >= 8 + 16
    with ResilientSaver.from_conn_string(path, cipher=Cipher(new)) as saver:
        assert saver.journal("t") == before
        assert list(saver.stream("t")) == pieces
        assert replayed(saver, f"t open {LONG}").content == f"t open {LONG}, yes"
        report = verify(saver)
        assert report.ok, report.findings


def test_a_call_that_runs_during_rekey_ends(tmp_path: Path) -> None:
    path, old, new = tmp_path / "agent.db", b"o" * 32, b"n" * 32
    with ResilientSaver.from_conn_string(path, cipher=Cipher(old)) as saver:
        Thread(saver).put({"x": 1}, id=ROOT)
    with ResilientSaver.from_conn_string(path, cipher=Cipher(new, old)) as saver:
        record = streaming(saver, ["a"])
        rekey(saver)
        assert shown(saver, record) == ["a"]
        saver.journal.book.end(record, AIMessage("ab"), streamed=True)
    with ResilientSaver.from_conn_string(path, cipher=Cipher(new)) as saver:
        assert states(saver) == ["ended"]
        assert verify(saver).ok


# --- moving ---------------------------------------------------------------------------------


def test_export_and_migrate_leave_the_journal_alone(
    filled: Path, guard: dict[str, Any], tmp_path: Path
) -> None:
    plain = tmp_path / "plain.db"
    with ResilientSaver.from_conn_string(filled, **guard) as saver:
        before = saver.journal("t")
        export(saver, plain)
        migrate(saver)
        assert saver.journal("t") == before
    with ResilientSaver.from_conn_string(plain) as saver:
        assert migrate(saver).threads == 2
        assert saver.journal("t") == []
        assert saver.get_tuple(config("t")) is not None


def test_open_calls_are_given_back_after_maintenance(filled: Path, guard: dict[str, Any]) -> None:
    with ResilientSaver.from_conn_string(filled, **guard) as saver:
        verify(saver)
        saver.prune(["t", "u"])
        stats(saver)
        new_run(saver, "u")
        assert replayed(saver, f"u open {LONG}", "u").content == f"u open {LONG}, yes"
        report = verify(saver)
        assert report.ok, report.findings
        assert report.checked["unreachable_blobs"] == 0
