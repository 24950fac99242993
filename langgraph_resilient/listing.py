"""Reading whole checkpoints: one, or pages of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from langgraph_resilient import configs, legacy
from langgraph_resilient.codec import envelope
from langgraph_resilient.codec.keys import pack_name, unpack_name
from langgraph_resilient.codec.types import TypePolicy
from langgraph_resilient.engine import Engine
from langgraph_resilient.errors import CheckpointCorrupt
from langgraph_resilient.recording import UserSerde
from langgraph_resilient.records import NamespaceRow, Snapshot, ThreadRow
from langgraph_resilient.restoring import Restorer, collector_paused, primed_lists
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Row, Session

_FIRST_PAGE = 4
_PAGE = 16
_SOUGHT = 128
"""Rows looked through at a time for those that a filter wants; few of them are restored."""
_END = 1 << 62


@dataclass(frozen=True, slots=True)
class Reading:
    """How values are restored."""

    serde: UserSerde | None = None
    policy: TypePolicy | None = None

    def restorer(self, engine: Engine, session: Session, thread: ThreadRow) -> Restorer:
        """A restorer for one thread."""
        return Restorer(engine, session, thread.thread_id, thread.number, self.serde, self.policy)


def adopt(engine: Engine, thread_id: str, serde: UserSerde | None = None) -> None:
    """Before a write: move a thread over that is only in the tables of ``SqliteSaver``."""
    engine.open()
    if engine.old_tables:
        legacy.adopt(engine, thread_id, serde)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """What a checkpoint says besides its contents.

    Attributes:
        versions: of its channels.
        seen: by node, the versions that it has seen.
        channels: those that hold a value.
        values: of the channels that were asked for.
    """

    versions: Mapping[str, Any]
    seen: Mapping[str, Mapping[str, Any]]
    channels: frozenset[str]
    values: Mapping[str, Any]


def get(engine: Engine, reading: Reading, spot: configs.Spot) -> Snapshot | None:
    """The checkpoint at a spot, or the newest one there."""
    epoch = engine.epoch
    with engine.reading(few=True) as session:
        thread = rows.find_thread(session, engine.sealer, spot.thread_id)
        if thread is None:
            return legacy.get(engine, session, reading.serde, spot)
        namespace = rows.find_namespace(session, engine.sealer, thread, spot.checkpoint_ns)
        if namespace is None:
            return None
        if engine.protected:
            rows.check_tally(session, namespace, thread.thread_id, engine.key)
        if spot.checkpoint_id is None:
            row = rows.head_of(session, engine.sealer, namespace, thread.thread_id)
        else:
            id = pack_name(spot.checkpoint_id)
            found = session.one("checkpoint_by_id", id, namespace.ns)
            row = None
            if found is not None:
                row = rows.opened_checkpoint(engine.sealer, found, namespace.ns, thread.thread_id)
        if row is None:
            return None
        restorer = reading.restorer(engine, session, thread)
        snapshot = restorer.snapshot(row, spot.checkpoint_ns)
        if restorer.series:
            _prime(engine, namespace, restorer, snapshot, epoch)
        return snapshot


def outline(
    engine: Engine, reading: Reading, thread_id: str, *, whole: Collection[str] = ()
) -> Outline | None:
    """The newest checkpoint of a thread's root graph without its contents; None where it is not so easy.

    Args:
        engine: lends database and codec.
        reading: how values are restored.
        thread_id: the thread.
        whole: channels whose values are wanted all the same.

    Raises:
        DataCorrupt: it is damaged.
    """
    with engine.reading(few=True) as session:
        thread = rows.find_thread(session, engine.sealer, thread_id)
        if thread is None:
            return None
        namespace = rows.find_namespace(session, engine.sealer, thread, "")
        if namespace is None:
            return None
        if engine.protected:
            rows.check_tally(session, namespace, thread_id, engine.key)
        row = rows.head_of(session, engine.sealer, namespace, thread_id)
        if row is None:
            return None
        restorer = reading.restorer(engine, session, thread)
        tree = restorer.envelope(row)
        if tree[0] & envelope.WALKED:
            return None
        values = tree[envelope.VALUES]
        return Outline(
            versions=tree[envelope.VERSIONS],
            seen=tree[envelope.SEEN],
            channels=frozenset(values),
            values={k: restorer.value(row, k, values[k]) for k in whole if k in values},
        )


def _prime(
    engine: Engine,
    namespace: NamespaceRow,
    restorer: Restorer,
    snapshot: Snapshot,
    epoch: int,
) -> None:
    """Let a run that goes on from here recognise the messages it was given."""
    state = engine.state(snapshot.thread_id)
    try:
        # Never wait here: a reader that waits for a writer that waits for the reader's lock.
        if not state.lock.acquire(blocking=False):
            return
        try:
            lists = primed_lists(
                engine, namespace.ns, restorer, snapshot.checkpoint.get("channel_values", {})
            )
            state.prime(epoch, lists)
            # A deletion meanwhile sets the epoch before it invalidates: one of the two is seen.
            if engine.epoch != epoch:
                state.invalidate()
        finally:
            state.lock.release()
    finally:
        engine.release(state)


# --- lists ------------------------------------------------------------------------------------


def pages(engine: Engine, reading: Reading, query: configs.Query) -> Iterator[list[Snapshot]]:
    """Pages of checkpoints, the one written last first; nothing is held between two pages."""
    left = query.limit
    after = _END
    size = _SOUGHT if query.filter else _FIRST_PAGE
    done = False
    while not done and (left is None or left > 0):
        with engine.reading() as session, collector_paused():
            found, after, done = _page(engine, reading, session, query, after, size, left)
        if found:
            yield found
        if left is not None:
            left -= len(found)
        size = _SOUGHT if query.filter else _PAGE
    if left is None or left > 0:
        yield from legacy.pages(engine, reading.serde, query, left)


def _page(
    engine: Engine,
    reading: Reading,
    session: Session,
    query: configs.Query,
    after: int,
    size: int,
    left: int | None,
) -> tuple[list[Snapshot], int, bool]:
    anchor = _anchor(engine, session, query)
    if after == _END and anchor is not None and query.checkpoint_ns is not None:
        after = anchor[1]
    keys = _keys(engine, session, query, after, size)
    found: list[Snapshot] = []
    threads: dict[int, tuple[NamespaceRow, Restorer]] = {}
    for row in keys:
        after = row[0]
        if not _is_before(query, anchor, row):
            continue
        namespace, restorer = _place(engine, reading, session, row[1], threads)
        opened = rows.opened_checkpoint(
            engine.sealer, (row[0], *row[2:]), row[1], restorer.thread_id
        )
        tree = restorer.envelope(opened)
        metadata = restorer.metadata(opened, tree)
        if query.filter and not configs.matches(metadata, query.filter):
            continue
        found.append(restorer.snapshot(opened, namespace.checkpoint_ns, tree, metadata))
        restorer.series.clear()
        if left is not None and len(found) >= left:
            return found, after, True
        if len(found) >= _PAGE:
            return found, after, False
    return found, after, len(keys) < size


def _anchor(engine: Engine, session: Session, query: configs.Query) -> tuple[int, int] | None:
    """Namespace and place of the checkpoint that `before` names, if it is in the listed thread.

    The order of writing means something within one namespace only: a parent graph's checkpoint may
    reach the store after newer ones of its subgraphs.
    """
    thread_id = query.before_thread or query.thread_id
    if query.before_id is None or thread_id is None:
        return None
    thread = rows.find_thread(session, engine.sealer, thread_id)
    if thread is None:
        return None
    id = pack_name(query.before_id)
    wanted = query.checkpoint_ns if query.before_ns is None else query.before_ns
    for row in session.all("namespaces", thread.number):
        if wanted is None or row[1] == wanted:
            found = session.one("checkpoint_exists", id, row[0])
            if found is not None:
                return row[0], found[0]
    return None


def _is_before(query: configs.Query, anchor: tuple[int, int] | None, row: Row) -> bool:
    if query.before_id is None:
        return True
    if anchor is not None and row[1] == anchor[0]:
        return bool(row[0] < anchor[1])
    return unpack_name(row[2]) < query.before_id


def _keys(
    engine: Engine, session: Session, query: configs.Query, after: int, size: int
) -> list[Row]:
    """Rows (seq, ns, id, parent, frame) of the next page."""
    if query.thread_id is None:
        if query.checkpoint_ns is None and query.checkpoint_id is None:
            return session.all("checkpoints_page_all", after, size)
        return []
    thread = rows.find_thread(session, engine.sealer, query.thread_id)
    if thread is None:
        return []
    if query.checkpoint_ns is not None:
        namespace = rows.find_namespace(session, engine.sealer, thread, query.checkpoint_ns)
        spaces = [] if namespace is None else [namespace]
    else:
        spaces = [
            rows.opened_namespace(
                engine.sealer, (row[0], thread.number, *row[1:]), thread.thread_id
            )
            for row in session.all("namespaces", thread.number)
        ]
    if after == _END:
        for namespace in spaces:
            _check(engine, session, namespace, thread.thread_id)
    if query.checkpoint_id is not None:
        id = pack_name(query.checkpoint_id)
        named = [(n.ns, session.one("checkpoint_by_id", id, n.ns)) for n in spaces]
        return [(r[0], ns, *r[1:]) for ns, r in named if r is not None and r[0] < after]
    found = [
        (row[0], namespace.ns, *row[1:])
        for namespace in spaces
        for row in session.all("checkpoints_page", namespace.ns, after, size)
    ]
    found.sort(key=lambda row: -row[0])
    return found[:size]


def _check(engine: Engine, session: Session, namespace: NamespaceRow, thread_id: str) -> None:
    """A list that would silently lack checkpoints is refused."""
    if engine.protected:
        rows.check_tally(session, namespace, thread_id, engine.key)
        return
    rows.head_of(session, engine.sealer, namespace, thread_id)
    count = session.one("checkpoints_count", namespace.ns, namespace.ns)
    if count is None or count[0] != namespace.checkpoints:
        raise CheckpointCorrupt(
            f"thread {thread_id!r}, namespace {namespace.checkpoint_ns!r}: "
            f"{count and count[0]} checkpoints are there, {namespace.checkpoints} were written; "
            "run `langgraph-resilient verify`",
            thread_id=thread_id,
        )


def _place(
    engine: Engine,
    reading: Reading,
    session: Session,
    ns: int,
    known: dict[int, tuple[NamespaceRow, Restorer]],
) -> tuple[NamespaceRow, Restorer]:
    if ns not in known:
        row = session.one("namespace_by_number", ns)
        name = row and session.one("thread_by_number", row[0])
        if row is None or name is None:
            raise CheckpointCorrupt(
                f"a checkpoint belongs to namespace {ns}, which is missing; "
                "run `langgraph-resilient verify`"
            )
        thread = rows.opened_thread(engine.sealer, row[0], name[0], name[1], name[2])
        namespace = rows.opened_namespace(engine.sealer, (ns, *row), thread.thread_id)
        known[ns] = namespace, reading.restorer(engine, session, thread)
    return known[ns]
