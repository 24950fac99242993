"""Reads a fast stream ahead of who takes it, so that its chunks can share a commit.

A stream that is slower than its commits is read by its taker, chunk by chunk; nothing is gained by
reading ahead, and a hop between threads costs more than a commit. One that has proved fast is read on
by another thread (a task, for coroutines). Knows nothing of chunks or of the database.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from queue import SimpleQueue
from time import perf_counter, sleep
from typing import Any, Final, Generic, TypeVar

from langgraph_resilient._aio import TaskAhead

T = TypeVar("T")
LIMIT: Final = 256
"""Items that wait for their taker before the reader pauses."""
LINGER: Final = 0.002
"""Seconds that an item of a fast stream waits for more: an eighth of a screen's frame."""
_PROBED: Final = 16
"""Items after which it is known whether a stream is fast."""
_FAST: Final = 250e-6
"""Seconds an item of a fast stream takes at most, on average."""


class Pace:
    """Whether a stream is fast: told by when its items were taken.

    Args:
        clock: seconds from any start.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter):
        self._clock = clock
        self._since = clock()
        self._items = 0
        self.fast = False

    def probed(self) -> bool:
        """Count an item that was taken alone; whether the stream has proved fast."""
        self._items += 1
        if self._items >= _PROBED:
            self.taken(self._items)
            self._items = 0
        return self.fast

    def taken(self, items: int) -> None:
        """Tell that some items were taken together."""
        now = self._clock()
        self.fast = now - self._since <= items * _FAST
        self._since = now


def batches(source: Iterator[T], *, ahead: bool = True) -> Iterator[list[T]]:
    """The items of an iterator in their order, those together that are there at the same time.

    The source runs in one context of its own, whichever thread reads it. It is closed when this
    generator is; while another thread waits for its next item, as soon as that has come.

    Args:
        source: the iterator.
        ahead: whether it may be read ahead at all.
    """
    iterator, context, pace = iter(source), contextvars.copy_context(), Pace()
    step = iterator.__next__
    reader: ThreadAhead[T] | None = None
    try:
        while not (pace.probed() and ahead):
            try:
                item = context.run(step)
            except StopIteration:
                return
            yield [item]
        reader = ThreadAhead(iterator, context)
        while items := reader.take(linger=pace.fast):
            pace.taken(len(items))
            yield items
    finally:
        if reader is None:
            context.run(_close, iterator)
        else:
            reader.close()


async def abatches(
    source: AsyncIterator[T], *, ahead: bool = True
) -> AsyncGenerator[list[T], None]:
    """`batches`, of an asynchronous iterator: a task reads ahead."""
    iterator, pace = source.__aiter__(), Pace()
    reader: TaskAhead[T] | None = None
    try:
        while not (pace.probed() and ahead):
            try:
                item = await iterator.__anext__()
            except StopAsyncIteration:
                return
            yield [item]
        reader = TaskAhead(iterator, LIMIT)
        while items := await reader.take(LINGER if pace.fast else 0):
            pace.taken(len(items))
            yield items
    finally:
        if reader is not None:
            await reader.close()
        elif hasattr(iterator, "aclose"):
            await iterator.aclose()


def _close(iterator: Any) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


class ThreadAhead(Generic[T]):
    """Reads an iterator to its end in a thread of its own.

    Args:
        iterator: nobody else reads it from now on.
        context: what it runs in.
    """

    def __init__(self, iterator: Iterator[T], context: contextvars.Context):
        self._iterator = iterator
        self._queue: SimpleQueue[T | _End] = SimpleQueue()
        self._end: _End | None = None
        self._drained = threading.Event()
        """Set when there is room in the queue, and when nobody takes from it any more."""
        self._closed = False
        # A thread that waits for a provider must not keep the process alive.
        target, name = context.run, "resilient-ahead"
        threading.Thread(target=target, args=(self._read,), name=name, daemon=True).start()

    def take(self, *, linger: bool) -> list[T]:
        """The items that are there, at least one; none: the iterator has ended.

        Args:
            linger: wait a moment for more to come.

        Raises:
            BaseException: what the iterator has raised, after the items before it.
        """
        queue, items = self._queue, list[T]()
        if self._end is None:
            self._keep(queue.get(), items)
        if linger and self._end is None and queue.qsize() < LIMIT // 2:
            sleep(LINGER)
        while self._end is None and not queue.empty():
            self._keep(queue.get(), items)
        self._drained.set()
        if not items and self._end is not None and self._end.error is not None:
            raise self._end.error
        return items

    def _keep(self, item: T | _End, items: list[T]) -> None:
        if isinstance(item, _End):
            self._end = item
        else:
            items.append(item)

    def close(self) -> None:
        """Read no more; the iterator is closed when its present step has ended."""
        self._closed = True
        self._drained.set()

    def _read(self) -> None:
        put, size, drained = self._queue.put, self._queue.qsize, self._drained
        end = _End(None)
        try:
            for item in self._iterator:
                if self._closed:
                    break
                put(item)
                if size() >= LIMIT:
                    drained.clear()
                    if size() >= LIMIT and not self._closed:
                        drained.wait()
        except BaseException as error:  # noqa: BLE001 - it is the taker's
            end = _End(error)
        try:
            _close(self._iterator)
        except BaseException as error:  # noqa: BLE001 - it is the taker's, if it still takes
            end = end if end.error is not None else _End(error)
        put(end)


class _End:
    """The end of an iterator, and the error that ended it."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException | None):
        self.error = error
