"""Maintenance and the command line on a PostgreSQL server: each works there, or says why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from building import Thread, config
from conftest import make_cipher
from langgraph.checkpoint.sqlite import SqliteSaver
from maintaining import fill, run, seen, state
from serving import fresh_address, server_address

from langgraph_resilient import Cipher, ConfigurationError, ResilientSaver, TamperDetected
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

NAMES = ["copy", "graph", "heir", "long", "pruned", "waiting"]


@pytest.fixture(scope="module")
def filled() -> str:
    """Threads with everything."""
    return str(fill(fresh_address()))  # type: ignore[arg-type]


@pytest.fixture
def address() -> str:
    return fresh_address()


def opened(address: str, **options: Any) -> ResilientSaver:
    return ResilientSaver.from_conn_string(address, **options)


def damage(saver: ResilientSaver, change: str) -> None:
    with saver.cursor() as cursor:
        cursor.execute(change)


def test_a_sound_database_has_no_finding_and_its_figures_add_up(filled: str) -> None:
    with opened(filled) as saver:
        report = verify(saver)
        assert report.ok, report.findings
        assert [info.thread_id for info in threads(saver)] == NAMES
        found = stats(saver)
        assert found.threads == len(NAMES)
        assert found.path == saver._engine.db.where
        assert found.file_bytes >= found.blob_bytes + found.envelope_bytes > 0
        assert (found.wal_bytes, found.free_bytes, found.old_threads) == (0, 0, 0)
        assert sum(info.bytes for info in threads(saver)) <= found.file_bytes


def test_what_is_exported_reads_the_same_with_sqlite_saver(filled: str, tmp_path: Path) -> None:
    target = tmp_path / "plain.db"
    with opened(filled) as saver:
        report = export(saver, target)
        assert (report.threads, report.skipped) == (len(NAMES), [])
        with SqliteSaver.from_conn_string(str(target)) as plain:
            for name in ("graph", "waiting", "heir"):
                assert state(plain, name)[:2] == state(saver, name)[:2]


def test_compacted_threads_read_as_before(address: str) -> None:
    fill(address)  # type: ignore[arg-type]
    with opened(address) as saver:
        before = {name: seen(saver, name) for name in NAMES}
        report = compact(saver)
        assert report.vacuumed, report.not_vacuumed_because
        assert report.frame_bytes_after < report.frame_bytes_before
        assert report.file_bytes_after <= report.file_bytes_before
    with opened(address) as saver:
        assert {name: seen(saver, name) for name in NAMES} == before
        assert verify(saver).ok
        assert gc(saver).blobs == 0


def test_free_space_stays_while_another_session_uses_the_tables(address: str) -> None:
    with opened(address) as saver, opened(address) as other:
        run(saver, "t", 1)
        with other._engine.db.read() as session:
            session.all("threads_all")
            report = compact(saver)
        assert not report.vacuumed
        assert "another session is using the tables" in report.not_vacuumed_because
        run(saver, "t", 2)
        assert compact(saver).vacuumed


def test_pruning_expiring_copying_and_deleting(address: str) -> None:
    with opened(address, ttl=3600) as saver:
        run(saver, "t", 1, 2)
        whole = state(saver, "t")
        saver.copy_thread("t", "copy")
        assert prune(saver, keep=1, threads=["t"]).checkpoints > 0
        assert state(saver, "t")[:3] == whole[:3]
        assert [info.ttl for info in threads(saver)] == [3600, 3600]
        assert expire(saver).threads == []
        saver.set_ttl("copy", 0.001)
        assert expire(saver).threads == ["copy"]
        saver.delete_thread("t")
        assert threads(saver) == []
        gc(saver)
        assert stats(saver).blobs == 0
        assert verify(saver).ok


def test_damage_is_found_and_repaired(address: str) -> None:
    with opened(address) as saver:
        thread = Thread(saver)
        thread.put({"x": 1})
        thread.put({"x": 2})
        damage(
            saver,
            "UPDATE resilient_checkpoints SET frame = set_byte(frame, 0, 255 - get_byte(frame, 0)) "
            "WHERE seq = 2",
        )
    with opened(address) as saver:
        assert [finding.thread_id for finding in verify(saver).findings] == ["t"]
        repair(saver, "t")
        assert saver.get_tuple(config()).checkpoint["channel_values"] == {"x": 1}
        assert verify(saver).ok


@pytest.mark.parametrize(
    "change", ["DROP TABLE resilient_shares", "DROP INDEX resilient_shares_blob"]
)
def test_what_is_missing_is_found(address: str, change: str) -> None:
    with opened(address) as saver:
        Thread(saver).put({"x": 1})
        damage(saver, change)
        name = change.split()[-1]
        found = [finding.message for finding in verify(saver).findings]
        assert f"the table or index {name} is missing" in found


def test_the_key_of_an_encrypted_database_is_changed(address: str) -> None:
    new = Cipher(b"n" * 32)
    with opened(address, cipher=make_cipher()) as saver:
        Thread(saver).put({"x": "harbour" * 400})
    with opened(address, cipher=Cipher(b"n" * 32, bytes(range(32)))) as saver:
        rekey(saver)
    with opened(address, cipher=new) as saver:
        assert saver.get_tuple(config()).checkpoint["channel_values"] == {"x": "harbour" * 400}
        assert verify(saver).ok


def test_an_older_state_is_found_by_its_anchor(address: str, tmp_path: Path) -> None:
    anchor = tmp_path / "anchor"
    with opened(address, rollback_anchor=anchor) as saver:
        Thread(saver).put({"x": 1})
        older = saver.conn.execute("SELECT value FROM resilient_meta WHERE name = 'clock'")
        value = older.fetchone()[0]
        Thread(saver, "u").put({"x": 2})
        with saver.cursor() as cursor:
            cursor.execute("UPDATE resilient_meta SET value = %s WHERE name = 'clock'", (value,))
    with pytest.raises(TamperDetected), opened(address, rollback_anchor=anchor):
        pass


def test_there_is_nothing_of_sqlite_saver_to_move(address: str) -> None:
    with opened(address) as saver, pytest.raises(ConfigurationError, match="within a file"):
        migrate(saver)


# --- the command line -------------------------------------------------------------------------


def command(*arguments: str) -> tuple[int, str, str]:
    pytest.importorskip("typer")
    from typer.testing import CliRunner

    from langgraph_resilient.cli.app import app

    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_the_commands_work_on_a_server(filled: str, tmp_path: Path) -> None:
    code, out, _ = command("--db", filled, "threads", "--json")
    assert code == 0
    assert [item["thread_id"] for item in json.loads(out)["threads"]] == NAMES
    for words in (
        ["verify"],
        ["stats"],
        ["show", "graph"],
        ["ledger", "list", "graph"],
        ["journal", "list", "graph"],
        ["compact", "--dry-run"],
        ["gc", "--dry-run"],
        ["export", str(tmp_path / "plain.db")],
    ):
        assert command(*words, "--db", filled)[0] == 0, words
    code, _, said = command("migrate", "--db", filled)
    assert code == 2
    assert "within a file" in said


def test_a_command_makes_no_tables_by_looking_for_them(address: str) -> None:
    code, _, said = command("--db", address, "threads")
    assert code == 3
    assert "there are no threads in" in said
    with opened(address) as saver, saver._engine.db.read() as session:
        assert session.relations()


def test_a_server_that_is_not_there_is_said_without_the_password() -> None:
    code, _, said = command("--db", "postgresql://ann:secret@/x?host=/nowhere", "threads")
    assert code == 3
    assert "check that the server runs" in said
    assert "secret" not in said
    assert server_address().startswith("postgresql://")
