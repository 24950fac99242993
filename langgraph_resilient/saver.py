"""ResilientSaver: LangGraph's vocabulary to records and back. Every a* method is one hop.

This module knows LangGraph's configs and tuples, and no SQL, no bytes and no asyncio.
"""

from __future__ import annotations

import copy
import os
import sqlite3
import threading
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol, maybe_add_typed_methods
from typing_extensions import Self

from langgraph_resilient import (
    configs,
    copying,
    history,
    lifetimes,
    listing,
    recording,
    retention,
    versions,
)
from langgraph_resilient.codec.keys import pack_name
from langgraph_resilient.draft import Draft
from langgraph_resilient.engine import Engine
from langgraph_resilient.errors import ConfigurationError, UnknownOutcome
from langgraph_resilient.holding import Checkpointed, Holder, Writes, held_tuple
from langgraph_resilient.ledger.fence import fence
from langgraph_resilient.options import Options
from langgraph_resilient.records import Snapshot
from langgraph_resilient.serde import ResilientSerde
from langgraph_resilient.store.target import Target
from langgraph_resilient.views import Views

if TYPE_CHECKING:
    import aiosqlite

T = TypeVar("T")


ENVIRONMENT = "resilient_environment"
"""Key of a checkpoint's metadata under which a guarded graph says what it was made of."""


