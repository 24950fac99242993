"""Flipped bits, lost pages, cut files: the right value, an old state, or a typed error.

Never an empty thread, a wrong value or another kind of exception; and the neighbours of what is
hit stay readable wherever SQLite can still read their pages. A pending write whose own key was
hit counts as not yet written on reading; ``verify`` must find it.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from building import Thread, config, facts
from campaign import History, visible
from conftest import KEY, make_cipher, tried_now
from langchain_core.messages import AIMessage, HumanMessage
from test_torn_files import copy_files, stopped, wait_until_done, writer

from langgraph_resilient import ResilientSaver
from langgraph_resilient.errors import DataCorrupt, ResilientError, StorageError
from langgraph_resilient.maintenance import verify

THREADS = [f"thread-{n}" for n in range(6)]
OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "sealed": lambda: {"integrity_key": KEY},
    "cipher": lambda: {"cipher": make_cipher()},
}


@dataclass
class World:
    """A healthy database, and what each of its threads looked like after each operation."""

    path: Path
    options: dict[str, Any]
    states: dict[str, list[list[dict]]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    @property
    def page(self) -> int:
        """SQLite's page size, from the file's header."""
        (size,) = struct.unpack(">H", self.path.read_bytes()[16:18])
        return size if size > 1 else 65536

    def read_thread(self, saver: ResilientSaver, name: str) -> list[dict]:
        listed = [facts(item) for item in saver.list(config(name))]
        head = saver.get_tuple(config(name))
        assert (head is None) == (not listed), f"{name}: head and list disagree"
        if head is not None:
            assert facts(head) == listed[0], f"{name}: the head is not listed first"
        return listed


def build(path: Path, options: dict[str, Any]) -> World:
    """Six threads that share no value, with small and large leaves and pending writes."""
    world = World(path, options)
    dice = random.Random(5)
    with ResilientSaver.from_conn_string(str(path), **options) as saver:
        for name in THREADS:
            thread, messages, seen = Thread(saver, name), [], world.states.setdefault(name, [])
            for n in range(5):
                words = " ".join(str(dice.getrandbits(40)) for _ in range(40))
                messages.append(HumanMessage(f"{name} {n} {words}", id=f"{name}-h{n}"))
                messages.append(AIMessage(f"{words} {n}", id=f"{name}-a{n}"))
                changed = {"messages": list(messages), "n": [name, n]}
                if n == 2:
                    changed["image"] = dice.randbytes(9000)
                where = thread.put(changed, metadata={"note": f"{name} note {n}"})
                seen.append(world.read_thread(saver, name))
                saver.put_writes(where, [("n", [name, -n])], f"{name}-task{n}", "~")
                seen.append(world.read_thread(saver, name))
    return world


@dataclass
class Verdicts:
    """What the reads of many damaged files came to; ``wrong`` must stay empty."""

    counts: Counter = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def check(self, world: World, path: Path, what: str) -> None:
        """Read the damaged file as a user would, thread by thread, and ask ``verify``."""
        try:
            with ResilientSaver.from_conn_string(str(path), **world.options) as saver:
                outcomes = {name: self._thread(world, saver, name, what) for name in THREADS}
                self._neighbours(path, outcomes, what)
                self._verify(saver, outcomes, what)
        except ResilientError as error:
            self._typed(error, what)
            self.counts["cannot open"] += 1
        except Exception as error:
            self.wrong.append(f"{what}: {error!r} on opening, verifying or closing")

    def _thread(self, world: World, saver: ResilientSaver, name: str, what: str) -> str:
        try:
            found = world.read_thread(saver, name)
        except ResilientError as error:
            self._typed(error, f"{what}, {name}")
            outcome = "error"
        except Exception as error:
            self.wrong.append(f"{what}, {name}: {error!r}")
            outcome = "wrong"
        else:
            states = world.states[name]
            older = found and any(is_older(found, state) for state in states)
            outcome = "right" if found == states[-1] else "older" if older else "wrong"
            if outcome == "wrong":
                shape = "is empty" if not found else "was never like this"
                self.wrong.append(f"{what}: {name} {shape}")
        self.counts[outcome] += 1
        return outcome

    def _typed(self, error: ResilientError, what: str) -> None:
        if not isinstance(error, DataCorrupt | StorageError):
            self.wrong.append(f"{what}: {error!r} is no DataCorrupt or StorageError")

    def _neighbours(self, path: Path, outcomes: dict[str, str], what: str) -> None:
        """If SQLite can walk its pages, one byte can only have hit one row."""
        hit = [name for name, outcome in outcomes.items() if outcome != "right"]
        if len(hit) > 1 and sqlite_is_whole(path):
            self.counts["several hit"] += 1
            if len(hit) == len(THREADS):
                self.counts["all hit"] += 1

    def _verify(self, saver: ResilientSaver, outcomes: dict[str, str], what: str) -> None:
        try:
            found = not verify(saver).ok
        except ResilientError:
            found = True
        hurt = set(outcomes.values()) - {"right"}
        if hurt and not found:
            self.wrong.append(f"{what}: reads say {hurt}, but verify has no finding")


def is_older(found: list[dict], state: list[dict]) -> bool:
    """Whether a read is a state the thread had, but for a task's writes that are not there."""
    if [without_writes(item) for item in found] != [without_writes(item) for item in state]:
        return False
    pairs = zip(found, state, strict=True)
    return all(write in whole["writes"] for item, whole in pairs for write in item["writes"])


