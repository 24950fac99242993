"""Copying threads: all of one, or its latest state. Contents are shared, not copied.

Everything here works on packed bytes; no object is restored. A copy is one transaction.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langgraph_resilient import calls, legacy, modelcalls
from langgraph_resilient.codec import envelope
from langgraph_resilient.codec.packed import pack, rebase, references_of
from langgraph_resilient.collecting import inside, named_by_envelope, named_by_writes
from langgraph_resilient.draft import Draft
from langgraph_resilient.engine import Engine
from langgraph_resilient.errors import ConfigurationError
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
from langgraph_resilient.restoring import Restorer, unpacked
from langgraph_resilient.retention import checkpoints_of, folded, namespaces_of
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Session

_LAST = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """How much of a thread was copied."""

    checkpoints: int = 0
    writes: int = 0
    calls: int = 0
    model_calls: int = 0


def copy_thread(
    engine: Engine, source: str, target: str, *, latest_only: bool = False, dry_run: bool = False
) -> Copied:
    """Copy a thread; contents are shared. A source that does not exist copies nothing.

    It lives as long as its source does, from now on, unless the target has a lifetime of its own. The
    ledger's calls and the open ones of the journal are copied whole either way: the copy must
    not run again, nor pay again for, what its source has done.

    Args:
        engine: owns the database.
        source: the thread.
        target: its copy.
        latest_only: of each namespace only the newest checkpoint, without a parent and with all that
            its delta channels are rebuilt from; and writes whose checkpoint is still to come.
        dry_run: change nothing, only count.

    Raises:
        ConfigurationError: the target has checkpoints already, or is the source.
    """
    if source == target:
        raise ConfigurationError(f"thread {source!r} cannot be copied onto itself")
    if dry_run:
        return _counted(engine, source, target, latest_only)
    engine.open()
    if engine.adopt is not None:
        engine.adopt(source)

    def build(draft: Draft) -> Copied:
        with engine.db.read() as session:
            thread = rows.find_thread(session, engine.sealer, source)
            if thread is None:
                return Copied()
            _check_empty(session, draft.state.number, target)
            found = _Source(engine, session, thread, latest_only)
            used = found.used()
            there = rows.find_thread(session, engine.sealer, target)
        draft.share(used)
        if thread.lifetime is not None and (there is None or there.lifetime is None):
            draft.live(replace(thread.lifetime, since=int(time.time() * 1000)))
        copy = _Copy(draft, thread)
        copy.store(found.items)
        copy.store_model_calls(found.asked, copy.store_calls(found.made, target))
        return found.counted()

    return engine.change(target, build)


def _counted(engine: Engine, source: str, target: str, latest_only: bool) -> Copied:
    with engine.reading() as session:
        for name in (source, target):
            if legacy.exists(engine, session, name):
                raise ConfigurationError(
                    f"thread {name!r} is still in the tables of SqliteSaver, and trying it out would "
                    "move it; run `langgraph-resilient migrate` first"
                )
        thread = rows.find_thread(session, engine.sealer, source)
        there = rows.find_thread(session, engine.sealer, target)
        if thread is None:
            return Copied()
        if there is not None:
            _check_empty(session, there.number, target)
        return _Source(engine, session, thread, latest_only).counted()


def _check_empty(session: Session, number: int, target: str) -> None:
    if any(row[3] for row in session.all("namespaces", number)):
        raise ConfigurationError(
            f"thread {target!r} already has checkpoints; delete it first, "
            "or copy to a new thread_id"
        )


class _Source:
    """What of a thread is copied.

    Attributes:
        items: checkpoints and writes in the order of writing: (seq, ns name, row, raw).
        made: tool calls.
        asked: model calls that are not retired, each with the blocks of its stream.
    """

    def __init__(self, engine: Engine, session: Session, thread: ThreadRow, latest_only: bool):
        self._engine = engine
        self._session = session
        self._thread = thread
        self._restorer = Restorer(engine, session, thread.thread_id, thread.number, None)
        items: list[tuple[Any, ...]] = []
        for namespace in namespaces_of(engine, session, thread):
            items += self._latest(namespace) if latest_only else self._all(namespace)
        self.items = sorted(items, key=lambda item: item[0])
        self.made = _calls(engine, session, thread)
        self.asked = _model_calls(engine, session, thread)

    def counted(self) -> Copied:
        """How much there is of each."""
        checkpoints = sum(isinstance(item[2], CheckpointRow) for item in self.items)
        return Copied(
            checkpoints=checkpoints,
            writes=len(self.items) - checkpoints,
            calls=len(self.made),
            model_calls=len(self.asked),
        )

    def used(self) -> set[int]:
        """Every content that it names, directly or inside another one."""
        place = (self._engine, self._session, self._thread)
        made: list[CallRecord | ModelCallRecord] = [*self.made]
        made += [record for record, _ in self.asked]
        return _used(*place, self.items) | _used_by_calls(*place, made)

    def _all(self, namespace: NamespaceRow) -> list[tuple[Any, ...]]:
        name, content = namespace.checkpoint_ns, self._restorer.content
        found = checkpoints_of(self._engine, self._session, namespace, self._thread.thread_id)
        items: list[tuple[Any, ...]] = [(row.seq, name, row, content(row.frame)) for row in found]
        return items + self._writes(namespace, set())

    def _latest(self, namespace: NamespaceRow) -> list[tuple[Any, ...]]:
        engine, session, thread = self._engine, self._session, self._thread
        head = rows.head_of(session, engine.sealer, namespace, thread.thread_id)
        if head is None:
            return self._writes(namespace, set())
        raw = self._restorer.content(head.frame)
        if head.parent is not None:
            history = folded(engine, session, thread, namespace, self._restorer, head)
            if history:
                tree = unpacked(raw)
                tree[envelope.FOLDED] = history
                raw = pack(tree)
        others = {id for _, id in session.all("checkpoints_keys", namespace.ns)} - {head.id}
        latest = (head.seq, namespace.checkpoint_ns, replace(head, parent=None), raw)
        return [latest, *self._writes(namespace, others)]

    def _writes(self, namespace: NamespaceRow, without: set[bytes]) -> list[tuple[Any, ...]]:
        """The writes of a namespace, but those under some checkpoints."""
        items: list[tuple[Any, ...]] = []
        for row in self._session.all("writes_all", namespace.ns):
            if row[0] not in without:
                opened = rows.opened_writes(
                    self._engine.sealer, row, namespace.ns, self._thread.thread_id
                )
                raw = self._restorer.content(opened.frame)
                items.append((_LAST, namespace.checkpoint_ns, opened, raw))
        return items


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
