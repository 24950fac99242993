"""Checkpoints and writes into drafts: what `put` and `put_writes` mean.

Works on LangGraph's dictionaries; knows no LangGraph class but the names of its keys.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.types import ERROR

from langgraph_resilient import modelcalls
from langgraph_resilient.codec import envelope
from langgraph_resilient.codec.keys import pack_name
from langgraph_resilient.codec.memo import is_plain
from langgraph_resilient.codec.msgpack import Packer
from langgraph_resilient.codec.packed import pack
from langgraph_resilient.draft import Draft, Namespace
from langgraph_resilient.records import NamespaceRow
from langgraph_resilient.restoring import decoded, unpacked
from langgraph_resilient.store import rows
from langgraph_resilient.store.failures import Conflict
from langgraph_resilient.store.session import Session

logger = logging.getLogger(__name__)

_SHORT = 1024
"""Longer metadata may hold texts that are worth storing once."""


class UserSerde(Protocol):
    """A serializer that the user gave: its bytes are opaque to us."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """The kind and the bytes of an object."""
        ...

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """The object again."""
        ...


def put(
    draft: Draft,
    checkpoint_ns: str,
    checkpoint: Mapping[str, Any],
    metadata: Mapping[str, Any],
    parent_id: str | None,
    serde: UserSerde | None,
) -> bool:
    """Encode a checkpoint into a draft; False when it came too late (see `is_late`)."""
    namespace = draft.namespace(checkpoint_ns)
    id = pack_name(checkpoint["id"])
    parent = pack_name(parent_id) if parent_id else None
    if parent is not None and is_late(draft, namespace, parent):
        _bury(draft, id)
        return False
    packer = draft.packer()
    ns = namespace.row.ns
    values = {
        channel: pack(_channel(packer, ns, channel, value, checkpoint, serde, draft))
        for channel, value in checkpoint.get("channel_values", {}).items()
    }
    raw = _packed_envelope(packer, checkpoint, values, metadata)
    store_checkpoint(draft, namespace, id, parent, raw)
    modelcalls.retire_with_checkpoint(draft, checkpoint_ns, id, metadata)
    return True


def store_checkpoint(
    draft: Draft, namespace: Namespace, id: bytes, parent: bytes | None, raw: bytes
) -> None:
    """Put a packed envelope into a draft."""
    frame = draft.frame(raw, "c:" + family(namespace.row.checkpoint_ns))
    place = rows.checkpoint_place(namespace.row.ns, id, parent)
    stored = draft.engine.sealer.seal(place, frame)
    draft.then(_storing(draft, namespace, id, parent, stored))


def _channel(
    packer: Packer,
    ns: int,
    channel: str,
    value: Any,
    checkpoint: Mapping[str, Any],
    serde: UserSerde | None,
    draft: Draft,
) -> Any:
    if serde is None:
        return packer.channel(ns, channel, value)
    # LangGraph promises: equal version, equal value. A cipher gives other bytes each time.
    version = checkpoint.get("channel_versions", {}).get(channel)
    key = (ns, channel)
    known = draft.state.memo.opaque.get(key)
    if known is not None and version is not None and known[:3] == (version, id(serde), id(value)):
        return known[3]
    tree = packer.opaque(*serde.dumps_typed(value))
    # The last two keep the objects alive, so that their identities stay theirs.
    draft.state.memo.opaque[key] = (version, id(serde), id(value), tree, serde, value)
    return tree


def _packed_envelope(
    packer: Packer,
    checkpoint: Mapping[str, Any],
    values: dict[str, bytes],
    metadata: Mapping[str, Any],
) -> bytes:
    extra = envelope.unknown_keys(checkpoint)
    if extra:
        extra = {key: packer.write(key, item) for key, item in extra.items()}
    described = _packed_metadata(packer, metadata)
    tree = envelope.envelope_tree(checkpoint, values, described, pack(extra))
    try:
        return pack(tree)
    except (TypeError, OverflowError):
        # A subclass of dict among the versions, or a number of more than 64 bits, say: walk it,
        # so that it keeps its type.
        tree[0] |= envelope.WALKED
        for index in envelope.WALKABLE:
            tree[index] = pack(packer.write("checkpoint", tree[index]))
        return pack(tree)


def _packed_metadata(packer: Packer, metadata: Mapping[str, Any]) -> bytes:
    if is_plain(metadata):  # nearly always: a few short texts and numbers
        try:
            raw = pack(metadata)
        except (TypeError, OverflowError):
            raw = b""
        if 0 < len(raw) < _SHORT:
            return raw
    return pack({k: packer.write(f"metadata[{k!r}]", item) for k, item in metadata.items()})


def _storing(
    draft: Draft, namespace: Namespace, id: bytes, parent: bytes | None, stored: bytes
) -> Any:
    sealer, epoch = draft.engine.sealer, draft.epoch
    protected, key = draft.engine.protected, draft.engine.key

    def step(session: Session) -> None:
        old = namespace.row
        replaced = None
        is_head = parent is not None and parent == namespace.head_id
        above = old.head if is_head else rows.seq_of(session, parent, old.ns)
        named = parent if above is None else None
        try:
            seq = place = session.insert("checkpoint_insert", old.ns, id, above, named, stored)
        except Conflict:  # the same checkpoint again: it keeps its place
            before = session.one("checkpoint_by_id", id, old.ns)
            if before is None:
                raise
            seq, place, replaced = old.head, before[0], before[3]
            session.run("checkpoint_replace", above, named, stored, place)
        new = NamespaceRow(
            ns=old.ns,
            thread=old.thread,
            checkpoint_ns=old.checkpoint_ns,
            head=seq,
            checkpoints=old.checkpoints + (replaced is None),
            tally=rows.tally_with(old.tally, key, place, stored, replaced) if protected else b"",
        )
        moved = session.run(
            "namespace_move",
            new.head,
            new.checkpoints,
            new.tally,
            rows.sealed_namespace(sealer, new),
            old.ns,
            old.head,
            old.checkpoints,
            epoch,
        )
        if moved != 1:
            raise Conflict("another process changed the namespace")
        namespace.row = new
        if replaced is None:
            namespace.head_id = id

    return step


def put_writes(
    draft: Draft,
    checkpoint_ns: str,
    checkpoint_id: str,
    writes: Sequence[tuple[str, Any]],
    task_id: str,
    task_path: str,
    serde: UserSerde | None,
) -> bool:
    """Encode a task's writes into a draft; False when they came too late (see `is_late`)."""
    namespace = draft.namespace(checkpoint_ns)
    if is_late(draft, namespace, pack_name(checkpoint_id)):
        return False
    entries = {
        WRITES_IDX_MAP.get(channel, position): (channel, _told(channel, value))
        for position, (channel, value) in enumerate(writes)
    }
    put_entries(draft, checkpoint_ns, checkpoint_id, entries, task_id, task_path, serde)
    modelcalls.retire_with_writes(draft, namespace, pack_name(checkpoint_id), task_id, writes)
    return True


