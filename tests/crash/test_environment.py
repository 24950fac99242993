"""Full disks, read-only places, locks, crowds and clocks: it works, or says clearly what is wrong.

And it works again as soon as the cause is gone.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from building import Thread, config, fork, ids, in_child, wait
from campaign import assert_sound
from langgraph.checkpoint.base import id as id_module
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from langgraph_resilient import ResilientSaver
from langgraph_resilient.errors import (
    DatabaseFull,
    DatabaseLocked,
    DatabaseReadOnly,
    StorageError,
)

NOBODY = 65534


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that an unprivileged child can reach, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="resilient-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        subprocess.run(["chmod", "-R", "u+rwx", str(folder)], check=True)
        shutil.rmtree(folder)


def as_nobody(body: Callable[[], Any]) -> Callable[[], Any]:
    """Root may write everywhere, so what depends on file modes runs as somebody else."""

    def run() -> None:
        if os.geteuid() == 0:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        body()

    return run


def fill_until_refused(saver: ResilientSaver, thread: Thread, error: type[Exception]) -> int:
    """Put incompressible values until the saver refuses one; how many were stored."""
    for n in range(2000):
        try:
            thread.put({"n": n, "noise": os.urandom(20_000)})
        except error:
            return n
    raise AssertionError("the disk never became full")


# --- full -----------------------------------------------------------------------------------


def test_a_size_limit_is_said_and_survived(db_path: str) -> None:
    def child() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with ResilientSaver.from_conn_string(db_path) as saver:
            thread = Thread(saver)
            thread.put({"n": -1})
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
            where = thread.where
            stored = fill_until_refused(saver, thread, StorageError)
            with pytest.raises(StorageError, match=r"agent\.db.*(full|space|limit)"):
                saver.put(*Thread(saver, "more").prepare({"x": os.urandom(300_000)}, None, None))
            assert where != thread.where
            found = [i.checkpoint["channel_values"]["n"] for i in saver.list(config())]
            assert found == list(range(stored - 1, -2, -1))
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            thread.put({"n": "after"})
            assert saver.get(config())["channel_values"]["n"] == "after"
        with ResilientSaver.from_conn_string(db_path) as saver:
            assert saver.get(config())["channel_values"]["n"] == "after"
            assert_sound(saver, db_path)

    assert in_child(child) == 0


def test_a_full_file_system_is_said_and_survived(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount a small file system: {done.stderr.strip()}")
    try:
        path = str(mount / "agent.db")
        ballast = mount / "ballast"
        ballast.write_bytes(bytes(300_000))
        with ResilientSaver.from_conn_string(path) as saver:
            thread = Thread(saver)
            stored = fill_until_refused(saver, thread, DatabaseFull)
            found = [i.checkpoint["channel_values"]["n"] for i in saver.list(config())]
            assert found == list(range(stored - 1, -1, -1))
            ballast.unlink()
            thread.put({"n": "after"})
            assert saver.get(config())["channel_values"]["n"] == "after"
            assert_sound(saver, path)
    finally:
        subprocess.run(["umount", str(mount)], check=True)


# --- read-only ------------------------------------------------------------------------------


def prepare(path: str) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        thread = Thread(saver)
        for n in range(3):
            thread.put({"x": n})


def read_or_typed(open_saver: Callable[[], Any]) -> None:
    """Reading gives the right values or says why not; writing says that it cannot."""
    told = "agent.db"
    try:
        with open_saver() as saver:
            assert saver.get(config())["channel_values"] == {"x": 2}
            assert len(list(saver.list(config()))) == 3
    except StorageError as error:
        told = str(error)
    assert "agent.db" in told
    with pytest.raises(StorageError, match=r"agent\.db"):
        with open_saver() as saver:
            Thread(saver).put({"x": 3})


@pytest.mark.parametrize("query", ["mode=ro", "immutable=1", "mode=ro&immutable=1"])
def test_a_database_opened_for_reading_only(db_path: str, query: str) -> None:
    prepare(db_path)
    with ResilientSaver.from_conn_string(f"file:{db_path}?{query}") as saver:
        assert saver.get(config())["channel_values"] == {"x": 2}
        assert [i.checkpoint["channel_values"]["x"] for i in saver.list(config())] == [2, 1, 0]
        with pytest.raises(DatabaseReadOnly, match="read"):
            Thread(saver).put({"x": 3})
        with pytest.raises(DatabaseReadOnly):
            saver.delete_thread("t")
        assert saver.get(config())["channel_values"] == {"x": 2}
    with ResilientSaver.from_conn_string(db_path) as saver:
        Thread(saver).put({"x": 4})
        assert saver.get(config())["channel_values"] == {"x": 4}


def test_a_missing_file_opened_for_reading_only_is_not_made(db_path: str) -> None:
    with pytest.raises(StorageError, match=r"agent\.db"):
        with ResilientSaver.from_conn_string(f"file:{db_path}?mode=ro") as saver:
            saver.get_tuple(config())
    assert not os.path.exists(db_path)


@pytest.mark.parametrize(
    ("file_mode", "folder_mode"),
    [(0o444, 0o755), (0o444, 0o555), (0o644, 0o555), (0o000, 0o755)],
    ids=["file", "file-and-folder", "folder", "unreadable"],
)
def test_modes_that_forbid_writing(public_folder: Path, file_mode: int, folder_mode: int) -> None:
    path = public_folder / "agent.db"
    prepare(str(path))
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
        os.chown(public_folder, NOBODY, NOBODY)
    path.chmod(file_mode)
    public_folder.chmod(folder_mode)
    code = in_child(
        as_nobody(lambda: read_or_typed(lambda: ResilientSaver.from_conn_string(str(path))))
    )
    assert code == 0
    public_folder.chmod(0o755)
    for found in public_folder.iterdir():  # SQLite gives its side files the mode of the database
        found.chmod(0o644)

    def again() -> None:
        with ResilientSaver.from_conn_string(str(path)) as saver:
            assert saver.get(config())["channel_values"] == {"x": 2}
            Thread(saver).put({"x": 5})

    assert in_child(as_nobody(again)) == 0


def test_a_folder_that_cannot_be_written_is_said(public_folder: Path) -> None:
    public_folder.chmod(0o555)

    def child() -> None:
        with pytest.raises(StorageError, match=r"agent\.db"):
            with ResilientSaver.from_conn_string(public_folder / "agent.db") as saver:
                Thread(saver).put({"x": 1})

    assert in_child(as_nobody(child)) == 0


def test_a_path_that_is_a_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=tmp_path.name):
        with ResilientSaver.from_conn_string(tmp_path) as saver:
            saver.get_tuple(config())


def test_a_new_file_belongs_to_its_owner_alone(db_path: str) -> None:
    old = os.umask(0)
    try:
        with ResilientSaver.from_conn_string(db_path) as saver:
            Thread(saver).put({"x": 1})
            for name in Path(db_path).parent.iterdir():
                assert stat.S_IMODE(name.stat().st_mode) == 0o600, name
    finally:
        os.umask(old)


# --- locked ---------------------------------------------------------------------------------


@contextmanager
def locked_by_another_process(path: str, seconds: float, begin: str) -> Iterator[None]:
    """Another process holds the file's lock from now on for some seconds."""
    ready, tell = os.pipe()

    def child() -> None:
        conn = sqlite3.connect(path, timeout=20, isolation_level=None)
        conn.execute(begin)
        os.write(tell, b"x")
        time.sleep(seconds)
        conn.execute("COMMIT")
        conn.close()

    pid = fork(child)
    os.read(ready, 1)
    try:
        yield
    finally:
        assert wait(pid) == 0
        os.close(ready)
        os.close(tell)


