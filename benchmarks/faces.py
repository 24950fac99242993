"""One way to drive a saver, synchronous or asynchronous, and to time its calls.

Everything that is measured is written once against a face; only here is known that the
asynchronous side has an event loop. Times are seconds of `perf_counter`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter
from typing import Any, cast

from benchmarks.savers import Plugin
from benchmarks.workloads import Turn

Timings = dict[str, list[float]]
States = dict[str, Any]  # thread → its state as the last run of it returned it


def _how(plugin: Plugin) -> dict[str, Any]:
    """Return the keywords of `invoke` that the plugin asks for."""
    return {} if plugin.durability is None else {"durability": plugin.durability}


def _timed(method: Callable[..., Any], into: list[float]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        start = perf_counter()
        try:
            return method(*args, **kwargs)
        finally:
            into.append(perf_counter() - start)

    return call


def _timed_writes(method: Callable[..., Any], into: list[float]) -> Callable[..., Any]:
    timed = _timed(method, into)

    # LangGraph looks for `task_path` in the signature and drops it where it is missing.
    def call(config: Any, writes: Any, task_id: str, task_path: str = "") -> Any:
        return timed(config, writes, task_id, task_path)

    return call


def _atimed(method: Callable[..., Any], into: list[float]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        start = perf_counter()
        try:
            return await method(*args, **kwargs)
        finally:
            into.append(perf_counter() - start)

    return call


def _atimed_writes(method: Callable[..., Any], into: list[float]) -> Callable[..., Any]:
    timed = _atimed(method, into)

    async def call(config: Any, writes: Any, task_id: str, task_path: str = "") -> Any:
        return await timed(config, writes, task_id, task_path)

    return call


@contextmanager
def timing(saver: Any, *, asynchronous: bool) -> Iterator[Timings]:
    """Time each put, put_writes and get_tuple that anybody makes on this saver meanwhile."""
    timings: Timings = defaultdict(list)
    prefix = "a" if asynchronous else ""
    plain, writes = (_atimed, _atimed_writes) if asynchronous else (_timed, _timed_writes)
    for name in ("put", "put_writes", "get_tuple"):
        wrap = writes if name == "put_writes" else plain
        setattr(saver, prefix + name, wrap(getattr(saver, prefix + name), timings[name]))
    try:
        yield timings
    finally:
        for name in ("put", "put_writes", "get_tuple"):
            delattr(saver, prefix + name)


class SyncFace:
    """Drives `invoke`, `get_state` and the saver's plain methods."""

    def __init__(self, plugin: Plugin, path: str, synchronous: str) -> None:
        self._manager = cast(Any, plugin.open(path, synchronous=synchronous))
        self._keywords = _how(plugin)
        self.asynchronous = False
        self.saver: Any = self._manager.__enter__()

    def close(self) -> None:
        """Leave the saver's `with`."""
        self._manager.__exit__(None, None, None)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, float]:
        """Call a method of the saver; return its result and how long it took by the clock."""
        method = getattr(self.saver, name)
        start = perf_counter()
        result = method(*args, **kwargs)
        return result, perf_counter() - start

    def read_list(self, config: Any, **options: Any) -> tuple[int, float]:
        """Read a whole `list`, keeping nothing; return how many came and how long it took."""
        start = perf_counter()
        count = sum(1 for _ in self.saver.list(config, **options))
        return count, perf_counter() - start

    def state(self, graph: Any, config: Any) -> float:
        """Return how long `get_state` takes."""
        start = perf_counter()
        graph.get_state(config)
        return perf_counter() - start

    def values(self, graph: Any, config: Any) -> Any:
        """Return the state that the saver gives back."""
        return graph.get_state(config).values

    def play(self, graph: Any, turns: Sequence[Turn]) -> States:
        """Run the turns one after another; return what the last run of each thread returned."""
        states: States = {}
        for turn in turns:
            states[turn.thread_id] = graph.invoke(turn.inputs, turn.config, **self._keywords)
        return states

    def play_together(self, graph: Any, groups: Sequence[Sequence[Turn]]) -> States:
        """Run each group in a thread of its own, all at once; see `play`."""
        states: States = {}
        with ThreadPoolExecutor(len(groups)) as pool:
            for done in [pool.submit(self.play, graph, group) for group in groups]:
                states.update(done.result())
        return states


class AsyncFace:
    """Drives `ainvoke`, `aget_state` and the saver's `a` methods on one event loop."""

    def __init__(self, plugin: Plugin, path: str, synchronous: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._keywords = _how(plugin)
        self.asynchronous = True
        self._manager: Any = None
        self.saver: Any = self._run(self._open(plugin, path, synchronous))

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    async def _open(self, plugin: Plugin, path: str, synchronous: str) -> Any:
        self._manager = plugin.open(path, synchronous=synchronous)
        return await self._manager.__aenter__()

    def close(self) -> None:
        """Leave the saver's `async with` and end the loop."""
        self._run(self._manager.__aexit__(None, None, None))
        self._run(self._loop.shutdown_default_executor())
        self._loop.close()

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, float]:
        """Await a method of the saver (named without its `a`); see `SyncFace.call`."""

        async def call() -> tuple[Any, float]:
            start = perf_counter()
            result = await getattr(self.saver, "a" + name)(*args, **kwargs)
            return result, perf_counter() - start

        done: tuple[Any, float] = self._run(call())
        return done

    def read_list(self, config: Any, **options: Any) -> tuple[int, float]:
        """See `SyncFace.read_list`."""

        async def read() -> tuple[int, float]:
            start = perf_counter()
            count = 0
            async for _ in self.saver.alist(config, **options):
                count += 1
            return count, perf_counter() - start

        done: tuple[int, float] = self._run(read())
        return done

    def state(self, graph: Any, config: Any) -> float:
        """See `SyncFace.state`."""

        async def read() -> float:
            start = perf_counter()
            await graph.aget_state(config)
            return perf_counter() - start

        seconds: float = self._run(read())
        return seconds

    def values(self, graph: Any, config: Any) -> Any:
        """See `SyncFace.values`."""
        return self._run(graph.aget_state(config)).values

    async def _play(self, graph: Any, turns: Sequence[Turn]) -> States:
        states: States = {}
        for turn in turns:
            states[turn.thread_id] = await graph.ainvoke(turn.inputs, turn.config, **self._keywords)
        return states

    def play(self, graph: Any, turns: Sequence[Turn]) -> States:
        """See `SyncFace.play`."""
        states: States = self._run(self._play(graph, turns))
        return states

    def play_together(self, graph: Any, groups: Sequence[Sequence[Turn]]) -> States:
        """Run each group in a task of its own, all at once; see `SyncFace.play`."""

        async def together() -> States:
            found = await asyncio.gather(*(self._play(graph, group) for group in groups))
            return {thread_id: state for states in found for thread_id, state in states.items()}

        states: States = self._run(together())
        return states


Face = SyncFace | AsyncFace


def open_face(plugin: Plugin, path: str, synchronous: str) -> Face:
    """Open the plugin's saver on `path` and return what drives it; the caller closes it."""
    if plugin.asynchronous:
        return AsyncFace(plugin, path, synchronous)
    return SyncFace(plugin, path, synchronous)
