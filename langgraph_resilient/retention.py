"""Deleting and pruning threads: nothing that a kept checkpoint needs is ever lost.

Everything here works on packed bytes; no object is restored. Each change is one transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from langgraph_resilient import configs, legacy, listing
from langgraph_resilient.codec import digest, envelope
from langgraph_resilient.codec.frame import template_number
from langgraph_resilient.codec.packed import pack
from langgraph_resilient.collecting import (
    release,
    sweep,
)
from langgraph_resilient.engine import Engine
from langgraph_resilient.errors import ConfigurationError, DataCorrupt
from langgraph_resilient.history import Walk
from langgraph_resilient.listing import Reading
from langgraph_resilient.records import (
    CheckpointRow,
    NamespaceRow,
    ThreadRow,
)
from langgraph_resilient.restoring import Restorer, address_of, open_blob
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Session

logger = logging.getLogger(__name__)

_REMEMBERED = 4
"""Newest checkpoints of a namespace that are remembered when a thread is deleted."""
Keep = Callable[[NamespaceRow, Sequence[CheckpointRow], Restorer], set[int]]


# --- whole threads ----------------------------------------------------------------------------


def delete_thread(engine: Engine, thread_id: str) -> None:
    """Delete all of a thread, in the old tables too; late writes will not bring it back."""
    engine.open()

    def work(session: Session) -> int:
        if legacy.present(engine, session):
            legacy.delete(session, thread_id)
        thread = rows.find_thread(session, engine.sealer, thread_id)
        return delete_rows(engine, session, thread) if thread is not None else engine.epoch

    epoch = engine.db.write(work)
    if epoch != engine.epoch:
        engine.forget(epoch)


def delete_rows(engine: Engine, session: Session, thread: ThreadRow) -> int:
    """Delete all rows of a thread inside a write transaction; the new epoch."""
    name = digest.address(thread.thread_id.encode("utf-8", "surrogatepass"), engine.key)
    for namespace in session.all("namespaces", thread.number):
        ns = namespace[0]
        newest = session.all("checkpoints_keys", ns)[-_REMEMBERED:]
        for _, id in newest:
            session.run("tombstone_insert", name, id)
        session.run("writes_delete", ns)
        session.run("checkpoints_delete", ns)
        session.run("snapshots_delete", ns)
    first, last = rows.blob_bounds(thread.number)
    _free_of_templates(engine, session, first, last)
    session.run("namespaces_delete", thread.number)
    session.run("calls_delete", *rows.call_bounds(thread.number))
    session.run("lease_delete", thread.number)
    session.run("journal_delete", *rows.call_bounds(thread.number))
    session.run("chunks_delete", *rows.call_bounds(thread.number))
    session.run("templates_delete", first, last)
    shared = [row[0] for row in session.all("shares_of_thread", thread.number)]
    session.run("shares_delete", thread.number)
    session.run("blobs_delete", *rows.part_bounds(first, last))
    session.run("thread_delete", thread.number)
    release(session, shared)
    return engine.tick(session)


def _free_of_templates(engine: Engine, session: Session, first: int, last: int) -> None:
    """Encode anew what other threads use of a thread whose templates are about to go.

    A template holds contents of the thread that made it, so it must not outlive the thread.
    """
    for (blob,) in session.all("shares_of_blobs", first, last):
        for number, at, stored in rows.read_blobs(session, blob, blob):
            try:
                frame = engine.sealer.open(rows.blob_place(number), stored)
                if template_number(frame) is None:
                    continue
                raw, named = open_blob(engine, session, number, stored, None)
            except DataCorrupt as error:
                logger.warning("value %d is damaged already and stays so: %s", number, error)
                continue
            renewed = engine.frames.encode(raw, references=named)
            sealed = engine.sealer.seal(rows.blob_place(number), renewed)
            rows.delete_blob(session, number)
            if at is None:  # it stood in an archive
                at = address_of(engine, number, raw, named)
                if session.one("blob_by_digest", at) is not None:
                    at = None  # an equal content was stored since; this one stays without
            session.many("blob_insert", rows.parts_of(number, at, sealed))


# --- parts of threads -------------------------------------------------------------------------


def prune(engine: Engine, reading: Reading, thread_ids: Sequence[str], strategy: str) -> None:
    """Keep the newest checkpoint of each namespace, or nothing, one transaction a thread."""
    if strategy not in ("keep_latest", "delete"):
        raise ConfigurationError(
            f"prune: strategy {strategy!r} is unknown; use 'keep_latest' or 'delete'"
        )
    for thread_id in thread_ids:
        if strategy == "delete":
            delete_thread(engine, thread_id)
        else:
            listing.adopt(engine, thread_id, reading.serde)
            reduce_thread(engine, reading, thread_id, _newest)


def _newest(
    namespace: NamespaceRow, found: Sequence[CheckpointRow], restorer: Restorer
) -> set[int]:
    return {namespace.head}


def delete_for_runs(engine: Engine, reading: Reading, run_ids: Sequence[str]) -> None:
    """Delete the checkpoints of some runs, one transaction a thread."""
    wanted = set(run_ids)
    if not wanted:
        return

    def others(
        namespace: NamespaceRow, found: Sequence[CheckpointRow], restorer: Restorer
    ) -> set[int]:
        return {
            row.seq
            for row in found
            if str(restorer.metadata(row, restorer.envelope(row)).get("run_id")) not in wanted
        }

    for thread_id in _threads_of_runs(engine, reading, wanted):
        listing.adopt(engine, thread_id, reading.serde)
        reduce_thread(engine, reading, thread_id, others)


def _threads_of_runs(engine: Engine, reading: Reading, run_ids: set[str]) -> list[str]:
    found: dict[str, None] = {}
    for run_id in run_ids:
        query = configs.query(None, {"run_id": run_id}, None, None)
        for page in listing.pages(engine, reading, query):
            found.update((snapshot.thread_id, None) for snapshot in page)
    return list(found)


def reduce_thread(
    engine: Engine,
    reading: Reading,
    thread_id: str,
    keep: Keep,
    also: Callable[[Session, ThreadRow, Restorer], int] | None = None,
) -> int:
    """Drop all checkpoints of a thread but those that `keep` names, and what only they used.

    Args:
        engine: owns the database.
        reading: how values are restored.
        thread_id: the thread; one that is not there is nothing to do.
        keep: which checkpoints of a namespace stay.
        also: what else goes in the same transaction, looked at before any checkpoint goes; how many
            rows it removed.

    Returns:
        How many checkpoints went.
    """
    engine.open()

    def work(session: Session) -> tuple[int, int]:
        thread = rows.find_thread(session, engine.sealer, thread_id)
        if thread is None:
            return engine.epoch, 0
        session.run("chunks_of_retired_delete", *rows.call_bounds(thread.number))
        restorer = reading.restorer(engine, session, thread)
        left = dropped = 0
        removed = 0 if also is None else also(session, thread, restorer)
        for namespace in namespaces_of(engine, session, thread):
            found = checkpoints_of(engine, session, namespace, thread_id)
            kept = keep(namespace, found, restorer)
            left += len(kept)
            if len(kept) < len(found):
                dropped += len(found) - len(kept)
                _Reduction(engine, session, thread, namespace, restorer).run(found, kept)
        if not dropped and not removed:
            return engine.epoch, 0
        if dropped and not left:
            if legacy.present(engine, session):
                legacy.delete(session, thread_id)  # else they would bring it back
            return delete_rows(engine, session, thread), dropped
        sweep(engine, session, thread, restorer)
        return engine.tick(session), dropped

    epoch, dropped = engine.db.write(work)
    if epoch != engine.epoch:
        engine.forget(epoch)
    return int(dropped)


def namespaces_of(engine: Engine, session: Session, thread: ThreadRow) -> list[NamespaceRow]:
    """The namespaces of a thread, their seals checked."""
    return [
        rows.opened_namespace(engine.sealer, (row[0], thread.number, *row[1:]), thread.thread_id)
        for row in session.all("namespaces", thread.number)
    ]


def checkpoints_of(
    engine: Engine, session: Session, namespace: NamespaceRow, thread_id: str
) -> list[CheckpointRow]:
    """The checkpoints of a namespace, oldest first, their seals checked."""
    found = session.all("checkpoints_page", namespace.ns, 1 << 62, -1)
    return [
        rows.opened_checkpoint(engine.sealer, row, namespace.ns, thread_id)
        for row in reversed(found)
    ]


def folded(
    engine: Engine,
    session: Session,
    thread: ThreadRow,
    namespace: NamespaceRow,
    restorer: Restorer,
    row: CheckpointRow,
) -> dict[str, Any]:
    """What a checkpoint's delta channels are rebuilt from, to be kept with it without ancestors."""
    channels = _delta_channels(restorer, row, restorer.envelope(row))
    if not channels:
        return {}
    walk = Walk(engine, session, thread, namespace, restorer, channels)
    walk.run(row)
    return walk.folded()


