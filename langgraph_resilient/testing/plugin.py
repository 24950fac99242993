"""The pytest plugin: fixtures ``resilient_saver``, ``effect_log`` and ``crash_sweep``.

pytest loads it at every start where the package is installed, so it loads nothing itself before a
test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from langgraph_resilient.saver import ResilientSaver
    from langgraph_resilient.testing.effects import EffectLog
    from langgraph_resilient.testing.report import SweepReport


@pytest.fixture
def resilient_saver(tmp_path: Path) -> Iterator[ResilientSaver]:
    """An open `ResilientSaver` on a file of this test, ``tmp_path / "agent.db"``."""
    from langgraph_resilient.saver import ResilientSaver

    with ResilientSaver.from_conn_string(tmp_path / "agent.db") as saver:
        yield saver


@pytest.fixture
def effect_log(tmp_path: Path) -> EffectLog:
    """An `EffectLog` on a file of this test."""
    from langgraph_resilient.testing.effects import EffectLog

    return EffectLog(tmp_path / "effects.jsonl")


@pytest.fixture
def crash_sweep(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., SweepReport]:
    """`langgraph_resilient.testing.crash_sweep`, in a folder of this test.

    Effects are those of ``effect_log``, where the test asks for that fixture, too.
    """
    from langgraph_resilient.testing.sweep import crash_sweep

    more: dict[str, Any] = {"folder": tmp_path}
    if "effect_log" in request.fixturenames:
        more["effects"] = request.getfixturevalue("effect_log")
    return partial(crash_sweep, **more)
