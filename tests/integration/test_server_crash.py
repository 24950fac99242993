"""Agents on a PostgreSQL server, killed by SIGKILL: as on a file, nothing is done twice or lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from crashable import INPUT, Factory
from serving import BesideFile, server_address

from langgraph_resilient.testing import EffectLog, crash_sweep

SOME = [
    "journal.end.after",
    "journal.commit",
    "ledger.begin.after",
    "effect.after",
    "ledger.settle.before",
    "ledger.settle.after",
    "put.commit",
    "put_writes.commit",
    "stream.chunk.after",
]


@pytest.fixture
def log(tmp_path: Path) -> EffectLog:
    return EffectLog(tmp_path / "effects")


def test_an_agent_is_safe_where_it_is_killed(log: EffectLog) -> None:
    report = crash_sweep(
        Factory(log=log, is_agent=True),
        INPUT,
        effects=log,
        saver=BesideFile(server_address()),
        mode="stream",
        points=SOME,
        most=1,
    )
    assert report.ok, report.table()
    assert {kill.point for kill in report.kills} == set(SOME)
    assert report.effects == {"mail": 1}
    assert sum(kill.questions for kill in report.kills) >= 2


def test_an_agent_of_coroutines_is_safe_where_it_is_killed(log: EffectLog) -> None:
    report = crash_sweep(
        Factory(log=log, is_agent=True),
        INPUT,
        effects=log,
        saver=BesideFile(server_address()),
        mode="astream",
        durability="async",
        points=["journal.end.after", "effect.after", "ledger.commit"],
        most=1,
    )
    assert report.ok, report.table()


@pytest.mark.campaign
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("mode", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_every_moment_of_an_agent(log: EffectLog, mode: Any, durability: Any) -> None:
    report = crash_sweep(
        Factory(log=log, is_agent=True),
        INPUT,
        effects=log,
        saver=BesideFile(server_address()),
        mode=mode,
        durability=durability,
        most=3,
    )
    assert report.ok, report.table()
