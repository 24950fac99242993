"""The savers that are measured, each opened on a file with a given `synchronous`.

A plugin knows how to open its saver and which channel its graph uses; nothing here measures.
"""

from __future__ import annotations

import importlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiosqlite
import zstandard
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from benchmarks.keeper import Keeper

OURS = "langgraph_resilient:ResilientSaver.from_conn_string"
SYNCHRONOUS = {"FULL": "PRAGMA synchronous=FULL", "NORMAL": "PRAGMA synchronous=NORMAL"}


class ZstdSerde(JsonPlusSerializer):
    """LangGraph's serializer with zstd-3 around it: what a careful user writes in ten lines."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Return the compressed form; a compressor per call, since they are not thread-safe."""
        kind, data = super().dumps_typed(obj)
        return kind + "+zstd", zstandard.ZstdCompressor(3).compress(data)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Return the value that `dumps_typed` stored."""
        plain = zstandard.ZstdDecompressor().decompress(data[1])
        return super().loads_typed((data[0].removesuffix("+zstd"), plain))


@contextmanager
def open_sqlite(path: str, *, synchronous: str, zstd: bool = False) -> Iterator[SqliteSaver]:
    """Open `SqliteSaver` as its `from_conn_string` does, with `synchronous` said aloud."""
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        saver = SqliteSaver(connection, serde=ZstdSerde() if zstd else None)
        saver.setup()
        connection.execute(SYNCHRONOUS[synchronous])
        yield saver
    finally:
        connection.close()


@asynccontextmanager
async def open_async_sqlite(path: str, *, synchronous: str) -> AsyncIterator[AsyncSqliteSaver]:
    """Open `AsyncSqliteSaver` as its `from_conn_string` does, with `synchronous` said aloud."""
    async with aiosqlite.connect(path) as connection:
        saver = AsyncSqliteSaver(connection)
        await saver.setup()
        await connection.execute(SYNCHRONOUS[synchronous])
        yield saver


@contextmanager
def open_nothing(path: str, *, synchronous: str) -> Iterator[Keeper]:
    """Open a saver that stores nothing: the time of a run on it is LangGraph's own."""
    yield Keeper()


class SqliteStandIn:
    """`SqliteSaver` where ours is expected: tries the benchmark itself out (`--ours`)."""

    def __init__(self, path: str, *, synchronous: str) -> None:
        self._sync = open_sqlite(path, synchronous=synchronous)
        self._async = open_async_sqlite(path, synchronous=synchronous)

    def __enter__(self) -> SqliteSaver:
        return self._sync.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._sync.__exit__(*error)

    async def __aenter__(self) -> AsyncSqliteSaver:
        return await self._async.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        await self._async.__aexit__(*error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A saver under measurement.

    `open(path, synchronous=...)` gives a context manager, an async one where `asynchronous`;
    `snapshot_frequency` asks for a graph with a `DeltaChannel`, `durability` for runs with that
    one (None: as LangGraph does it, "async").
    """

    name: str
    open: Callable[..., AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]
    asynchronous: bool = False
    snapshot_frequency: int | None = None
    durability: str | None = None


def _resolve(target: str) -> Callable[..., Any]:
    module, _, path = target.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    if not callable(found):
        raise TypeError(f"{target} is not callable; give module:factory")
    return found  # type: ignore[no-any-return]


def plugin(name: str, ours: str = OURS) -> Plugin:
    """Return the saver of that name; `ours` is `module:factory` of the saver under test.

    Names: ours, sqlite, nothing; `+delta100` and `+delta1000` put a `DeltaChannel` into the graph
    (and zstd-3 into `sqlite`); `+async` takes the asynchronous side.
    """
    base, *traits = name.split("+")
    asynchronous = "async" in traits
    frequency = next((int(trait[5:]) for trait in traits if trait.startswith("delta")), None)
    opener: Callable[..., Any]
    if base == "ours":
        opener = _resolve(ours)
    elif base == "sqlite" and asynchronous:
        opener = open_async_sqlite
    elif base == "sqlite":
        opener = partial(open_sqlite, zstd=frequency is not None)
    elif base == "nothing":
        opener = open_nothing
    else:
        raise ValueError(f"unknown saver {name!r}; known: ours, sqlite, nothing")
    return Plugin(name=name, open=opener, asynchronous=asynchronous, snapshot_frequency=frequency)