def without_writes(item: dict) -> dict:
    return {key: value for key, value in item.items() if key != "writes"}


def sqlite_is_whole(path: Path) -> bool:
    conn = sqlite3.connect(path)
    try:
        return conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    except sqlite3.DatabaseError:
        return False
    finally:
        conn.close()


def damaged(world: World, folder: Path, change: Callable[[bytearray], None]) -> Path:
    """A copy of the healthy file with one change."""
    body = bytearray(world.path.read_bytes())
    change(body)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = folder / "agent.db"
    path.write_bytes(body)
    return path


def flip(position: int, bit: int) -> Callable[[bytearray], None]:
    def change(body: bytearray) -> None:
        body[position] ^= 1 << bit

    return change


def flip_bits(world: World, folder: Path, per_page: int, seed: int) -> Verdicts:
    dice, verdicts, page = random.Random(seed), Verdicts(), world.page
    for start in range(0, world.size, page):
        for _ in range(per_page):
            position, bit = start + dice.randrange(page), dice.randrange(8)
            path = damaged(world, folder, flip(position, bit))
            verdicts.check(world, path, f"bit {bit} of byte {position}")
    return verdicts


@pytest.mark.parametrize("options", tried_now(OPTIONS, "plain", "sealed"))
def test_a_flipped_bit_is_noticed(tmp_path: Path, options: str) -> None:
    world = build(tmp_path / "agent.db", OPTIONS[options]())
    verdicts = flip_bits(world, tmp_path / "hurt", 2, 1)
    assert verdicts.wrong == [], verdicts.counts
    assert verdicts.counts["error"] > 0
    assert verdicts.counts["right"] > verdicts.counts["error"]
    assert verdicts.counts["all hit"] <= verdicts.counts["right"] // 40, verdicts.counts


@pytest.mark.campaign
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("seed", range(3))
def test_thousands_of_flipped_bits_are_noticed(tmp_path: Path, options: str, seed: int) -> None:
    world = build(tmp_path / "agent.db", OPTIONS[options]())
    assert flip_bits(world, tmp_path / "hurt", 30, seed + 50).wrong == []


@pytest.mark.parametrize("what", ["zero", "noise"])
def test_a_lost_page_is_noticed(tmp_path: Path, what: str) -> None:
    world, verdicts, dice = build(tmp_path / "agent.db", {}), Verdicts(), random.Random(2)
    size = world.page
    for start in range(0, world.size, size):
        page = bytes(size) if what == "zero" else dice.randbytes(size)

        def lose(body: bytearray, start: int = start, page: bytes = page) -> None:
            body[start : start + size] = page

        path = damaged(world, tmp_path / "hurt", lose)
        verdicts.check(world, path, f"page {start // size} lost")
    assert verdicts.wrong == [], verdicts.counts


