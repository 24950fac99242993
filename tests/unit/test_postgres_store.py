"""PostgreSQL: transactions, group commit, lost lines. With a real server and real sockets."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from building import Thread, config, fork, in_child, wait
from cutting import line_to
from serving import fresh_address

from langgraph_resilient import ResilientSaver
from langgraph_resilient.errors import (
    ConfigurationError,
    DatabaseCorrupt,
    DatabaseFull,
    DatabaseLocked,
    DatabaseReadOnly,
    DatabaseUnreachable,
    SaverClosed,
    StorageError,
    ValueRefused,
)
from langgraph_resilient.maintenance import verify
from langgraph_resilient.store.failures import Conflict
from langgraph_resilient.store.session import Session

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def address() -> str:
    return fresh_address()


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short name: sockets must have one."""
    with tempfile.TemporaryDirectory(prefix="pg") as made:
        yield Path(made)


@pytest.fixture
def saver(address: str) -> Iterator[ResilientSaver]:
    with ResilientSaver.from_conn_string(address, busy_timeout=5) as opened:
        yield opened


def values(saver: ResilientSaver, thread_id: str = "t") -> Any:
    found = saver.get_tuple(config(thread_id))
    return found and found.checkpoint["channel_values"]


def end_sessions(saver: ResilientSaver, address: str) -> None:
    """The server ends every session of a saver."""
    import psycopg

    with saver._engine.db.read() as session:
        names = [session.raw("SELECT current_schema()")[0][0]]
    with psycopg.connect(address, autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(l.pid, 5000) FROM pg_stat_activity AS l "
            "WHERE l.pid <> pg_backend_pid() AND l.application_name = %s",
            (f"test {names[0]}",),
        )


@pytest.fixture
def named(address: str) -> str:
    """An address whose sessions can be told from those of other tests."""
    schema = address.rsplit("%3D", 1)[1]
    return f"{address}&application_name=test%20{schema}"


# --- transactions -----------------------------------------------------------------------------


def test_a_row_that_is_there_already_is_a_conflict_and_the_transaction_goes_on(
    saver: ResilientSaver,
) -> None:
    Thread(saver).put({"x": 1})

    def work(session: Session) -> Any:
        with pytest.raises(Conflict):
            session.insert(
                "checkpoint_insert", 1, session.all("checkpoints_keys", 1)[0][1], 1, None, b""
            )
        with pytest.raises(Conflict):
            session.many("blob_insert", [(1 << 40, None, b"a"), (1 << 40, None, b"b")])
        return session.one("thread_by_number", 1)

    assert saver._engine.db.write(work)[0] == "t"


def test_a_transaction_that_failed_unnoticed_is_not_taken_for_stored(saver: ResilientSaver) -> None:
    def work(session: Session) -> None:
        session.run("meta_put", "extra", 1, b"")
        with pytest.raises(StorageError):
            session.raw("SELECT no_such_column FROM resilient_meta")

    with pytest.raises(StorageError, match="nothing was stored"):
        saver._engine.db.write(work)
    with saver._engine.db.read() as session:
        assert "extra" not in [row[0] for row in session.all("meta_all")]


def test_a_failing_piece_undoes_only_itself(saver: ResilientSaver) -> None:
    saver.setup()
    db = saver._engine.db

    def put(name: str, then: Callable[[Session], Any] = str) -> Any:
        def work(session: Session) -> None:
            session.run("meta_put", name, 1, b"")
            then(session)

        return db.enqueue(work)

    first, bad, last = put("a"), put("b", lambda session: session.raw("SELECT nothing")), put("c")
    db.finish(first)
    with pytest.raises(StorageError):
        db.finish(bad)
    db.finish(last)
    with db.read() as session:
        assert {"a", "c"} < {row[0] for row in session.all("meta_all")}
        assert "b" not in {row[0] for row in session.all("meta_all")}


def test_a_reader_sees_one_state_while_others_write(saver: ResilientSaver) -> None:
    Thread(saver).put({"x": 1})
    with saver._engine.db.read() as session:
        before = session.all("checkpoints_keys", 1)
        Thread(saver, "t").put({"x": 2})
        assert session.all("checkpoints_keys", 1) == before
        with pytest.raises(DatabaseReadOnly):
            session.run("meta_put", "x", 1, b"")
    assert values(saver) == {"x": 2}


def test_a_writer_that_waits_too_long_is_told(saver: ResilientSaver, address: str) -> None:
    saver.setup()
    with ResilientSaver.from_conn_string(address, busy_timeout=0.05) as other:
        other.setup()

        def work(session: Session) -> None:
            with pytest.raises(DatabaseLocked, match="try again, or raise busy_timeout"):
                Thread(other).put({"x": 1})

        saver._engine.db.write(work)
        Thread(other).put({"x": 1})
        assert values(saver) == {"x": 1}


