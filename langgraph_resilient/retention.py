"""Deleting, pruning and copying threads: nothing that a kept checkpoint needs is ever lost.

Everything here works on packed bytes; no object is restored. Each change is one transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langgraph_resilient import calls, configs, legacy, listing, modelcalls
from langgraph_resilient.codec import digest, envelope
from langgraph_resilient.codec.frame import template_number
from langgraph_resilient.codec.packed import pack, rebase, references_of
from langgraph_resilient.collecting import (
    inside,
    named_by_envelope,
    named_by_writes,
    release,
    sweep,
)
from langgraph_resilient.draft import Draft
from langgraph_resilient.engine import Engine
from langgraph_resilient.errors import ConfigurationError, DataCorrupt
from langgraph_resilient.history import Walk
from langgraph_resilient.listing import Reading
from langgraph_resilient.recording import pack_writes, store_checkpoint, store_writes
from langgraph_resilient.records import (
    BLOB_BITS,
    CallName,
    CallRecord,
    CheckpointRow,
    ModelCallRecord,
    ModelCallState,
    NamespaceRow,
    ThreadRow,
)
from langgraph_resilient.restoring import Restorer, address_of, open_blob, unpacked
from langgraph_resilient.store import rows
from langgraph_resilient.store.sqlite import Session

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
        return _delete(engine, session, thread) if thread is not None else engine.epoch

    epoch = engine.db.write(work)
    if epoch != engine.epoch:
        engine.forget(epoch)


def _delete(engine: Engine, session: Session, thread: ThreadRow) -> int:
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


def copy_thread(engine: Engine, source: str, target: str) -> None:
    """Copy a thread; contents are shared. A source that does not exist copies nothing.

    Raises:
        ConfigurationError: the target has checkpoints already, or is the source.
    """
    if source == target:
        raise ConfigurationError(f"thread {source!r} cannot be copied onto itself")
    listing.adopt(engine, source)
    listing.adopt(engine, target)

    def build(draft: Draft) -> None:
        with engine.db.read() as session:
            thread = rows.find_thread(session, engine.sealer, source)
            if thread is None:
                return
            if _has_checkpoints(session, draft):
                raise ConfigurationError(
                    f"thread {target!r} already has checkpoints; delete it first, "
                    "or copy to a new thread_id"
                )
            copied = _load(engine, session, thread)
            used = _used(engine, session, thread, copied)
            made = _calls(engine, session, thread)
            asked = _model_calls(engine, session, thread)
            used |= _used_by_calls(engine, session, thread, [*made, *(one for one, _ in asked)])
        draft.share(used)
        copy = _Copy(draft, thread)
        copy.store(copied)
        copy.store_model_calls(asked, copy.store_calls(made, target))

    engine.change(target, build)


def _has_checkpoints(session: Session, draft: Draft) -> bool:
    return any(row[3] for row in session.all("namespaces", draft.state.number))


def _load(engine: Engine, session: Session, thread: ThreadRow) -> list[tuple[Any, ...]]:
    """Everything of a thread in the order of writing: (seq, ns name, row, raw) and writes."""
    restorer = Restorer(engine, session, thread.thread_id, thread.number, None)
    found: list[tuple[Any, ...]] = []
    for row in session.all("namespaces", thread.number):
        namespace = rows.opened_namespace(
            engine.sealer, (row[0], thread.number, *row[1:]), thread.thread_id
        )
        name = namespace.checkpoint_ns
        for checkpoint in checkpoints_of(engine, session, namespace, thread.thread_id):
            found.append((checkpoint.seq, name, checkpoint, restorer.content(checkpoint.frame)))
        for written in session.all("writes_all", namespace.ns):
            opened = rows.opened_writes(engine.sealer, written, namespace.ns, thread.thread_id)
            found.append((1 << 62, name, opened, restorer.content(opened.frame)))
    return sorted(found, key=lambda item: item[0])


def _used(
    engine: Engine, session: Session, thread: ThreadRow, items: list[tuple[Any, ...]]
) -> set[int]:
    """Every content that loaded checkpoints and writes name, directly or inside another one."""
    base = thread.number << BLOB_BITS
    found: set[int] = set()
    for _, _, row, raw in items:
        named = named_by_envelope if isinstance(row, CheckpointRow) else named_by_writes
        found.update(named(raw, base))
    return found | inside(engine, session, found, thread.thread_id)


def _calls(engine: Engine, session: Session, thread: ThreadRow) -> list[CallRecord]:
    """The tool calls of a thread."""
    restorer = Restorer(engine, session, thread.thread_id, thread.number, None)
    found = []
    for row in session.all("calls_in", *rows.call_bounds(thread.number)):
        frame = calls.opened_frame(engine.sealer, row, thread.thread_id)
        record = calls.call_from(restorer.content(frame), row, thread.thread_id)
        found.append(record)
    return found


def _model_calls(
    engine: Engine, session: Session, thread: ThreadRow
) -> list[tuple[ModelCallRecord, list[tuple[int, bytes]]]]:
    """The model calls of a thread that are not retired, each with the blocks of its stream."""
    restorer = Restorer(engine, session, thread.thread_id, thread.number, None)
    found = []
    for row in session.all("journal_open", *rows.call_bounds(thread.number)):
        frame = modelcalls.opened_frame(engine.sealer, row, thread.thread_id)
        record = modelcalls.model_call_from(restorer.content(frame), row, thread.thread_id)
        blocks = [
            (block[1], modelcalls.opened_block(engine.sealer, block))
            for block in session.all("chunks_after", row[0], row[0], 0)
        ]
        found.append((record, blocks))
    return found


def _used_by_calls(
    engine: Engine,
    session: Session,
    thread: ThreadRow,
    made: Sequence[CallRecord | ModelCallRecord],
) -> set[int]:
    base = thread.number << BLOB_BITS
    found = {b for r in made for _, value in r.values for b in references_of(value, base)}
    return found | inside(engine, session, found, thread.thread_id)


def _names_in_copy(made: Sequence[CallRecord], target: str) -> dict[bytes, CallName]:
    """What calls are in another thread, by their keys here; inner ones follow the outer ones.

    Outer calls come first by their nesting, not by their times: clocks are set back.
    """
    names: dict[bytes, CallName] = {}
    waiting = {record.key: record.name for record in made}
    while waiting:
        ready = [key for key, name in waiting.items() if name.parent not in waiting]
        for key in ready or list(waiting):  # a ring is made by no run; leave it as it is
            name = waiting.pop(key)
            above = names.get(name.parent)
            parent = name.parent if above is None else calls.key_of(above)
            names[key] = replace(name, thread_id=target, parent=parent)
    return names


class _Copy:
    """Stores packed checkpoints and writes of one thread as those of another."""

    def __init__(self, draft: Draft, source: ThreadRow):
        self._draft = draft
        self._old = source.number << BLOB_BITS
        self._new = draft.base

    def store(self, items: list[tuple[Any, ...]]) -> None:
        for _, name, row, raw in items:
            namespace = self._draft.namespace(name)
            if isinstance(row, CheckpointRow):
                tree = self._moved(unpacked(raw))
                store_checkpoint(self._draft, namespace, row.id, row.parent, pack(tree))
            else:
                path, indexes, channels, values = unpacked(raw)
                moved = [self._value(value) for value in values]
                entries = dict(zip(indexes, zip(channels, moved, strict=True), strict=True))
                store_writes(
                    self._draft, namespace, row.checkpoint, row.task, pack_writes(path, entries), {}
                )

    def store_calls(self, made: Sequence[CallRecord], target: str) -> dict[bytes, bytes]:
        """Tool calls: the copy must not run again what its source has run.

        Returns:
            The keys in the copy by those in the source.
        """
        names = _names_in_copy(made, target)
        for record in made:
            values = tuple((item, self._value(value)) for item, value in record.values)
            copied = replace(
                record,
                key=calls.key_of(names[record.key]),
                name=names[record.key],
                values=values,
                home=self._draft.state.number,
            )
            calls.store_call(self._draft, copied)
        return {key: calls.key_of(name) for key, name in names.items()}

    def store_model_calls(
        self,
        asked: Sequence[tuple[ModelCallRecord, list[tuple[int, bytes]]]],
        keys: Mapping[bytes, bytes],
    ) -> None:
        """Model calls that are not retired: the copy must not pay again for them."""
        for record, blocks in asked:
            running = record.state is ModelCallState.STARTED
            copied = replace(
                record,
                state=ModelCallState.INTERRUPTED if running else record.state,
                parent=keys.get(record.parent, record.parent),
                values=tuple((item, self._value(value)) for item, value in record.values),
            )
            modelcalls.store_model_call(self._draft, copied, blocks)

    def _moved(self, tree: list[Any]) -> list[Any]:
        if tree[0] & envelope.WALKED:
            for index in envelope.WALKABLE:
                tree[index] = self._value(tree[index])
        for index in (envelope.METADATA, envelope.EXTRA):
            tree[index] = self._value(tree[index])
        tree[envelope.VALUES] = {k: self._value(v) for k, v in tree[envelope.VALUES].items()}
        if tree[envelope.FOLDED] is not None:
            tree[envelope.FOLDED] = {
                channel: [seed and self._value(seed), [[t, self._value(v)] for t, v in writes]]
                for channel, (seed, writes) in tree[envelope.FOLDED].items()
            }
        return tree

    def _value(self, value: bytes) -> bytes:
        return rebase(value, self._old, self._new)


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
            return _delete(engine, session, thread), dropped
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
        folded = {
            row.seq: self._folded(row)
            for row in found
            if row.seq in kept and row.parent is not None and row.parent not in names
        }
        for row in found:
            if row.seq not in kept:
                session.run("checkpoint_delete", row.seq)
                session.run("writes_delete_of", ns, row.id)
            elif row.seq in folded:
                self._replace(row, _survivor(row.parent, parents, names), folded[row.seq])
        rows.count_snapshots(session, self._engine.sealer, ns, removed=len(found) - len(kept))
        tally, _ = rows.tally_of(session, ns, self._engine.key)
        self._move(max(kept, default=0), len(kept), tally)

    def _folded(self, row: CheckpointRow) -> dict[str, Any]:
        tree = self._restorer.envelope(row)
        channels = self._delta_channels(row, tree)
        if not channels:
            return {}
        walk = Walk(
            self._engine, self._session, self._thread, self._namespace, self._restorer, channels
        )
        walk.run(row)
        return walk.folded()

    def _delta_channels(self, row: CheckpointRow, tree: list[Any]) -> list[str]:
        """Channels with a version and no value, that may have to be rebuilt from ancestors.

        LangGraph counts the steps since a delta channel's last snapshot in the metadata. Where a
        thread has no such counts, every channel of the user's own is taken: too much is safe.
        """
        without = set(tree[4] or {}) - set(tree[envelope.VALUES])
        counts = self._restorer.metadata(row, tree).get("counters_since_delta_snapshot")
        folded = set(tree[envelope.FOLDED] or {})
        if counts:
            return sorted(without & (set(counts) | folded))
        return sorted(
            name for name in without if name in folded or not name.startswith(("__", "branch:"))
        )

    def _replace(self, row: CheckpointRow, parent: bytes | None, folded: dict[str, Any]) -> None:
        engine = self._engine
        tree = self._restorer.envelope(row)
        if folded:
            tree[envelope.FOLDED] = folded
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
