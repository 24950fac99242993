"""Slow and failing databases for tests: one object, one block, and nothing of it afterwards."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from building import Thread
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from langgraph_resilient import ConfigurationError, DatabaseUnreachable, ResilientSaver
from langgraph_resilient.testing import failing, slow

TICK = 0.05


def seconds(function: Any) -> float:
    begun = time.monotonic()
    function()
    return time.monotonic() - begun


@pytest.fixture
def thread(file_saver: Any) -> Thread:
    return Thread(file_saver)


def test_a_slow_saver_takes_its_time_and_stores(thread: Thread) -> None:
    with slow(thread.saver, put=TICK, get_tuple=TICK) as saver:
        assert saver is thread.saver
        assert seconds(lambda: thread.put({"a": 1})) >= TICK
        assert seconds(lambda: saver.get_tuple(thread.where)) >= TICK
    assert "put" not in vars(thread.saver)
    assert thread.saver.get_tuple(thread.where).checkpoint["channel_values"] == {"a": 1}


def test_a_coroutine_waits_once_and_holds_nobody_up(thread: Thread) -> None:
    async def main() -> tuple[float, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        other = asyncio.ensure_future(tick())
        begun = time.monotonic()
        await thread.aput({"a": 1})
        took = time.monotonic() - begun
        other.cancel()
        return took, ticks

    with slow(thread.saver, put=1.0):
        took, ticks = asyncio.run(main())
    assert 1.0 <= took < 2.0  # ``aput`` is a hop to ``put``: it waits once
    assert ticks > 10


def test_a_failing_saver_fails_as_often_as_it_is_told(thread: Thread) -> None:
    with failing(thread.saver, at="put", times=2, skip=1):
        thread.put({"a": 1})
        kept = thread.where
        for _ in range(2):
            with pytest.raises(DatabaseUnreachable, match="a test wants it so"):
                thread.put({"a": 2})
        thread.where = kept
        thread.put({"a": 3})
    assert thread.saver.get_tuple(thread.where).checkpoint["channel_values"] == {"a": 3}


def test_a_coroutine_fails_too(thread: Thread) -> None:
    with failing(thread.saver, error=OSError):
        with pytest.raises(OSError):
            asyncio.run(thread.aput({"a": 1}))
    asyncio.run(thread.aput({"a": 1}))


def test_an_acknowledgement_may_be_lost(thread: Thread) -> None:
    with failing(thread.saver, error=TimeoutError("late"), stored=True):
        with pytest.raises(TimeoutError, match="late"):
            thread.put({"a": 1})
    assert thread.saver.get_tuple(thread.where).checkpoint["channel_values"] == {"a": 1}


def test_one_saver_of_two_fails(tmp_path: Path) -> None:
    with (
        ResilientSaver.from_conn_string(tmp_path / "a.db") as one,
        ResilientSaver.from_conn_string(tmp_path / "b.db") as other,
        failing(one),
    ):
        Thread(other).put({"a": 1})
        with pytest.raises(DatabaseUnreachable):
            Thread(one).put({"a": 1})


def test_plain_savers_too(tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "a.db")) as saver, failing(saver):
        with pytest.raises(DatabaseUnreachable):
            Thread(saver).put({"a": 1})

    async def main() -> None:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "b.db")) as saver:
            with failing(saver):
                with pytest.raises(DatabaseUnreachable):
                    await Thread(saver).aput({"a": 1})

    asyncio.run(main())


@pytest.mark.parametrize("wrap", [lambda s: slow(s, pet=1), lambda s: failing(s, at="pet")])
def test_an_unknown_method_is_refused(file_saver: Any, wrap: Any) -> None:
    with pytest.raises(ConfigurationError, match="'pet' is none of put"):
        with wrap(file_saver):
            raise AssertionError