def waits_for_the_lock(path: str, seconds: float, begin: str) -> None:
    prepare(path)
    with ResilientSaver.from_conn_string(path) as saver:
        started = time.monotonic()
        with locked_by_another_process(path, seconds, begin):
            Thread(saver, "u").put({"x": 9})
        assert time.monotonic() - started >= seconds * 0.9
        assert saver.get(config("u"))["channel_values"] == {"x": 9}


@pytest.mark.parametrize("begin", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_file_locked_by_another_process_is_waited_for(db_path: str, begin: str) -> None:
    waits_for_the_lock(db_path, 0.8, begin)


@pytest.mark.campaign
@pytest.mark.parametrize("begin", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_file_locked_for_eight_seconds_is_waited_for(db_path: str, begin: str) -> None:
    waits_for_the_lock(db_path, 8, begin)


def test_a_lock_that_lasts_too_long_is_said_and_survived(db_path: str) -> None:
    prepare(db_path)
    with ResilientSaver.from_conn_string(db_path, busy_timeout=0.1) as saver:
        with locked_by_another_process(db_path, 1.0, "BEGIN IMMEDIATE"):
            assert saver.get(config())["channel_values"] == {"x": 2}
            with pytest.raises(DatabaseLocked, match=r"agent\.db|busy_timeout"):
                Thread(saver).put({"x": 9})
            with pytest.raises(DatabaseLocked):
                saver.delete_thread("t")
        assert saver.get(config())["channel_values"] == {"x": 2}
        Thread(saver).put({"x": 10})
        assert saver.get(config())["channel_values"] == {"x": 10}


def test_opening_a_locked_file_waits(db_path: str) -> None:
    sqlite3.connect(db_path).close()
    with locked_by_another_process(db_path, 0.6, "BEGIN EXCLUSIVE"):
        with ResilientSaver.from_conn_string(db_path) as saver:
            Thread(saver).put({"x": 1})


def test_a_reader_with_a_long_transaction_blocks_no_writer(db_path: str) -> None:
    prepare(db_path)
    reader = sqlite3.connect(db_path, isolation_level=None)
    reader.execute("BEGIN")
    before = reader.execute("SELECT count(*) FROM resilient_checkpoints").fetchone()
    with ResilientSaver.from_conn_string(db_path, busy_timeout=1) as saver:
        thread = Thread(saver, "u")
        for n in range(30):
            thread.put({"x": n, "noise": os.urandom(5000)})
        saver.prune(["u"])
        saver.delete_thread("t")
    assert reader.execute("SELECT count(*) FROM resilient_checkpoints").fetchone() == before
    reader.execute("COMMIT")
    reader.close()


# --- crowds ---------------------------------------------------------------------------------


@pytest.mark.parametrize("attempt", range(3))
def test_eight_processes_may_create_the_file_at_once(db_path: str, attempt: int) -> None:
    gate, opener = os.pipe()

    def worker(k: int) -> None:
        os.close(opener)
        os.read(gate, 1)
        with ResilientSaver.from_conn_string(db_path) as saver:
            thread = Thread(saver, f"w{k}")
            for n in range(3):
                thread.put({"x": n})
            assert saver.get(config(f"w{k}"))["channel_values"] == {"x": 2}

    children = [fork(lambda k=k: worker(k)) for k in range(8)]
    os.close(gate)
    os.close(opener)
    assert [wait(pid) for pid in children] == [0] * 8
    with ResilientSaver.from_conn_string(db_path) as saver:
        assert all(len(list(saver.list(config(f"w{k}")))) == 3 for k in range(8))
        assert_sound(saver, db_path)


# --- clocks ---------------------------------------------------------------------------------


class Count(TypedDict, total=False):
    n: int


def test_the_clock_may_step_back(db_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def graph(saver: ResilientSaver) -> Any:
        builder = StateGraph(Count)
        builder.add_node("tick", lambda state: {"n": state["n"] + 1})
        builder.add_edge(START, "tick")
        builder.add_edge("tick", END)
        return builder.compile(checkpointer=saver)

    real = time.time_ns
    with ResilientSaver.from_conn_string(db_path) as saver:
        graph(saver).invoke({"n": 10}, config())
    monkeypatch.setattr(time, "time_ns", lambda: real() - 3600 * 10**9)
    monkeypatch.setattr(id_module, "_last_v6_timestamp", None)
    with ResilientSaver.from_conn_string(db_path) as saver:
        graph(saver).invoke({"n": 20}, config())
        assert graph(saver).get_state(config()).values == {"n": 21}
        order = ids(saver.list(config()))
        assert order != sorted(order, reverse=True)
        assert [i.metadata["step"] for i in saver.list(config())] == [4, 3, 2, 1, 0, -1]
        saver.prune(["t"])
        assert graph(saver).get_state(config()).values == {"n": 21}
    monkeypatch.undo()
    with ResilientSaver.from_conn_string(db_path) as saver:
        graph(saver).invoke({"n": 30}, config())
        assert graph(saver).get_state(config()).values == {"n": 31}
        assert_sound(saver, db_path)
