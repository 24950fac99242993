"""SIGKILL during prune, gc and compact, beside a writer: nothing reachable is ever lost."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from building import Thread, config, fork, kill, observe
from langchain_core.messages import HumanMessage

from langgraph_resilient import ResilientSaver
from langgraph_resilient.maintenance import compact, gc, prune, verify

KEPT = ("k0", "k1", "k2")
CUT = ("p0", "p1", "p2")


def fill(saver: Any, thread_id: str, turns: int) -> None:
    thread = Thread(saver, thread_id)
    said: list[Any] = []
    for n in range(turns):
        words = f"{thread_id} {n} " + os.urandom(60).hex() + " always the same words" * 30
        said.append(HumanMessage(words, id=f"{n}"))
        thread.put({"messages": list(said)})
        saver.put_writes(thread.where, [("messages", said[-1:])], f"task {n}")


def look_after(path: Path) -> None:
    """What the victim does, over and over; new litter makes it work each time."""
    with ResilientSaver.from_conn_string(path) as saver:
        while True:
            prune(saver, threads=CUT)
            gc(saver)
            compact(saver)
            for name in CUT:
                fill(saver, name, 5)


def write(path: Path, log: Path) -> None:
    """Goes on with one thread, and notes what was acknowledged."""
    with ResilientSaver.from_conn_string(path) as saver, log.open("w") as out:
        thread = Thread(saver, "w")
        for n in range(100_000):
            thread.put({"n": n, "text": f"{n} " + "words " * 400})
            out.write(f"{n}\n")
            out.flush()
            time.sleep(0.002)


def survive(path: Path, seed: int, rounds: int) -> None:
    dice = random.Random(seed)
    with ResilientSaver.from_conn_string(path) as saver:
        for name in (*KEPT, *CUT):
            fill(saver, name, 30)
        before = observe(saver, KEPT)
    size = path.stat().st_size
    log = path.with_name("log")
    for _ in range(rounds):
        writer = fork(lambda: write(path, log))
        victim = fork(lambda: look_after(path))
        time.sleep(0.05 + dice.random() * 0.9)
        kill(victim)
        kill(writer)
        done = [int(line) for line in log.read_text().splitlines()[:-1]]
        with ResilientSaver.from_conn_string(path) as saver:
            assert verify(saver).findings == [], f"seed {seed}"
            assert observe(saver, KEPT) == before, f"seed {seed}"
            for name in CUT:
                head = saver.get_tuple(config(name))
                assert head is not None
                assert head.checkpoint["channel_values"]["messages"], f"seed {seed}"
            if done:
                head = saver.get_tuple(config("w"))
                assert head is not None
                assert head.checkpoint["channel_values"]["n"] >= done[-1], f"seed {seed}"
    with ResilientSaver.from_conn_string(path) as saver:
        saver.delete_thread("w")
        prune(saver, threads=CUT)
        gc(saver)
        assert compact(saver).vacuumed
        assert observe(saver, KEPT) == before
        assert verify(saver).findings == []
    assert path.stat().st_size < size / 2


def test_a_killed_upkeep_loses_nothing(tmp_path: Path) -> None:
    survive(tmp_path / "agent.db", 1, 6)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(10, 18))
def test_a_killed_upkeep_loses_nothing_for_long(tmp_path: Path, seed: int) -> None:
    survive(tmp_path / "agent.db", seed, 25)
