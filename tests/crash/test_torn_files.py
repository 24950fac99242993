"""Copies of the files taken while a process writes, and a WAL that was cut anywhere.

A copy of the database and its WAL as they stood at one instant is what a power cut or a snapshot
of the disk leaves. It must open to a prefix of what was done, in the order it was done.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from building import assert_running, fork, kill
from campaign import ALL_NAMES, History, Log, assert_sound, is_between, visible, work

from langgraph_resilient import ResilientSaver
from langgraph_resilient.errors import ResilientError

WAL_HEADER, FRAME_HEADER = 32, 24


@contextmanager
def writer(
    path: Path, seed: int, *, limit: int = 100_000, **options: Any
) -> Iterator[tuple[int, Log]]:
    """A process that works on the campaign, and its log; it is killed at the end.

    When the limit is reached the process sleeps with its saver open, so that the WAL stays.
    """
    log = Log(str(path) + ".log")

    @contextmanager
    def stay_open() -> Iterator[ResilientSaver]:
        with ResilientSaver.from_conn_string(str(path), **options) as saver:
            yield saver
            signal.pause()

    pid = fork(partial(work, stay_open, log, seed, limit=limit))
    try:
        yield pid, log
    finally:
        kill(pid)


def wait_until_done(pid: int, log: Log, number: int) -> None:
    deadline = time.monotonic() + 60
    while log.read()[0] < number:
        assert_running(pid)
        assert time.monotonic() < deadline, "the writer does not come on"
        time.sleep(0.002)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process stands still meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def copy_files(source: Path, target: Path, suffixes: tuple[str, ...] = ("", "-wal")) -> None:
    """Copy the database and its WAL, in the order given."""
    target.parent.mkdir(exist_ok=True)
    for suffix in suffixes:
        if os.path.exists(f"{source}{suffix}"):
            shutil.copyfile(f"{source}{suffix}", f"{target}{suffix}")


def read(path: Path) -> dict[str, list[dict]]:
    with ResilientSaver.from_conn_string(str(path)) as saver:
        return visible(saver)


def copies_while_stopped(folder: Path, seed: int, count: int) -> None:
    dice = random.Random(seed)
    path, history, taken = folder / "agent.db", History(seed), []
    with writer(path, seed) as (pid, log):
        wait_until_done(pid, log, 1)
        for n in range(count):
            time.sleep(dice.random() * 0.04)
            with stopped(pid):
                copy_files(path, folder / f"copy{n}" / "agent.db")
                taken.append((folder / f"copy{n}" / "agent.db", *log.read()))
    for copied, done, begun in taken:
        with ResilientSaver.from_conn_string(str(copied)) as saver:
            found = visible(saver)
            assert is_between(found, history.at(done), history.at(begun)), (seed, done, begun)
            assert_sound(saver, str(copied))


def test_a_copy_of_one_instant_holds_all_that_was_acknowledged(tmp_path: Path) -> None:
    copies_while_stopped(tmp_path, 7, 15)


@pytest.mark.campaign
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_copies_of_one_instant(tmp_path: Path, seed: int) -> None:
    copies_while_stopped(tmp_path, seed, 60)


def thread_states(history: History, last: int) -> dict[str, list[Any]]:
    """Each state that each thread had after some operation up to ``last``."""
    known: dict[str, list[Any]] = {name: [] for name in ALL_NAMES}
    for number in range(last + 1):
        for name in ALL_NAMES:
            state = history.at(number).get(name)
            if not known[name] or known[name][-1] != state:
                known[name].append(state)
    return known


@pytest.mark.parametrize("order", [("", "-wal"), ("-wal", "")], ids=["db-first", "wal-first"])
def test_a_copy_smeared_over_time_is_some_old_state_or_an_error(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    """Without a stop the two files are of different moments: no state may be made up."""
    seed, dice, taken = 11, random.Random(11), []
    path = tmp_path / "agent.db"
    with writer(path, seed) as (pid, log):
        wait_until_done(pid, log, 1)
        for n in range(12):
            time.sleep(dice.random() * 0.05)
            copy_files(path, tmp_path / f"copy{n}" / "agent.db", order)
            taken.append((tmp_path / f"copy{n}" / "agent.db", log.read()[1]))
    history = History(seed)
    known = thread_states(history, taken[-1][1] + 1)
    for copied, _ in taken:
        try:
            with ResilientSaver.from_conn_string(str(copied)) as saver:
                for name in ALL_NAMES:
                    try:
                        found = visible(saver, [name]).get(name)
                    except ResilientError:
                        continue
                    assert found in known[name], (copied, name)
        except ResilientError:
            continue


# --- the WAL, cut ---------------------------------------------------------------------------


def cuts(wal: bytes, sample: int | None, dice: random.Random) -> list[int]:
    """Lengths at each frame boundary and a few bytes around it, in growing order."""
    size = FRAME_HEADER + struct.unpack(">I", wal[8:12])[0]
    ends = list(range(WAL_HEADER, len(wal) + 1, size))
    if sample is not None and len(ends) > sample:
        ends = sorted({ends[0], ends[1], ends[-1], *dice.sample(ends, sample)})
    around = (-9, -1, 0, 1, FRAME_HEADER, size // 2)
    lengths = {end + dice.choice(around) for end in ends} | set(ends)
    lengths |= {end + dice.choice(around) for end in ends}
    return sorted(n for n in lengths if 0 <= n <= len(wal))


def check_cut_wal(folder: Path, seed: int, limit: int, sample: int | None) -> None:
    path, history = folder / "agent.db", History(seed)
    with writer(path, seed, limit=limit, wal_pages=1_000_000) as (pid, log):
        wait_until_done(pid, log, limit)
        with stopped(pid):
            copy_files(path, folder / "whole" / "agent.db")
    wal = Path(f"{folder}/whole/agent.db-wal").read_bytes()
    assert len(wal) > 50_000, "everything should still be in the WAL"
    cut = folder / "cut" / "agent.db"
    floor = 0
    for length in cuts(wal, sample, random.Random(seed)):
        shutil.rmtree(cut.parent, ignore_errors=True)
        copy_files(folder / "whole" / "agent.db", cut, ("",))
        Path(f"{cut}-wal").write_bytes(wal[:length])
        found = read(cut)
        numbers = [n for n in history.indexes(found, limit) if n >= floor]
        assert numbers, f"the WAL cut to {length} bytes opens to a state that never was"
        floor = numbers[0]
    assert floor >= history.indexes(history.at(limit), limit)[0] - 1


def test_a_wal_cut_anywhere_opens_to_a_prefix(tmp_path: Path) -> None:
    check_cut_wal(tmp_path, 3, 45, 45)


@pytest.mark.campaign
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(200, 204))
def test_a_wal_cut_at_every_boundary(tmp_path: Path, seed: int) -> None:
    check_cut_wal(tmp_path, seed, 60, None)
