"""Reading a fast stream ahead: the same items in the same order, errors and closing included."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from langgraph_resilient.stream.ahead import LIMIT, Pace, abatches, batches

MANY = 5000
WHERE: contextvars.ContextVar[str] = contextvars.ContextVar("where", default="nowhere")


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def several(source: Callable[[], Iterator[Any]], way: str, **options: Any) -> Iterator[list[Any]]:
    """The batches of a source, by a thread or by a task."""
    if way == "thread":
        yield from batches(source(), **options)
        return

    async def asource() -> AsyncIterator[Any]:
        for item in source():
            yield item

    loop = asyncio.new_event_loop()
    made = abatches(asource(), **options)
    try:
        while True:
            try:
                yield loop.run_until_complete(made.__anext__())
            except StopAsyncIteration:
                return
    finally:
        loop.run_until_complete(made.aclose())
        loop.close()


both = pytest.mark.parametrize("way", ["thread", "task"])


@both
@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 18, LIMIT + 16, MANY])
def test_items_come_all_and_in_order(way: str, length: int) -> None:
    found = list(several(lambda: iter(range(length)), way))
    assert [item for one in found for item in one] == list(range(length))
    assert all(found), "an empty batch is the end"


@both
def test_a_fast_stream_comes_in_batches_and_none_is_longer_than_what_may_wait(way: str) -> None:
    lengths = [len(one) for one in several(lambda: iter(range(MANY)), way)]
    assert len(lengths) < MANY / 10
    assert max(lengths) <= LIMIT + 1


@both
def test_a_stream_that_must_not_be_read_ahead_comes_one_by_one(way: str) -> None:
    assert {len(one) for one in several(lambda: iter(range(100)), way, ahead=False)} == {1}


@both
@pytest.mark.parametrize("length", [3, 16, 1000])
def test_an_error_comes_behind_the_items_before_it(way: str, length: int) -> None:
    def source() -> Iterator[int]:
        yield from range(length)
        raise ConnectionError("cut")

    found: list[int] = []
    with pytest.raises(ConnectionError, match="cut"):
        for one in several(source, way):
            found += one
    assert found == list(range(length))


@both
@pytest.mark.parametrize("taken", [1, 20, 400])
def test_a_taker_that_stops_closes_the_source(way: str, taken: int) -> None:
    closed = threading.Event()

    def source() -> Iterator[int]:
        try:
            yield from range(10**9)
        finally:
            closed.set()

    made = several(source, way)
    seen = 0
    while seen < taken:
        seen += len(next(made))
    made.close()  # type: ignore[attr-defined]
    assert closed.wait(10)


def test_the_source_runs_in_one_context_whoever_reads_it() -> None:
    seen = set()

    def source() -> Iterator[int]:
        token = WHERE.set("here")
        for number in range(MANY):
            seen.add((WHERE.get(), threading.current_thread().name == "resilient-ahead"))
            yield number
        WHERE.reset(token)  # a token of another context is refused

    assert sum(map(len, batches(source()))) == MANY
    assert seen == {("here", False), ("here", True)}
    assert WHERE.get() == "nowhere"


def test_a_cancelled_taker_closes_the_source() -> None:
    closed = []

    async def source() -> AsyncIterator[int]:
        try:
            for number in range(1000):
                yield number
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    async def take() -> None:
        async for _ in abatches(source()):
            pass

    async def run() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(take(), 0.05)

    asyncio.run(run())
    assert closed == [True]


@pytest.mark.parametrize(
    ("gap", "fast"), [(10e-6, True), (200e-6, True), (1e-3, False), (1, False)]
)
def test_a_stream_is_fast_when_its_items_are(gap: float, fast: bool) -> None:
    clock = Clock()
    pace = Pace(clock)
    proved = []
    for _ in range(16):
        clock.now += gap
        proved.append(pace.probed())
    assert proved == [False] * 15 + [fast]


def test_a_stream_that_has_become_slow_is_not_waited_for() -> None:
    clock = Clock()
    pace = Pace(clock)
    clock.now += 20 * 100e-6
    pace.taken(20)
    assert pace.fast
    clock.now += 20e-3
    pace.taken(1)
    assert not pace.fast