def _delta_channels(restorer: Restorer, row: CheckpointRow, tree: list[Any]) -> list[str]:
    """Channels with a version and no value, that may have to be rebuilt from ancestors.

    LangGraph counts the steps since a delta channel's last snapshot in the metadata. Where a
    thread has no such counts, every channel of the user's own is taken: too much is safe.
    """
    without = set(tree[4] or {}) - set(tree[envelope.VALUES])
    counts = restorer.metadata(row, tree).get("counters_since_delta_snapshot")
    known = set(tree[envelope.FOLDED] or {})
    if counts:
        return sorted(without & (set(counts) | known))
    return sorted(
        name for name in without if name in known or not name.startswith(("__", "branch:"))
    )


class _Reduction:
    """Drops checkpoints of one namespace; kept ones take the history of delta channels along."""

    def __init__(
        self,
        engine: Engine,
        session: Session,
        thread: ThreadRow,
        namespace: NamespaceRow,
        restorer: Restorer,
    ):
        self._engine = engine
        self._session = session
        self._thread = thread
        self._namespace = namespace
        self._restorer = restorer

    def run(self, found: Sequence[CheckpointRow], kept: set[int]) -> None:
        session, ns = self._session, self._namespace.ns
        names = {row.id for row in found if row.seq in kept}
        parents = {row.id: row.parent for row in found}
        histories = {
            row.seq: folded(
                self._engine, session, self._thread, self._namespace, self._restorer, row
            )
            for row in found
            if row.seq in kept and row.parent is not None and row.parent not in names
        }
        for row in found:
            if row.seq not in kept:
                session.run("checkpoint_delete", row.seq)
                session.run("writes_delete_of", ns, row.id)
            elif row.seq in histories:
                self._replace(row, _survivor(row.parent, parents, names), histories[row.seq])
        rows.count_snapshots(session, self._engine.sealer, ns, removed=len(found) - len(kept))
        tally, _ = rows.tally_of(session, ns, self._engine.key)
        self._move(max(kept, default=0), len(kept), tally)

    def _replace(self, row: CheckpointRow, parent: bytes | None, history: dict[str, Any]) -> None:
        engine = self._engine
        tree = self._restorer.envelope(row)
        if history:
            tree[envelope.FOLDED] = history
        frame = engine.frames.encode(pack(tree), references=True)
        place = rows.checkpoint_place(row.ns, row.id, parent)
        above = rows.seq_of(self._session, parent, row.ns)
        named = parent if above is None else None
        sealed = engine.sealer.seal(place, frame)
        self._session.run("checkpoint_replace", above, named, sealed, row.seq)

    def _move(self, head: int, checkpoints: int, tally: bytes) -> None:
        old = self._namespace
        new = NamespaceRow(
            ns=old.ns,
            thread=old.thread,
            checkpoint_ns=old.checkpoint_ns,
            head=head,
            checkpoints=checkpoints,
            tally=tally if self._engine.protected else b"",
        )
        self._session.run(
            "namespace_set",
            new.head,
            new.checkpoints,
            new.tally,
            rows.sealed_namespace(self._engine.sealer, new),
            new.ns,
        )


def _survivor(
    parent: bytes | None, parents: dict[bytes, bytes | None], kept: set[bytes]
) -> bytes | None:
    """The nearest ancestor that is kept: links of kept checkpoints skip those that went."""
    seen: set[bytes] = set()
    while parent is not None and parent not in kept and parent not in seen:
        seen.add(parent)
        parent = parents.get(parent)
    return parent if parent in kept else None