def _told(channel: str, value: Any) -> Any:
    """LangGraph reads a task's error back as the text of its repr; exceptions in state stay so."""
    return repr(value) if channel == ERROR and isinstance(value, BaseException) else value


def put_entries(
    draft: Draft,
    checkpoint_ns: str,
    checkpoint_id: str,
    writes: Mapping[int, tuple[str, Any]],
    task_id: str,
    task_path: str,
    serde: UserSerde | None,
) -> None:
    """Encode a task's writes, by index, into a draft."""
    namespace = draft.namespace(checkpoint_ns)
    checkpoint, task = pack_name(checkpoint_id), pack_name(task_id)
    packer = draft.packer()
    entries: dict[int, tuple[str, bytes]] = {}
    for index, (channel, value) in writes.items():
        tree = (
            packer.write(channel, value)
            if serde is None
            else packer.opaque(*serde.dumps_typed(value))
        )
        entries[index] = (channel, pack(tree))
    raw = pack_writes(task_path, entries)
    store_writes(draft, namespace, checkpoint, task, raw, entries)


def store_writes(
    draft: Draft,
    namespace: Namespace,
    checkpoint: bytes,
    task: bytes,
    raw: bytes,
    entries: Mapping[int, tuple[str, bytes]],
) -> None:
    """Put a task's packed writes into a draft; `entries` are merged into what is there already."""
    frame = draft.frame(raw, "w")
    ns, engine = namespace.row.ns, draft.engine
    place = rows.writes_place(ns, checkpoint, task)
    stored = engine.sealer.seal(place, frame)

    def step(session: Session) -> None:
        try:
            count = session.run("writes_insert", ns, checkpoint, task, stored, draft.epoch)
        except Conflict:
            old = session.one("writes_one", ns, checkpoint, task)
            if old is None:
                raise
            merged = _merged(draft, session, place, old[0], entries)
            count = session.run("writes_update", merged, ns, checkpoint, task, draft.epoch)
        if count != 1:
            raise Conflict("blobs may have been deleted")

    draft.then(step)


def pack_writes(task_path: str, entries: Mapping[int, tuple[str, bytes]]) -> bytes:
    """A task's writes: its path, then index, channel and packed value of each."""
    return pack(
        [
            task_path,
            list(entries),
            [c for c, _ in entries.values()],
            [v for _, v in entries.values()],
        ]
    )


def _merged(
    draft: Draft,
    session: Session,
    place: bytes,
    old: bytes,
    entries: Mapping[int, tuple[str, bytes]],
) -> bytes:
    """Special channels hold the newest value, ordinary ones the first, as in InMemorySaver."""
    engine = draft.engine
    frame = engine.sealer.open(place, old)
    path, indexes, channels, values = unpacked(decoded(engine, session, frame, draft.state.number))
    known = {i: (c, v) for i, c, v in zip(indexes, channels, values, strict=True)}
    for index, entry in entries.items():
        if index < 0 or index not in known:
            known[index] = entry
    return engine.sealer.seal(
        place, engine.frames.encode(pack_writes(path, known), references=True)
    )


def is_late(draft: Draft, namespace: Namespace, checkpoint: bytes) -> bool:
    """Whether a write hangs on a checkpoint that `delete_thread` has removed.

    A graph that still runs when its thread is deleted goes on writing: its next checkpoint names
    a parent that is gone. Such a write must not bring the thread back.
    """
    state = draft.state
    if not state.deleted_before or namespace.head_id == checkpoint:
        return False
    with draft.engine.db.read() as session:
        if session.one("tombstone", state.name, checkpoint) is None:
            return False
        if namespace.exists and session.one("checkpoint_exists", checkpoint, namespace.row.ns):
            return False
    logger.warning(
        "a write came after the deletion of its thread and was dropped; "
        "start the thread anew with an input if it should live again"
    )
    return True


def _bury(draft: Draft, id: bytes) -> None:
    """What hangs on a dropped checkpoint is late, too."""
    name = draft.state.name
    draft.engine.db.write(lambda session: session.run("tombstone_insert", name, id))


def family(checkpoint_ns: str) -> str:
    """A namespace without the task ids in it: namespaces of one subgraph resemble each other."""
    return "|".join(part.split(":", 1)[0] for part in checkpoint_ns.split("|"))
