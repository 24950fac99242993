"""The only module that imports asyncio: moves calls onto the engine's own threads, drives flows.

A flow is a generator that yields effects; `drive` and `adrive` carry them out, so that nothing is
written twice for sync and async (after the idea of httpx's auth flows).
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Offload:
    """Threads that do blocking work for coroutines of any event loop.

    No loop is captured, so one saver serves several loops, one after another or at once.
    """

    def __init__(self, threads: int):
        self._threads = threads
        self._executor: ThreadPoolExecutor | None = None

    async def run(self, function: Callable[[], T]) -> T:
        """Call `function` on a thread, the caller's context variables carried along.

        A cancelled caller does not stop the call: what was begun is finished, as a whole.
        """
        return await asyncio.wrap_future(self.submit(function))

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """`run`, for a caller that waits by itself."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix="resilient")
        return self._executor.submit(contextvars.copy_context().run, function)

    def close(self) -> None:
        """Let the threads end when their work is done."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None


def in_task() -> bool:
    """Whether this code runs in a task of an event loop."""
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


async def pause(seconds: float) -> None:
    """Nothing, for some seconds."""
    await asyncio.sleep(seconds)


async def at_once(begin: Sequence[Callable[[], Awaitable[T]]], limit: int) -> list[T]:
    """What some coroutines give, in their order; so many of them run at a time."""
    gate = asyncio.Semaphore(limit)

    async def one(function: Callable[[], Awaitable[T]]) -> T:
        async with gate:
            return await function()

    return list(await asyncio.gather(*(one(function) for function in begin)))


class TaskAhead(Generic[T]):
    """Reads an asynchronous iterator to its end in a task of its own.

    Args:
        iterator: nobody else reads it from now on.
        limit: how many items wait for their taker before the task pauses.
    """

    def __init__(self, iterator: AsyncIterator[T], limit: int):
        self._iterator = iterator
        self._limit = limit
        self._items: list[T] = []
        self._error: BaseException | None = None
        self._ended = False
        self._filled, self._drained = asyncio.Event(), asyncio.Event()
        # The context of the task in which the iterator was begun, where Python tells.
        of_task = getattr(asyncio.current_task(), "get_context", None)
        options = {} if of_task is None else {"context": of_task()}
        self._task = asyncio.get_running_loop().create_task(self._read(), **options)

    async def take(self, linger: float) -> list[T]:
        """The items that are there, at least one; none: the iterator has ended.

        Args:
            linger: seconds to wait for more to come.

        Raises:
            BaseException: what the iterator has raised, after the items before it.
        """
        if not self._items and not self._ended:
            self._filled.clear()
            await self._filled.wait()
        if linger and not self._ended and len(self._items) < self._limit // 2:
            await asyncio.sleep(linger)
        items, self._items = self._items, []
        self._drained.set()
        if not items and self._error is not None:
            raise self._error
        return items

    async def close(self) -> None:
        """Read no more, and close the iterator."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if hasattr(self._iterator, "aclose"):
            await self._iterator.aclose()

    async def _read(self) -> None:
        try:
            async for item in self._iterator:
                self._items.append(item)
                self._filled.set()
                if len(self._items) >= self._limit:
                    self._drained.clear()
                    await self._drained.wait()
        except BaseException as error:
            self._error = error
            if not isinstance(error, Exception):
                raise
        finally:
            self._ended = True
            self._filled.set()


# --- flows ------------------------------------------------------------------------------------


class Do:
    """Blocking work of our own: a coroutine's driver does it on another thread."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[], Any]):
        self.function = function


class Call:
    """A function of the user's: called where the driver runs, awaited if it gives an awaitable.

    Attributes:
        begun: set right before it is called.
    """

    __slots__ = ("begun", "function")

    def __init__(self, function: Callable[[], Any]):
        self.function = function
        self.begun = False


class Pause:
    """Nothing, for some seconds."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float):
        self.seconds = seconds


Flow = Generator[Any, Any, T]


def drive(flow: Flow[T]) -> T:
    """Carry a flow out in this thread; what it returns."""
    step = flow.send
    value: Any = None
    while True:
        try:
            effect = step(value)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        try:
            value, step = _done(effect), flow.send
        except BaseException as error:  # noqa: BLE001 - it is the flow's to deal with
            value, step = error, flow.throw


def _done(effect: Any) -> Any:
    if isinstance(effect, Pause):
        time.sleep(effect.seconds)
        return None
    if isinstance(effect, Call):
        effect.begun = True
        value = effect.function()
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise TypeError("a coroutine function was given to a graph that runs without asyncio")
        return value
    return effect.function()


async def adrive(flow: Flow[T], offload: Offload) -> T:
    """Carry a flow out in a coroutine; what it returns.

    When the coroutine is cancelled, work of our own that was begun is finished, nothing of the
    user's is begun any more, and the flow is told; what it still does is done at once.
    """
    driver = _Driver(offload)
    step = flow.send
    value: Any = None
    while True:
        try:
            effect = step(value)
        except StopIteration as stop:
            if driver.cancelled is not None:
                raise driver.cancelled from None
            return stop.value  # type: ignore[no-any-return]
        try:
            value, step = await driver.done(effect), flow.send
        except BaseException as error:  # noqa: BLE001 - it is the flow's to deal with
            value, step = error, flow.throw


class _Driver:
    """Carries out effects for one coroutine."""

    def __init__(self, offload: Offload):
        self._offload = offload
        self.cancelled: BaseException | None = None

    async def done(self, effect: Any) -> Any:
        """What an effect gives."""
        if isinstance(effect, Do):
            return effect.function() if self.cancelled else await self._work(effect)
        if self.cancelled is not None:
            raise self.cancelled
        try:
            if isinstance(effect, Pause):
                return await asyncio.sleep(effect.seconds)
            effect.begun = True
            value = effect.function()
            return await value if inspect.isawaitable(value) else value
        except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt) as error:
            self.cancelled = error
            raise

    async def _work(self, effect: Do) -> Any:
        future = self._offload.submit(effect.function)
        try:
            return await asyncio.wrap_future(future)
        except (asyncio.CancelledError, GeneratorExit) as error:
            # A commit under way: a few milliseconds, and then what it did is known.
            self.cancelled = error
            return _result_of(future, effect)


def _result_of(future: Future[Any], effect: Do) -> Any:
    # Cancelling the waiting side cancels a future that had not begun.
    return effect.function() if future.cancelled() else future.result()
