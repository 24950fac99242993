"""Carrying out flows: one generator, driven in a thread or in a coroutine, also when it is cancelled."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any

import pytest

from langgraph_resilient._aio import Call, Do, Offload, Pause, adrive, drive

Flow = Generator[Any, Any, Any]
Driver = Callable[[Flow], Any]
WHERE: contextvars.ContextVar[str] = contextvars.ContextVar("where", default="nowhere")


@pytest.fixture
def offload() -> Iterator[Offload]:
    made = Offload(2)
    yield made
    made.close()


@pytest.fixture(params=["drive", "adrive"])
def run(request: pytest.FixtureRequest, offload: Offload) -> Driver:
    if request.param == "drive":
        return drive
    return lambda flow: asyncio.run(adrive(flow, offload))


# --- both drivers ---------------------------------------------------------------------------


def test_a_flow_gets_what_its_effects_give_and_its_value_is_returned(run: Driver) -> None:
    def flow() -> Flow:
        one = yield Do(lambda: 1)
        two = yield Call(lambda: one + 1)
        nothing = yield Pause(0)
        return one, two, nothing

    assert run(flow()) == (1, 2, None)


def test_a_flow_without_effects(run: Driver) -> None:
    def flow() -> Flow:
        return "at once"
        yield

    assert run(flow()) == "at once"


@pytest.mark.parametrize("kind", [Do, Call])
def test_what_an_effect_raises_is_the_flows_to_deal_with(run: Driver, kind: Any) -> None:
    def fail() -> None:
        raise LookupError("gone")

    def flow() -> Flow:
        try:
            yield kind(fail)
        except LookupError as error:
            again = yield Do(lambda: "dealt with")
            return str(error), again

    assert run(flow()) == ("gone", "dealt with")


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3)])
def test_what_the_flow_lets_through_comes_out(run: Driver, error: BaseException) -> None:
    def flow() -> Flow:
        def fail() -> None:
            raise error

        yield Do(fail) if isinstance(error, Exception) else Call(fail)

    with pytest.raises(type(error)):
        run(flow())


def test_finally_blocks_with_effects_run(run: Driver) -> None:
    done = []

    def flow() -> Flow:
        try:
            yield Call(lambda: 1 / 0)
        finally:
            yield Do(lambda: done.append("cleaned"))

    with pytest.raises(ZeroDivisionError):
        run(flow())
    assert done == ["cleaned"]


def test_context_variables_are_carried_along(run: Driver) -> None:
    def flow() -> Flow:
        seen = yield Do(WHERE.get)
        own = yield Call(WHERE.get)
        return seen, own

    token = WHERE.set("here")
    try:
        assert run(flow()) == ("here", "here")
    finally:
        WHERE.reset(token)


def test_a_call_tells_that_it_was_begun(run: Driver) -> None:
    seen = []
    step = Call(lambda: seen.append(step.begun))

    def flow() -> Flow:
        assert not step.begun
        yield step

    run(flow())
    assert seen == [True]


def test_a_pause_takes_its_time(run: Driver) -> None:
    def flow() -> Flow:
        yield Pause(0.02)

    before = time.monotonic()
    run(flow())
    assert time.monotonic() - before >= 0.02


# --- where things happen --------------------------------------------------------------------


def test_without_asyncio_everything_happens_in_the_callers_thread() -> None:
    def flow() -> Flow:
        one = yield Do(threading.get_ident)
        two = yield Call(threading.get_ident)
        return {one, two}

    assert drive(flow()) == {threading.get_ident()}


def test_in_a_coroutine_our_work_happens_on_another_thread_and_the_users_here(
    offload: Offload,
) -> None:
    async def own() -> int:
        await asyncio.sleep(0)
        return threading.get_ident()

    def flow() -> Flow:
        ours = yield Do(threading.get_ident)
        users = yield Call(threading.get_ident)
        awaited = yield Call(own)
        return ours, users, awaited

    ours, users, awaited = asyncio.run(adrive(flow(), offload))
    assert ours != threading.get_ident()
    assert users == awaited == threading.get_ident()


def test_a_coroutine_function_is_refused_without_asyncio() -> None:
    async def own() -> None:
        raise AssertionError("is never run")

    def flow() -> Flow:
        yield Call(own)

    with pytest.raises(TypeError, match="without asyncio"):
        drive(flow())


def test_one_offload_serves_loops_one_after_another(offload: Offload) -> None:
    def flow() -> Flow:
        return (yield Do(lambda: "done"))

    assert [asyncio.run(adrive(flow(), offload)) for _ in range(3)] == ["done"] * 3


# --- cancellation ---------------------------------------------------------------------------


class Log(list[str]):
    """What happened, in order, by whichever thread."""

    def note(self, what: str) -> str:
        self.append(what)
        return what


async def cancelled_when(
    ready: Callable[[], bool], coroutine: Awaitable[Any], release: Callable[[], None] = lambda: None
) -> Any:
    """Cancel a coroutine as soon as it stands where the test wants it.

    `release` is called a moment later by another thread: while work of ours is being finished,
    the loop stands still.
    """
    task = asyncio.ensure_future(coroutine)
    while not ready():
        await asyncio.sleep(0.001)
    task.cancel()
    threading.Timer(0.02, release).start()
    return await task


def test_cancelled_during_our_work_it_is_finished_and_nothing_of_the_users_begins(
    offload: Offload,
) -> None:
    log, begun, go = Log(), threading.Event(), threading.Event()

    def commit() -> str:
        begun.set()
        assert go.wait(10)
        return log.note("committed")

    body = Call(lambda: log.note("body"))

    def flow() -> Flow:
        log.note("got " + (yield Do(commit)))
        try:
            yield body
        except asyncio.CancelledError:
            log.note("told")
            yield Do(lambda: log.note("settled"))
            raise

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled_when(begun.is_set, adrive(flow(), offload), go.set))
    assert log == ["committed", "got committed", "told", "settled"]
    assert not body.begun


def test_cancelled_before_our_work_got_a_thread_it_is_done_all_the_same() -> None:
    """A full pool: cancelling the waiting side takes the work out of the queue."""
    offload, log, go = Offload(1), Log(), threading.Event()
    try:
        offload.submit(lambda: go.wait(10))

        def flow() -> Flow:
            log.note("asking")
            yield Do(lambda: log.note("done"))
            log.note("went on")

        with pytest.raises(asyncio.CancelledError):
            asyncio.run(cancelled_when(lambda: bool(log), adrive(flow(), offload)))
        assert log == ["asking", "done", "went on"]
    finally:
        go.set()
        offload.close()


def test_work_of_ours_that_fails_while_it_is_cancelled_tells_its_error(offload: Offload) -> None:
    log, begun, go = Log(), threading.Event(), threading.Event()

    def commit() -> None:
        begun.set()
        assert go.wait(10)
        raise OSError("full")

    def flow() -> Flow:
        try:
            yield Do(commit)
        except OSError as error:
            log.note(str(error))

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled_when(begun.is_set, adrive(flow(), offload), go.set))
    assert log == ["full"]


def test_cancelled_during_the_users_call_it_is_told_and_the_flow_settles(
    offload: Offload,
) -> None:
    log = Log()

    async def body() -> None:
        log.note("body")
        try:
            await asyncio.sleep(60)
        finally:
            log.note("body cleaned up")

    step = Call(body)

    def flow() -> Flow:
        try:
            yield step
        except asyncio.CancelledError:
            yield Do(lambda: log.note("settled"))
            raise

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled_when(lambda: bool(log), adrive(flow(), offload)))
    assert log == ["body", "body cleaned up", "settled"]
    assert step.begun


def test_a_flow_that_swallows_its_cancellation_is_cancelled_still(offload: Offload) -> None:
    log = Log()

    def flow() -> Flow:
        try:
            log.note("waiting")
            yield Pause(60)
        except asyncio.CancelledError:
            return "as if nothing had happened"

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled_when(lambda: bool(log), adrive(flow(), offload)))


def test_once_cancelled_no_call_and_no_pause_begins_however_often_it_is_asked_for(
    offload: Offload,
) -> None:
    log = Log()

    def flow() -> Flow:
        log.note("waiting")
        for effect in (Pause(60), Call(lambda: log.note("body")), Pause(60)):
            try:
                yield effect
            except asyncio.CancelledError:
                log.note("told")

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled_when(lambda: bool(log), adrive(flow(), offload)))
    assert log == ["waiting", "told", "told", "told"]


def test_an_error_after_the_cancellation_is_not_lost(offload: Offload) -> None:
    def flow() -> Flow:
        try:
            log.note("waiting")
            yield Pause(60)
        except asyncio.CancelledError as error:
            raise LookupError("lost") from error

    log = Log()
    with pytest.raises(LookupError, match="lost"):
        asyncio.run(cancelled_when(lambda: bool(log), adrive(flow(), offload)))


def test_a_time_out_around_the_whole_is_a_time_out(offload: Offload) -> None:
    log = Log()

    def flow() -> Flow:
        try:
            yield Call(lambda: asyncio.sleep(60))
        finally:
            yield Do(lambda: log.note("settled"))

    async def main() -> None:
        await asyncio.wait_for(adrive(flow(), offload), 0.02)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(main())
    assert log == ["settled"]


def test_a_body_that_raises_cancelled_by_itself_cancels_the_flow(offload: Offload) -> None:
    """A tool that lets a cancellation of something inside it through: the graph is told the same."""

    async def body() -> None:
        raise asyncio.CancelledError("inner")

    log = Log()

    def flow() -> Flow:
        try:
            yield Call(body)
        except asyncio.CancelledError:
            yield Do(lambda: log.note("settled"))
            raise

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(adrive(flow(), offload))
    assert log == ["settled"]