def test_ctrl_c_while_another_writer_is_waited_for_leaves_the_saver_sound(address: str) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def body() -> None:
        with ResilientSaver.from_conn_string(address) as saver:
            with ResilientSaver.from_conn_string(address) as other:
                thread, held, free = Thread(saver), threading.Event(), threading.Event()
                saver.setup()
                other.setup()
                work = [lambda _: (held.set(), free.wait())]
                writer = threading.Thread(target=other._engine.db.write, args=work)
                writer.start()
                held.wait()
                signal.signal(signal.SIGALRM, interrupt)
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                with pytest.raises(KeyboardInterrupt):
                    thread.put({"x": 1})
                free.set()
                writer.join()
                thread.put({"x": 2})
                assert values(saver) == {"x": 2}

    assert in_child(body) == 0


def test_a_process_that_stands_still_in_a_transaction_gives_way(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from langgraph_resilient.store import postgres

    monkeypatch.setattr(postgres, "_STILL", 0.2)
    with ResilientSaver.from_conn_string(address) as saver:
        saver.setup()

        def work(session: Session) -> None:
            time.sleep(0.6)
            session.run("meta_put", "late", 1, b"")

        with pytest.raises(DatabaseLocked, match="stood still"):
            saver._engine.db.write(work)
        Thread(saver).put({"x": 1})
        assert values(saver) == {"x": 1}


@pytest.mark.parametrize(("option", "setting"), [("FULL", "on"), ("NORMAL", "off")])
def test_a_commit_waits_for_the_disk_as_the_option_says(
    address: str, option: Any, setting: str
) -> None:
    with ResilientSaver.from_conn_string(address, synchronous=option) as saver:
        saver.setup()
        found = saver._engine.db.write(lambda session: session.raw("SHOW synchronous_commit"))
        assert found == [(setting,)]


def test_a_server_that_waits_for_no_disk_by_itself_does_so_for_us(address: str) -> None:
    place = f"{address}%20-csynchronous_commit%3Doff"
    with ResilientSaver.from_conn_string(place) as saver:
        saver.setup()
        found = saver._engine.db.write(lambda session: session.raw("SHOW synchronous_commit"))
        assert found == [("on",)]


def test_processes_make_the_tables_at_once_and_share_a_thread(address: str) -> None:
    def work() -> None:
        with ResilientSaver.from_conn_string(address) as saver:
            for n in range(5):
                Thread(saver, "t").put({"x": n})

    assert [wait(pid) for pid in [fork(work) for _ in range(4)]] == [0] * 4
    with ResilientSaver.from_conn_string(address) as saver:
        assert len(list(saver.list(config()))) == 20
        assert verify(saver).ok


def test_threads_of_one_saver_share_commits(saver: ResilientSaver) -> None:
    def work(name: str) -> None:
        thread = Thread(saver, name)
        for n in range(10):
            thread.put({"x": n, "text": name * 2000})

    workers = [threading.Thread(target=work, args=(f"t{k}",)) for k in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [values(saver, f"t{k}")["x"] for k in range(6)] == [9] * 6
    assert verify(saver).ok


# --- a line that is lost ----------------------------------------------------------------------


def test_an_idle_saver_goes_on_after_its_sessions_were_ended(named: str, address: str) -> None:
    with ResilientSaver.from_conn_string(named) as saver:
        thread = Thread(saver)
        thread.put({"x": 1})
        assert values(saver) == {"x": 1}
        end_sessions(saver, address)
        assert values(saver) == {"x": 1}
        end_sessions(saver, address)
        thread.put({"x": 2})
        assert values(saver) == {"x": 2}


def test_a_session_that_ends_in_a_transaction_stores_nothing(named: str, address: str) -> None:
    with ResilientSaver.from_conn_string(named) as saver:
        saver.setup()

        def work(session: Session) -> None:
            session.run("meta_put", "lost", 1, b"")
            end_sessions(saver, address)
            session.run("meta_put", "lost", 2, b"")

        with pytest.raises(DatabaseUnreachable):
            saver._engine.db.write(work)
        with saver._engine.db.read() as session:
            assert "lost" not in [row[0] for row in session.all("meta_all")]
        Thread(saver).put({"x": 1})


def test_a_commit_whose_answer_was_lost_is_found_out(address: str, folder: Path) -> None:
    with line_to(address, folder) as (line, place), ResilientSaver.from_conn_string(place) as saver:
        thread = Thread(saver)
        thread.put({"x": 1})
        line.cut = "after"
        thread.put({"x": 2})
        assert line.cuts == 1
        thread.put({"x": 3})
        found = [item.checkpoint["channel_values"]["x"] for item in saver.list(config())]
        assert found == [3, 2, 1]
        assert verify(saver).ok


def test_a_commit_that_never_arrived_is_an_error_and_can_be_repeated(
    address: str, folder: Path
) -> None:
    with line_to(address, folder) as (line, place), ResilientSaver.from_conn_string(place) as saver:
        thread = Thread(saver)
        where = thread.put({"x": 1})
        line.cut = "before"
        with pytest.raises(DatabaseUnreachable):
            thread.put({"x": 2})
        assert values(saver) == {"x": 1}
        thread.where = where
        thread.put({"x": 3})
        assert values(saver) == {"x": 3}
        assert verify(saver).ok


def cut_at(address: str, folder: Path, cut: Any, number: int) -> tuple[list[str], bool]:
    """What comes of a step of a thread whose line is cut at a message; whether it was cut."""
    name, came = f"t{number}", []
    with line_to(address, folder) as (line, place), ResilientSaver.from_conn_string(place) as saver:
        thread = Thread(saver, name)
        where = thread.put({"x": 0})
        line.cut, line.at = cut, number
        for step in (
            lambda: thread.put({"x": 1, "text": f"{number} " * 1000}),
            lambda: saver.put_writes(thread.where, [("x", 2)], "task"),
            lambda: saver.get_tuple(config(name)),
        ):
            try:
                step()
                came.append("done")
            except DatabaseUnreachable:
                came.append("lost")
        line.cut = None
        found = saver.get_tuple(config(name))
        assert found.checkpoint["channel_values"]["x"] == (1 if came[0] == "done" else 0)
        assert bool(found.pending_writes) == (came[1] == "done")
        thread.where = where if came[0] == "lost" else thread.where
        thread.put({"x": 3})
        assert values(saver, name)["x"] == 3
        return came, line.cuts > 0


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_line_may_be_cut_at_any_message(address: str, folder: Path, cut: Any) -> None:
    """What was lost is said to be lost, what was not is there, and the thread goes on."""
    said: list[list[str]] = []
    for number in range(60):
        place = folder / str(number)
        place.mkdir()
        came, was_cut = cut_at(address, place, cut, number)
        said.append(came)
        if not was_cut:
            break
    assert said[-1] == ["done"] * 3
    assert ["lost", "lost", "done"] in said or ["lost", "done", "done"] in said
    assert ["done", "lost", "done"] in said
    with ResilientSaver.from_conn_string(address) as saver:
        assert verify(saver).ok


def test_a_commit_of_which_nobody_knows_is_said_so(address: str, folder: Path) -> None:
    with line_to(address, folder) as (line, place):
        saver = ResilientSaver.from_conn_string(place, busy_timeout=0.1)
        thread = Thread(saver)
        thread.put({"x": 1})
        line.then_gone = True
        line.cut = "after"
        with pytest.raises(DatabaseUnreachable, match="could not be found out"):
            thread.put({"x": 2})
        saver.close()


def test_a_streams_piece_is_stored_over_a_new_line(named: str, address: str) -> None:
    with ResilientSaver.from_conn_string(named) as saver:
        saver.setup()
        quick = saver._engine.quick
        quick.write([("chunks_delete", (1, 1))])
        end_sessions(saver, address)
        quick.write([("chunks_delete", (1, 1)), ("chunks_delete", (2, 2))])


def test_a_streams_piece_waits_for_a_deletion_and_is_dropped_with_its_call(
    saver: ResilientSaver,
) -> None:
    saver.setup()
    db, quick = saver._engine.db, saver._engine.quick
    call = 1 << 32
    db.write(lambda session: session.insert("journal_insert", call, 0, b"", b"", b"", b"", b""))
    quick.write([("chunk_insert", (0, b"a", call))])
    writer = threading.Thread(target=quick.write, args=([("chunk_insert", (1, b"b", call))],))

    def work(session: Session) -> None:
        session.run("journal_delete", call, call)
        writer.start()
        writer.join(0.6)  # longer than the writer waits at once
        assert writer.is_alive()
        session.run("chunks_delete", call, call)

    db.write(work)
    writer.join()
    with db.read() as session:
        assert session.all("chunks_in", call, call) == []


# --- who may do what --------------------------------------------------------------------------


def test_who_may_only_read_reads(saver: ResilientSaver, address: str) -> None:
    Thread(saver).put({"x": 1})
    place = f"{address}%20-cdefault_transaction_read_only%3Don"
    with ResilientSaver.from_conn_string(place) as reader:
        assert values(reader) == {"x": 1}
        with pytest.raises(DatabaseReadOnly, match="opened for reading only"):
            Thread(reader).put({"x": 2})


def test_an_empty_database_that_cannot_be_written_has_no_threads(address: str) -> None:
    place = f"{address}%20-cdefault_transaction_read_only%3Don"
    with ResilientSaver.from_conn_string(place) as reader:
        assert values(reader) is None


def test_a_search_path_without_a_schema_says_what_to_do(address: str) -> None:
    place = address.rsplit("%3D", 1)[0] + "%3Dnowhere"
    with pytest.raises(ConfigurationError, match="CREATE SCHEMA"):
        ResilientSaver.from_conn_string(place).setup()


def test_a_closed_saver_says_so(address: str) -> None:
    saver = ResilientSaver.from_conn_string(address)
    saver.setup()
    saver.close()
    saver.close()
    with pytest.raises(SaverClosed):
        saver.get_tuple(config())


# --- names, clocks and the driver -------------------------------------------------------------


@pytest.mark.parametrize("name", ["a\x00b", "\ufdd0", "\ufdd00\x00\ufdd01", "ü\U0001f600"])
def test_every_name_comes_back(saver: ResilientSaver, name: str) -> None:
    Thread(saver, name, ns=name).put({"x": name})
    [found] = list(saver.list(None))
    assert found.config["configurable"]["thread_id"] == name
    assert found.config["configurable"]["checkpoint_ns"] == name
    assert saver.get(config(name, ns=name))["channel_values"] == {"x": name}


def test_a_name_that_is_too_long_is_refused(saver: ResilientSaver) -> None:
    name = "".join(chr(0x4E00 + n * 7919 % 20000) for n in range(3000))
    with pytest.raises(ValueRefused, match="2,600 bytes"):
        Thread(saver, name).put({"x": 1})
    Thread(saver).put({"x": 1})


def test_leases_run_by_the_servers_clock(saver: ResilientSaver) -> None:
    saver.setup()
    [(there,)] = saver.conn.execute(
        "SELECT extract(epoch FROM clock_timestamp())::float8"
    ).fetchall()
    assert abs(saver._engine.now() - there) < 1


@pytest.mark.parametrize(
    "text",
    [
        "postgres://ann:sec%ret@h/db",
        "postgresql://ann:se@cret@h/db",
        "postgresql://ann:se/cret@h/db",
        "postgresql://ann:se?cret@h/db",
    ],
)
def test_a_malformed_address_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read") as caught:
        ResilientSaver.from_conn_string(text)
    assert "ret@h" not in str(caught.value)


def test_an_address_names_database_and_host_only() -> None:
    saver = ResilientSaver.from_conn_string("postgresql://ann:secret@example/shop?sslmode=require")
    assert saver._engine.db.where == "PostgreSQL database shop on example"


def test_with_more_than_one_host_all_connections_go_to_the_primary() -> None:
    from langgraph_resilient.store.links import Address

    assert "target_session_attrs=primary" in Address("postgresql://a,b/shop")._given
    assert (
        "target_session_attrs=any"
        in Address("postgresql://a,b/shop?target_session_attrs=any")._given
    )
    assert "target_session_attrs" not in Address("postgresql://a/shop")._given


CODES = {
    "23505": Conflict,
    "40P01": DatabaseLocked,
    "55P03": DatabaseLocked,
    "53100": DatabaseFull,
    "53300": DatabaseUnreachable,
    "57P01": DatabaseUnreachable,
    "08006": DatabaseUnreachable,
    "25006": DatabaseReadOnly,
    "42501": DatabaseReadOnly,
    "28P01": DatabaseUnreachable,
    "3D000": DatabaseUnreachable,
    "3F000": ConfigurationError,
    "22P05": ValueRefused,
    "54000": ValueRefused,
    "XX001": DatabaseCorrupt,
    "XX000": StorageError,
    "58030": DatabaseUnreachable,
    "57014": StorageError,
    "42601": StorageError,
}


@pytest.mark.parametrize("code", CODES)
def test_errors_of_the_server_are_told_in_our_words(code: str) -> None:
    errors = pytest.importorskip("psycopg").errors
    from langgraph_resilient.store.postgres_failures import translated

    found = translated(errors.lookup(code)("it says"), "here")
    assert type(found) is CODES[code]
    assert "it says" in str(found)


def in_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_file_needs_no_driver_of_a_server() -> None:
    code = """
import sys
from langgraph_resilient import ResilientSaver
with ResilientSaver.from_conn_string(":memory:") as saver:
    saver.get_tuple({"configurable": {"thread_id": "t"}})
print([name for name in sys.modules if name.startswith("psycopg")])
"""
    assert in_python(code) == "[]\n"


def test_a_missing_driver_is_named_with_its_extra() -> None:
    code = """
import sys
sys.modules["psycopg"] = None
from langgraph_resilient import ConfigurationError, ResilientSaver
try:
    ResilientSaver.from_conn_string("postgresql://h/db")
except ConfigurationError as error:
    print(error)
"""
    assert "pip install 'langgraph-resilient[postgres]'" in in_python(code)