class ResilientSaver(Views, BaseCheckpointSaver[Any]):
    """A drop-in for ``SqliteSaver`` and ``AsyncSqliteSaver``: compressed and crash-safe.

    One saver serves ``invoke`` and ``ainvoke``, any thread and any event loop. Values are stored
    once by content, so that the cost of a step follows what the step changed.

    Args:
        conn: your own ``sqlite3.Connection``, as for ``SqliteSaver(conn)``; or an
            ``aiosqlite.Connection`` to a file, as for ``AsyncSqliteSaver(conn)``, beside which
            connections of the saver's own are used. Better: `from_conn_string`, which reads and
            writes at once.
        serde: a serializer of your own, for example ``EncryptedSerializer``. What it makes is
            opaque: it is compressed and stored per channel version, not per message.
        **options: see `langgraph_resilient.options.Options`.

    Promises: when `put` or `put_writes` returned, the data survives kill -9 (and with
    ``synchronous="FULL"``, the default, a power cut). A failed call leaves nothing behind.
    """

    environment: Callable[[str], Mapping[str, Any]] | None = None
    """Gives what is noted with each checkpoint of a thread, in the copy that a guarded graph has."""

    def __init__(
        self,
        conn: sqlite3.Connection | aiosqlite.Connection | None = None,
        *,
        serde: SerializerProtocol | None = None,
        **options: Any,
    ) -> None:
        if conn is None:
            raise ConfigurationError(
                'give a connection, or use ResilientSaver.from_conn_string("agent.db")'
            )
        if isinstance(conn, sqlite3.Connection):
            engine = Engine(Target(":memory:", False, None, {}), Options.build(options), conn)
        else:
            engine = Engine(Target.beside(conn), Options.build(options))
        self._start(engine, serde)

    def _start(self, engine: Engine, serde: SerializerProtocol | None) -> None:
        self._engine = engine
        self._ledger = self._journal = None
        self._holder: Holder | None = None
        if engine.options.policy is not None:
            self._holder = Holder(engine.options.policy, self._store, self._store_writes)
            engine.keep = self._holder.keep
        engine.adopt = self._adopt
        native = ResilientSerde(engine.policy)
        super().__init__(serde=native if serde is None else serde)

    @classmethod
    def from_conn_string(
        cls,
        conn_string: str | os.PathLike[str],
        *,
        serde: SerializerProtocol | None = None,
        **options: Any,
    ) -> Self:
        """A saver on a database, usable at once and in ``with`` and ``async with``.

        Args:
            conn_string: a path, ``":memory:"``, a SQLite URI (``file:agent.db?mode=ro``), or
                ``postgresql://…`` for a PostgreSQL server (extra ``postgres``).
            serde: see the class.
            **options: see `langgraph_resilient.options.Options`.

        Raises:
            ConfigurationError: the string or an option cannot work.
        """
        saver = cls.__new__(cls)
        saver._start(Engine(Target.parse(conn_string), Options.build(options)), serde)
        return saver

    # --- life ---------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._engine.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await self._hop(self._engine.open)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._hop(self._finish)
        self.close()

    def close(self) -> None:
        """Finish what was begun and release the file. Closing twice is harmless.

        A connection that you gave stays open: it is yours.
        """
        self._finish()
        self._engine.close()

    def _finish(self) -> None:
        if not self._engine.db.closed:
            self._keep()
        self._engine.db.close()

    async def aclose(self) -> None:
        """`close`, for coroutines."""
        await self.__aexit__(None, None, None)

    def setup(self) -> Awaitable[None]:
        """Make the tables. Never needed: every operation does it.

        Returns:
            Something that may be awaited, as ``AsyncSqliteSaver.setup`` is, and need not be.
        """
        self._engine.open()
        return _Done()

    @property
    def is_setup(self) -> bool:
        """Whether the tables are known to exist."""
        return self._engine.ready

    @property
    def conn(self) -> Any:
        """The write connection, for tools that look at a ``SqliteSaver``'s; hold `lock` meanwhile.

        A ``sqlite3.Connection``, or psycopg's on PostgreSQL.
        """
        self._engine.open()
        return self._engine.db.connection

    @property
    def lock(self) -> threading.RLock:
        """Guards `conn`."""
        return self._engine.db.lock

    @contextmanager
    def cursor(self, transaction: bool = True) -> Iterator[Any]:
        """A cursor on `conn` under `lock`; commits at the end, or rolls back on an exception."""
        with self.lock:
            cursor = self.conn.cursor()
            try:
                if transaction and not self.conn.in_transaction:
                    cursor.execute("BEGIN")
                yield cursor
            except BaseException:
                if transaction:
                    self.conn.rollback()
                raise
            else:
                if transaction:
                    self.conn.commit()
            finally:
                cursor.close()

    # --- serializers --------------------------------------------------------------------------

    def _user_serde(self) -> SerializerProtocol | None:
        serde = self.serde
        return None if isinstance(serde, ResilientSerde) else maybe_add_typed_methods(serde)

    def _adopt(self, thread_id: str) -> None:
        listing.adopt(self._engine, thread_id, self._user_serde())

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> ResilientSaver:
        """A saver on the same database that strict mode lets restore more types."""
        if not isinstance(self.serde, ResilientSerde):
            return super().with_allowlist(extra_allowlist)  # type: ignore[return-value]
        serde = self.serde.with_allowlist(extra_allowlist)
        if serde is self.serde:
            return self
        clone = copy.copy(self)
        clone.serde = serde
        return clone

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Integers for new threads; a thread that ``SqliteSaver`` began goes on with its strings."""
        return versions.following(current)

    # --- reading ------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that a config names, or the newest of its thread and namespace.

        Returns:
            None when there is no such checkpoint.

        Raises:
            DataCorrupt: it is there but damaged; damage never reads as absence.
        """
        self._take(config)
        found = self._found(config)
        versions.note(found)
        return found

    def _found(self, config: RunnableConfig) -> CheckpointTuple | None:
        found = self._find(config)
        if configs.begins_run(config):
            head = pack_name(found.checkpoint["id"]) if found is not None else b""
            self._engine.runs.begin(str(config["configurable"]["thread_id"]), head)
        if found is not None and self._engine.options.refresh_on_read:
            lifetimes.refresh(self._engine, str(config["configurable"]["thread_id"]))
        return found

    def _find(self, config: RunnableConfig) -> CheckpointTuple | None:
        spot = configs.spot(config)
        held = self._holder and self._holder.find(
            spot.thread_id, spot.checkpoint_ns, spot.checkpoint_id
        )
        if held:
            return held_tuple(self.serde, held, config if spot.checkpoint_id else None)
        found = listing.get(self._engine, self._reader(), spot)
        if found is None:
            return None
        return _tuple(found, config if spot.checkpoint_id else None)

    def _reader(self) -> listing.Reading:
        policy = self.serde.policy if isinstance(self.serde, ResilientSerde) else None
        return listing.Reading(serde=self._user_serde(), policy=policy)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, the one written last first.

        Reads a page at a time; no lock and no cursor is held while the caller works.

        Args:
            config: the thread (and namespace, and checkpoint) to list; None for all threads.
            filter: metadata keys and the values they must equal.
            before: only checkpoints written before this one.
            limit: how many at most.
        """
        self._keep()
        pages = listing.pages(
            self._engine, self._reader(), configs.query(config, filter, before, limit)
        )
        for page in pages:
            for snapshot in page:
                yield _tuple(snapshot)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What some channels' values are rebuilt from; see the base class for the contract."""
        if not channels:
            return {}
        spot = configs.spot(config)
        self._keep(spot.thread_id)  # the way to what the channels are rebuilt from leads through it
        return history.read(self._engine, self._reader(), spot, channels)

    # --- writing ------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; durable on return, all or nothing.

        Returns:
            The config that names it.

        Raises:
            ValueRefused: a value cannot be stored so that it comes back equal.
            StorageError: the database could not store it.
        """
        spot = configs.spot(config)
        told = configs.metadata(config, metadata)
        if self.environment is not None:
            told[ENVIRONMENT] = self.environment(spot.thread_id)
        given = Checkpointed(
            thread_id=spot.thread_id,
            checkpoint_ns=spot.checkpoint_ns,
            checkpoint=checkpoint,
            metadata=told,
            parent=spot.checkpoint_id,
            in_run=configs.in_run(config),
        )
        if self._holder is None:
            self._store(given)
        else:
            self._holder.put(given)
        thread_id = config["configurable"]["thread_id"]
        return configs.config_of(thread_id, spot.checkpoint_ns, checkpoint["id"])

    def _store(self, given: Checkpointed) -> None:
        def build(draft: Draft) -> None:
            name = given.checkpoint_ns
            parts = (given.checkpoint, given.metadata, given.parent, self._user_serde())
            if given.in_run:
                fence(draft)
            if recording.put(draft, name, *parts) and given.skipped:
                draft.count_skipped(name, given.skipped)

        self._engine.change(given.thread_id, build)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task wrote; durable on return, all or nothing. Doing it twice is harmless.

        Raises:
            ValueRefused: a value cannot be stored so that it comes back equal.
            StorageError: the database could not store it.
        """
        spot = configs.spot(config)
        if spot.checkpoint_id is None:
            raise ConfigurationError("put_writes needs a checkpoint_id in config['configurable']")
        if not writes:
            return
        given = (writes, str(task_id), task_path)
        place = (spot.thread_id, spot.checkpoint_ns, spot.checkpoint_id)
        if self._holder is None or not self._holder.put_writes(*place, given):
            self._store_writes(*place, given, in_run=configs.in_run(config))

    def _store_writes(
        self, thread_id: str, checkpoint_ns: str, id: str, given: Writes, *, in_run: bool = True
    ) -> None:
        def build(draft: Draft) -> None:
            if in_run:
                fence(draft)
            recording.put_writes(draft, checkpoint_ns, id, *given, self._user_serde())

        self._engine.change(thread_id, build)

    def _keep(self, thread_id: str | None = None) -> None:
        """Store what a policy holds back, so that all of a thread can be worked on."""
        if self._holder is not None:
            self._holder.keep(thread_id)

    # --- retention ----------------------------------------------------------------------------

    def delete_thread(self, thread_id: str, *, force: bool = False) -> None:
        """Delete all of a thread: checkpoints, writes, tool calls, contents that no other uses.

        Args:
            thread_id: the thread.
            force: also when the outcome of one of its tool calls is unknown.

        Raises:
            UnknownOutcome: it is, and deleting would lose the only trace of that call.
        """
        self._check_known([str(thread_id)], force)
        if self._holder is not None:
            self._holder.forget(str(thread_id))
        retention.delete_thread(self._engine, str(thread_id))

    def _check_known(self, thread_ids: Sequence[str], force: bool) -> None:
        for thread_id in () if force else thread_ids:
            for entry in self.ledger.unknown(thread_id):
                raise UnknownOutcome(
                    f"thread {entry.thread_id!r} is not deleted: nobody knows whether its call to "
                    f"{entry.tool!r} took effect. Decide with `langgraph-resilient ledger resolve "
                    f"{entry.key}`, or delete with force=True",
                    key=entry.key,
                    tool=entry.tool,
                )

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints (with their writes) whose metadata carry one of the run ids.

        Safe for delta channels: what kept checkpoints are rebuilt from is kept with them.
        """
        self._keep()
        retention.delete_for_runs(self._engine, self._reader(), [str(item) for item in run_ids])

    def copy_thread(
        self, source_thread_id: str, target_thread_id: str, *, latest_only: bool = False
    ) -> None:
        """Copy checkpoints, writes and calls of a thread; contents are shared, not copied.

        Args:
            source_thread_id: the thread; one that is not there copies nothing.
            target_thread_id: its copy.
            latest_only: only the newest checkpoint of each namespace, with its pending writes; delta
                channels are whole. Tool calls and open model calls are copied either way.

        Raises:
            ConfigurationError: the target thread already has checkpoints.
        """
        source, target = str(source_thread_id), str(target_thread_id)
        self._keep(source)
        copying.copy_thread(self._engine, source, target, latest_only=latest_only)

    def prune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        force: bool = False,
    ) -> None:
        """Keep only the newest checkpoint of each namespace, or nothing.

        Safe for delta channels: what the kept checkpoint is rebuilt from is kept with it.

        Args:
            thread_ids: the threads.
            strategy: ``"keep_latest"`` or ``"delete"``.
            force: with ``"delete"``, see `delete_thread`.

        Raises:
            UnknownOutcome: see `delete_thread`.
        """
        if strategy == "delete":
            self._check_known([str(item) for item in thread_ids], force)
        self._keep()
        retention.prune(self._engine, self._reader(), [str(item) for item in thread_ids], strategy)

    # --- coroutines: one hop each ---------------------------------------------------------------

    async def _hop(self, function: Callable[[], T]) -> T:
        return await self._engine.offload.run(function)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple`, for coroutines."""
        if self._takes(config):
            await self._engine.waiting.run(partial(self._take, config))
        found = await self._hop(partial(self._found, config))
        versions.note(found)  # not on the other thread, whose context is a copy
        return found

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list`, for coroutines; one hop a page."""
        await self._hop(self._keep)
        pages = listing.pages(
            self._engine, self._reader(), configs.query(config, filter, before, limit)
        )
        while (page := await self._hop(partial(next, pages, None))) is not None:
            for snapshot in page:
                yield _tuple(snapshot)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`put`, for coroutines."""
        return await self._hop(partial(self.put, config, checkpoint, metadata, new_versions))

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """`put_writes`, for coroutines."""
        await self._hop(partial(self.put_writes, config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str, *, force: bool = False) -> None:
        """`delete_thread`, for coroutines."""
        await self._hop(partial(self.delete_thread, thread_id, force=force))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs`, for coroutines."""
        await self._hop(partial(self.delete_for_runs, run_ids))

    async def acopy_thread(
        self, source_thread_id: str, target_thread_id: str, *, latest_only: bool = False
    ) -> None:
        """`copy_thread`, for coroutines."""
        names = (source_thread_id, target_thread_id)
        await self._hop(partial(self.copy_thread, *names, latest_only=latest_only))

    async def aprune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        force: bool = False,
    ) -> None:
        """`prune`, for coroutines."""
        await self._hop(partial(self.prune, thread_ids, strategy=strategy, force=force))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`get_delta_channel_history`, for coroutines."""
        return await self._hop(
            partial(self.get_delta_channel_history, config=config, channels=channels)
        )


class _Done:
    """An awaitable that has nothing to wait for and does not mind not being awaited."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


def _tuple(found: Snapshot, config: RunnableConfig | None = None) -> CheckpointTuple:
    named = partial(configs.config_of, found.thread_id, found.checkpoint_ns)
    return CheckpointTuple(
        config=config or named(found.checkpoint_id),
        checkpoint=found.checkpoint,  # type: ignore[arg-type]
        metadata=found.metadata,  # type: ignore[arg-type]
        parent_config=named(found.parent_id) if found.parent_id else None,
        pending_writes=[(w.task_id, w.channel, w.value) for w in found.writes],
    )