def test_an_exchange_of_two_pages_is_noticed(tmp_path: Path) -> None:
    world, verdicts, dice = build(tmp_path / "agent.db", {}), Verdicts(), random.Random(4)
    size = world.page
    for _ in range(25):
        one, two = dice.sample(range(1, world.size // size), 2)

        def exchange(body: bytearray, one: int = one * size, two: int = two * size) -> None:
            first, second = bytes(body[one : one + size]), bytes(body[two : two + size])
            body[one : one + size], body[two : two + size] = second, first

        path = damaged(world, tmp_path / "hurt", exchange)
        verdicts.check(world, path, f"pages {one} and {two} exchanged")
    assert verdicts.wrong == [], verdicts.counts


def test_a_file_cut_anywhere_is_noticed(tmp_path: Path) -> None:
    """At each page boundary and around it; a file of no bytes is a new file."""
    world, verdicts, dice = build(tmp_path / "agent.db", {}), Verdicts(), random.Random(3)
    size, page = world.size, world.page
    lengths = {1, 15, 16, 100, 511, 512, 1024, page - 1, size - 1}
    for boundary in range(page, size, page):
        lengths |= {boundary, boundary + dice.randrange(-3, page)}
    for length in sorted(lengths):

        def cut(body: bytearray, length: int = length) -> None:
            del body[length:]

        path = damaged(world, tmp_path / "hurt", cut)
        verdicts.check(world, path, f"cut to {length} of {size} bytes")
    assert verdicts.wrong == [], verdicts.counts


def check_flips_in_the_wal(folder: Path, seed: int, count: int) -> None:
    """SQLite ends a WAL at the first frame whose checksum is wrong: an older state, whole."""
    path, limit, dice, history = folder / "agent.db", 40, random.Random(seed), History(seed)
    with writer(path, seed, limit=limit, wal_pages=1_000_000) as (pid, log):
        wait_until_done(pid, log, limit)
        with stopped(pid):
            copy_files(path, folder / "whole" / "agent.db")
    wal = Path(f"{folder}/whole/agent.db-wal").read_bytes()
    hurt = folder / "hurt" / "agent.db"
    for _ in range(count):
        position, bit = dice.randrange(len(wal)), dice.randrange(8)
        shutil.rmtree(hurt.parent, ignore_errors=True)
        copy_files(folder / "whole" / "agent.db", hurt, ("",))
        body = bytearray(wal)
        body[position] ^= 1 << bit
        Path(f"{hurt}-wal").write_bytes(body)
        try:
            with ResilientSaver.from_conn_string(str(hurt)) as saver:
                found = visible_or_error(saver)
        except ResilientError:
            continue
        assert found is None or history.indexes(found, limit), f"bit {bit} of WAL byte {position}"


def visible_or_error(saver: ResilientSaver) -> Any:
    try:
        return visible(saver)
    except ResilientError:
        return None


def test_a_flipped_bit_in_the_wal_gives_an_older_state_or_an_error(tmp_path: Path) -> None:
    check_flips_in_the_wal(tmp_path, 21, 60)


@pytest.mark.campaign
@pytest.mark.timeout(3000)
def test_thousands_of_flipped_bits_in_the_wal(tmp_path: Path) -> None:
    check_flips_in_the_wal(tmp_path, 22, 2000)


def test_a_damaged_value_names_what_is_hit(tmp_path: Path) -> None:
    """An error says which thread, which checkpoint and, for a value, which channel."""
    world = build(tmp_path / "agent.db", {})
    dice, named = random.Random(9), []
    while len(named) < 5:
        position = dice.randrange(world.page, world.size)
        path = damaged(world, tmp_path / "hurt", flip(position, 3))
        if not sqlite_is_whole(path):
            continue
        with ResilientSaver.from_conn_string(str(path)) as saver:
            for name in THREADS:
                try:
                    world.read_thread(saver, name)
                except DataCorrupt as error:
                    named.append((name, error))
    for name, error in named:
        assert error.thread_id == name
        assert name in str(error)
    assert any(error.checkpoint_id for _, error in named)


def test_a_file_that_is_no_database_is_said_so(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    path.write_bytes(b"this is not a database " * 500)
    with pytest.raises(DataCorrupt, match=r"agent\.db"):
        with ResilientSaver.from_conn_string(str(path)) as saver:
            saver.get_tuple(config())
    assert path.read_bytes() == b"this is not a database " * 500
