"""Flipped bits in a file with tool calls: what is recorded, a typed error, or a finding.

A call whose place in the table was hit cannot be found by its key; ``verify`` must say so.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from calling import answer, call, make_unknown, run
from conftest import tried_now
from test_damage import OPTIONS, World, damaged, flip

from langgraph_resilient import ResilientSaver
from langgraph_resilient.errors import DataCorrupt, ResilientError, StorageError
from langgraph_resilient.maintenance import verify

NAMES = [f"thread-{n}" for n in range(4)]


def build(path: Path, options: dict[str, Any]) -> World:
    dice = random.Random(5)
    with ResilientSaver.from_conn_string(str(path), **options) as saver:
        for name in NAMES:
            for n in range(12):
                words = " ".join(str(dice.getrandbits(40)) for _ in range(400 if n == 3 else 20))
                body = answer(words)
                run(saver, call(name, f"c{n}", arguments={"x": words}, body=lambda now, b=body: b))
            make_unknown(saver, call(name, "lost"))
    return World(path, options)


def read(saver: ResilientSaver, name: str) -> list[dict[str, Any]]:
    assert [e for e in saver.ledger.entries(name) if e.state == "unknown"] == (
        saver.ledger.unknown(name)
    )
    return [asdict(entry) for entry in saver.ledger.entries(name)]


def check(world: World, path: Path, truth: dict[str, Any], counts: Counter[str]) -> list[str]:
    """What is wrong with reads of one damaged file."""
    wrong = []
    with ResilientSaver.from_conn_string(str(path), **world.options) as saver:
        outcomes = set()
        for name in NAMES:
            try:
                found = read(saver, name)
            except (DataCorrupt, StorageError):
                outcomes.add("error")
                continue
            missing = all(item in truth[name] for item in found)
            outcomes.add("right" if found == truth[name] else "missing" if missing else "wrong")
        counts.update(outcomes)
        if "wrong" in outcomes:
            wrong.append("a call is another one")
        sound = True
        with suppress(DataCorrupt, StorageError):
            sound = verify(saver).ok
            if sound and outcomes != {"right"}:
                wrong.append(f"reads say {outcomes}, but verify has no finding")
    return wrong


@pytest.mark.parametrize("options", tried_now(OPTIONS, "plain", "sealed"))
def test_a_flipped_bit_is_noticed(tmp_path: Path, options: str) -> None:
    world = build(tmp_path / "agent.db", OPTIONS[options]())
    with ResilientSaver.from_conn_string(str(world.path), **world.options) as saver:
        truth = {name: read(saver, name) for name in NAMES}
    dice, counts, wrong = random.Random(2), Counter[str](), []
    for start in range(0, world.size, world.page):
        for _ in range(4):
            position, bit = start + dice.randrange(world.page), dice.randrange(8)
            path = damaged(world, tmp_path / "hurt", flip(position, bit))
            try:
                found = check(world, path, truth, counts)
            except ResilientError as error:
                found = [] if isinstance(error, DataCorrupt | StorageError) else [repr(error)]
                counts["cannot open"] += 1
            except Exception as error:
                found = [repr(error)]
            wrong += [f"bit {bit} of byte {position}: {text}" for text in found]
    assert wrong == [], counts
    assert counts["error"] > 0, counts
    assert counts["right"] > 0, counts
