"""SIGKILL at random moments: what was acknowledged is there, and nothing is half done."""

from __future__ import annotations

import itertools
import random
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from building import Thread, assert_running, config, fork, kill
from campaign import ALL_NAMES, Campaign, Log, assert_sound, legacy_operations, visible, work
from conftest import KEY, make_cipher
from langgraph.checkpoint.sqlite import SqliteSaver
from serving import fresh_address

from langgraph_resilient import ResilientSaver
from langgraph_resilient.maintenance import migrate

OPTIONS: dict[str, Any] = {
    "plain": dict,
    "normal": lambda: {"synchronous": "NORMAL"},
    "cipher": lambda: {"cipher": make_cipher()},
    "sealed": lambda: {"integrity_key": KEY},
}
ROUNDS = 6


def kill_at_random(pid: int, log: Log, dice: random.Random) -> None:
    """Kill the child some operations after it began to work, at any moment within one."""
    size, deadline = log.size(), time.monotonic() + 30
    target = size + dice.randrange(0, 600)
    while log.size() <= target and time.monotonic() < deadline:
        assert_running(pid)
        time.sleep(0.001)
    time.sleep(dice.random() * 0.006)
    kill(pid)


def survive_kills(
    path: Path | str, log: Log, seed: int, rounds: int, options: Any, *, legacy: bool
) -> None:
    """Kill a worker ``rounds`` times on one database and check it after each time."""
    dice = random.Random(seed)
    open_saver = partial(ResilientSaver.from_conn_string, str(path))
    if legacy:
        with SqliteSaver.from_conn_string(str(path)) as old:
            for operation in legacy_operations():
                operation.apply(old)
        if options() and "synchronous" not in options():  # unprotected rows are refused by a key
            with open_saver(**options()) as saver:
                migrate(saver)
    start = 0
    for _ in range(rounds):
        open_with_options = partial(open_saver, **options())
        pid = fork(partial(work, open_with_options, log, seed, start=start, legacy=legacy))
        kill_at_random(pid, log, dice)
        done, begun = log.read()
        start = settled(open_with_options, path, seed, max(start, done), begun, legacy)


def settled(
    open_saver: Any, path: Path | str, seed: int, done: int, begun: int, legacy: bool
) -> int:
    """Check the file; the number of the operation from which the next worker goes on.

    An operation that was interrupted is finished here, so that the campaign stays what it is.
    """
    campaign = Campaign(seed, legacy=legacy)
    campaign.advance(done)
    before = visible(campaign.model)
    with open_saver() as saver:
        found = visible(saver)
        if begun > done:
            operation = campaign.next()
            campaign.settle(operation)
            after = visible(campaign.model)
            for name in ALL_NAMES:
                states = before.get(name), after.get(name)
                assert found.get(name) in states, f"seed {seed}, {operation.name}, {done} done"
            if found != after:
                operation.apply(saver)
            before = after
        assert visible(saver) == before
        assert_sound(saver, str(path))
    return campaign.count


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("legacy", [False, True], ids=["new", "legacy"])
def test_acknowledged_operations_survive_sigkill(
    tmp_path: Path, options: str, legacy: bool
) -> None:
    rounds = ROUNDS if options == "plain" else ROUNDS - 3
    seed = list(OPTIONS).index(options) * 100 + legacy
    log = Log(str(tmp_path / "log"))
    survive_kills(tmp_path / "agent.db", log, seed, rounds, OPTIONS[options], legacy=legacy)


def test_acknowledged_operations_on_a_server_survive_sigkill(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"))
    survive_kills(fresh_address(), log, 1, ROUNDS - 2, OPTIONS["plain"], legacy=False)


def write_in_threads(path: str, folder: Path) -> None:
    """Four threads put one checkpoint after the other, each into its own thread, for ever."""
    with ResilientSaver.from_conn_string(path) as saver:

        def body(k: int) -> None:
            log, thread = Log(str(folder / f"{k}.log")), Thread(saver, f"t{k}")
            for n in itertools.count(1):
                log.begin(n)
                thread.put({"n": n, "text": f"{k} {n} " * 50})
                log.done(n)

        workers = [threading.Thread(target=body, args=(k,)) for k in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


@pytest.mark.parametrize("seed", range(4))
def test_commits_shared_by_threads_survive_sigkill(tmp_path: Path, seed: int) -> None:
    path = fresh_address() if seed == 3 else str(tmp_path / "agent.db")
    logs = [Log(str(tmp_path / f"{k}.log")) for k in range(4)]
    pid = fork(partial(write_in_threads, path, tmp_path))
    kill_at_random(pid, logs[0], random.Random(seed))
    with ResilientSaver.from_conn_string(path) as saver:
        for k, log in enumerate(logs):
            done, begun = log.read()
            found = [item.checkpoint["channel_values"]["n"] for item in saver.list(config(f"t{k}"))]
            assert done <= len(found) <= begun
            assert found == list(range(len(found), 0, -1))
        assert_sound(saver, path)


@pytest.mark.campaign
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(30))
def test_three_hundred_kills(tmp_path: Path, seed: int) -> None:
    name = list(OPTIONS)[seed % len(OPTIONS)]
    log, legacy = Log(str(tmp_path / "log")), seed % 3 == 0
    survive_kills(tmp_path / "agent.db", log, 1000 + seed, 10, OPTIONS[name], legacy=legacy)


@pytest.mark.campaign
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(8))
def test_eighty_kills_on_a_server(tmp_path: Path, seed: int) -> None:
    options, log = OPTIONS[list(OPTIONS)[seed % len(OPTIONS)]], Log(str(tmp_path / "log"))
    survive_kills(fresh_address(), log, 2000 + seed, 10, options, legacy=False)
