"""Looking after the ledger: what `verify` finds in it, what `rekey` seals anew, what is counted."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from building import Thread, config
from calling import (
    answer,
    begin,
    book_of,
    call,
    dead_owner,
    far_owner,
    make_unknown,
    run,
)
from conftest import KEY, make_cipher, tried_now
from langchain_core.messages import HumanMessage

from langgraph_resilient import Cipher, ResilientSaver
from langgraph_resilient.errors import DecryptionFailed, ResilientError
from langgraph_resilient.maintenance import export, migrate, rekey, stats, threads, verify
from langgraph_resilient.records import CallState

LONG = "a long line of words that are stored once " * 300
GUARDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sealed": {"integrity_key": KEY},
    "cipher": {"cipher": make_cipher()},
}
EVERYWHERE = {"key": lambda args: "k", "scope": "global"}


def fill(saver: Any) -> None:
    """Two threads with calls in every state, short and long, and one that holds for all threads."""
    for name in ("t", "u"):
        Thread(saver, name).put({"messages": [HumanMessage(f"{name} {LONG}", id="1")]})
        run(saver, call(name, "short"))
        run(saver, call(name, "long", arguments={"x": LONG}, body=lambda now: answer(LONG)))
        with pytest.raises(ValueError):
            run(saver, call(name, "failed", body=lambda now: int("x")))
        make_unknown(saver, call(name, "unknown", arguments={"x": f"{name} {LONG}"}))
    run(saver, call("u", "everywhere", arguments={"x": LONG}, **EVERYWHERE))
    begin(book_of(saver, far_owner()), call("far", "running"))
    begin(book_of(saver, dead_owner()), call("dead", "left behind"))


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


def test_a_sound_ledger_has_no_finding(filled: Path, guard: dict[str, Any]) -> None:
    steps: list[Any] = []
    with ResilientSaver.from_conn_string(filled, **guard) as saver:
        report = verify(saver, progress=steps.append)
    assert report.findings == []
    assert (report.checked["calls"], report.checked["leases"]) == (11, 4)
    assert report.checked["unreachable_blobs"] == 0
    assert steps[-1].done == steps[-1].total


@pytest.mark.parametrize("table", ["calls", "leases"])
def test_a_flipped_bit_in_any_row_is_found(filled: Path, guard: dict[str, Any], table: str) -> None:
    rows = sql(filled, f"SELECT rowid, frame FROM resilient_{table}")
    for chosen in (*([row] for row in rows), rows):
        for rowid, frame in chosen:
            cut = len(frame) // 2
            hurt = frame[:cut] + bytes([frame[cut] ^ 1]) + frame[cut + 1 :]
            sql(filled, f"UPDATE resilient_{table} SET frame = ? WHERE rowid = ?", hurt, rowid)
        with ResilientSaver.from_conn_string(filled, **guard) as saver:
            report = verify(saver)
        found = [item for item in report.findings if item.kind == table[:-1]]
        assert len(found) == len(chosen)
        for rowid, frame in chosen:
            sql(filled, f"UPDATE resilient_{table} SET frame = ? WHERE rowid = ?", frame, rowid)
    with ResilientSaver.from_conn_string(filled, **guard) as saver:
        assert verify(saver).ok


ONE = "(SELECT call FROM resilient_calls WHERE state = 5 AND call >> 32 > 0 LIMIT 1)"
DAMAGE = {
    "a key is another": f"UPDATE resilient_calls SET key = randomblob(16) WHERE call = {ONE}",
    "a key is short": f"UPDATE resilient_calls SET key = x'00' WHERE call = {ONE}",
    "a key is text": f"UPDATE resilient_calls SET key = 'text' WHERE call = {ONE}",
    "a state is another": f"UPDATE resilient_calls SET state = 4 WHERE call = {ONE}",
    "a state is none": f"UPDATE resilient_calls SET state = 9 WHERE call = {ONE}",
    "a state is text": f"UPDATE resilient_calls SET state = 'x' WHERE call = {ONE}",
    "a version is another": f"UPDATE resilient_calls SET version = 9 WHERE call = {ONE}",
    "a call stands elsewhere": f"UPDATE resilient_calls SET call = call + 4096 WHERE call = {ONE}",
    "a call is another thread's": "UPDATE resilient_calls SET call = call + (1 << 32) "
    f"WHERE call = {ONE}",
    "a call is nobody's": f"UPDATE resilient_calls SET call = call + (99 << 32) WHERE call = {ONE}",
    "a call is everybody's": "UPDATE resilient_calls SET call = call & ((1 << 32) - 1) "
    f"WHERE call = {ONE}",
    "a call twice": "INSERT INTO resilient_calls SELECT (call & ~7) + ((call & 7) + 1) % 8, "
    f"key, state, version, frame FROM resilient_calls WHERE call = {ONE}",
    "frames are text": "UPDATE resilient_calls SET frame = 'text'",
    "frames are empty": "UPDATE resilient_calls SET frame = x''",
    "a value is gone": "DELETE FROM resilient_blobs WHERE part >> 8 = (SELECT max(part) >> 8 "
    "FROM resilient_blobs)",
    "a thread is gone": "DELETE FROM resilient_threads WHERE thread_id = 'dead'",
    "an epoch is another": "UPDATE resilient_leases SET epoch = epoch + 1",
    "an expiry is another": "UPDATE resilient_leases SET expires = expires + 1",
    "a lease is another thread's": "UPDATE resilient_leases SET thread = thread + 90",
    "a lease is text": "UPDATE resilient_leases SET frame = 'text'",
    "the table is gone": "DROP TABLE resilient_calls",
    "the leases are gone": "DROP TABLE resilient_leases",
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


def test_a_finding_names_the_thread_and_the_call(filled: Path, guard: dict[str, Any]) -> None:
    ((key,),) = sql(filled, f"SELECT key FROM resilient_calls WHERE call = {ONE}")
    sql(filled, f"UPDATE resilient_calls SET version = 9 WHERE call = {ONE}")
    with ResilientSaver.from_conn_string(filled, **guard) as saver:
        (finding,) = verify(saver).findings
    assert (finding.kind, finding.thread_id) == ("call", "t")
    assert key.hex() in finding.message
    assert "run `langgraph-resilient verify`" not in finding.message


@pytest.mark.parametrize("name", tried_now(GUARDS, "plain", "cipher"))
def test_a_damaged_call_is_never_taken_for_one_that_was_not_made(tmp_path: Path, name: str) -> None:
    """Whatever is altered in a row that can still be found: the body does not run."""
    path, guard = tmp_path / "agent.db", GUARDS[name]
    with ResilientSaver.from_conn_string(path, **guard) as saver:
        run(saver, call())
    whole = path.read_bytes()
    for column, value in (
        ("key", "randomblob(16)"),
        ("key", "x'00'"),
        ("state", "3"),
        ("state", "4"),
        ("version", "version + 1"),
        ("frame", "x'00' || frame"),
        ("frame", "x''"),
    ):
        sql(path, f"UPDATE resilient_calls SET {column} = {value}")
        sql(path, "PRAGMA wal_checkpoint(TRUNCATE)")
        runs: list[int] = []
        with ResilientSaver.from_conn_string(path, **guard) as saver:
            with pytest.raises(ResilientError, match="damaged"):
                run(saver, call(body=lambda now, runs=runs: runs.append(1)))
            for look in (lambda s=saver: s.ledger.entries("t"), saver.ledger.unknown):
                with pytest.raises(ResilientError, match="damaged"):
                    look()
        assert runs == []
        path.write_bytes(whole)


# --- counting -------------------------------------------------------------------------------


def test_calls_are_counted_by_what_is_true_of_them(filled: Path, guard: dict[str, Any]) -> None:
    with ResilientSaver.from_conn_string(filled, **guard) as saver:
        found = stats(saver)
        listed = {info.thread_id: info for info in threads(saver)}
        assert found.calls == {
            "started": 1,
            "unknown": 3,
            "suspended": 0,
            "failed": 2,
            "succeeded": 5,
        }
        assert sum(found.calls.values()) == sum(info.calls for info in listed.values()) == 11
        assert found.call_bytes > 11 * 80
        unknown = {name: info.unknown_calls for name, info in listed.items()}
        assert unknown == {"t": 1, "u": 1, "far": 0, "dead": 1}
        assert {name: info.calls for name, info in listed.items()} == {
            "t": 4,
            "u": 5,
            "far": 1,
            "dead": 1,
        }
        before = listed["dead"].bytes
        assert before > 80
        assert len(saver.ledger.unknown()) == 3


def test_a_damaged_call_is_counted_as_unknown(filled: Path, guard: dict[str, Any]) -> None:
    """Its outcome cannot be read; lists of threads are wanted all the more then."""
    sql(filled, "UPDATE resilient_calls SET frame = x'' WHERE state = 2")
    sql(filled, f"UPDATE resilient_calls SET state = 9 WHERE call = {ONE}")
    with ResilientSaver.from_conn_string(filled, **guard) as saver:
        listed = {info.thread_id: info for info in threads(saver)}
        assert listed["t"].unknown_calls == 2
        assert stats(saver).calls["unknown"] == 4


# --- keys -----------------------------------------------------------------------------------


def test_after_rekey_the_new_key_alone_reads_the_ledger(tmp_path: Path) -> None:
    path, old, new = tmp_path / "agent.db", b"o" * 32, b"n" * 32
    with ResilientSaver.from_conn_string(path, cipher=Cipher(old)) as saver:
        fill(saver)
        before = saver.ledger.entries()
    with pytest.raises(DecryptionFailed):
        with ResilientSaver.from_conn_string(path, cipher=Cipher(new)) as saver:
            saver.ledger.entries()
    with ResilientSaver.from_conn_string(path, cipher=Cipher(new, old)) as saver:
        first, again = rekey(saver), rekey(saver)
        assert first.frames - again.frames >= 11 + 4
    with ResilientSaver.from_conn_string(path, cipher=Cipher(new)) as saver:
        assert saver.ledger.entries() == before
        assert run(saver, call("t", "short", body=lambda now: "again")).content == "sent short"
        assert run(saver, call("t", "new")).content == "sent new"
        found = run(saver, call("new", "x", arguments={"x": LONG}, **EVERYWHERE))
        assert found.content == "sent everywhere"
        report = verify(saver)
        assert report.ok, report.findings


def test_a_call_that_runs_during_rekey_is_settled(tmp_path: Path) -> None:
    path, old, new = tmp_path / "agent.db", b"o" * 32, b"n" * 32
    with ResilientSaver.from_conn_string(path, cipher=Cipher(old)) as saver:
        run(saver, call(id="before"))
    with ResilientSaver.from_conn_string(path, cipher=Cipher(new, old)) as saver:
        run(saver, call(id="c", body=lambda now: str(rekey(saver).threads)))
        run(saver, call(id="after"))
    with ResilientSaver.from_conn_string(path, cipher=Cipher(new)) as saver:
        assert {entry.state for entry in saver.ledger.entries("t")} == {"succeeded"}
        assert verify(saver).ok


# --- moving ---------------------------------------------------------------------------------


def test_export_and_migrate_leave_the_ledger_alone(
    filled: Path, guard: dict[str, Any], tmp_path: Path
) -> None:
    plain = tmp_path / "plain.db"
    with ResilientSaver.from_conn_string(filled, **guard) as saver:
        before = saver.ledger.entries()
        export(saver, plain)
        migrate(saver)
        assert saver.ledger.entries() == before
    with ResilientSaver.from_conn_string(plain) as saver:
        assert migrate(saver).threads == 2
        assert saver.ledger.entries() == []
        assert saver.get_tuple(config("t")) is not None


def test_states_on_record_have_names_that_operators_see() -> None:
    assert [state.name.lower() for state in CallState] == [
        "started",
        "unknown",
        "suspended",
        "failed",
        "succeeded",
    ]
