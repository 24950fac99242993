"""Rows back into checkpoints: the way from `get_tuple` down to the blobs.

A `Restorer` belongs to one read session and one thread; what it hands out is the caller's own.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage

from langgraph_resilient.codec import digest, envelope, types
from langgraph_resilient.codec.frame import REFERENCES, Template, has_references, template_number
from langgraph_resilient.codec.keys import unpack_name
from langgraph_resilient.codec.memo import EMPTY_DICT, EMPTY_LIST, NEVER, ListMemo, is_plain
from langgraph_resilient.codec.msgpack import Unpacker
from langgraph_resilient.codec.packed import (
    is_message,
    is_series,
    references_of,
    unpack_tree,
)
from langgraph_resilient.errors import BlobCorrupt, CheckpointCorrupt, DataCorrupt
from langgraph_resilient.records import BLOB_BITS, CheckpointRow, Snapshot, Write, WritesRow
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Session

if TYPE_CHECKING:
    from langgraph_resilient.engine import Engine
    from langgraph_resilient.recording import UserSerde

logger = logging.getLogger(__name__)

_GAP = 24
"""Blobs this near to each other are read in one range; those between them are passed over."""
_SCATTERED = 48
"""A packed value of fewer bytes names too few blobs to look for them first."""
_TRUSTED = "langchain_core.messages."
ENTRY_BYTES = 3072
"""Roughly what a cached value takes besides its content: a prototype, a dictionary, a key."""
_MANY = 128
"""Values from which on the garbage collector is paused."""
_ASKED = 3
"""Times that a message is decoded before a prototype is made, which costs three times as much."""
_PRIMED = 8
"""Shorter lists of messages are not worth remembering."""


class _Whole:
    """A decoded value that cannot change, so that everybody may have it."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value


class Kept:
    """The content of a message: decoded for each reader, until copying pays.

    `snapshot` is a frozen copy of the message's fields for comparing, or NEVER.
    """

    __slots__ = ("_asked", "_snapshot", "base", "named", "prototype", "raw")

    def __init__(self, raw: bytes, base: int, named: bool):
        self.raw = raw
        self.base = base
        self.named = named
        self._asked = 0
        self.prototype: types.MessagePrototype | None = None
        self._snapshot: Any = None

    def message(self, unpack: Callable[[bytes], Any]) -> Any:
        """A message of the caller's own."""
        raw = self.raw  # before the look at the prototype: another thread may be making it
        if self.prototype is not None:
            return types.clone_message(self.prototype)
        if self._asked >= _ASKED and self._snapshot is None:
            self.snapshot(unpack)
            return self.message(unpack)
        self._asked += 1
        return unpack(raw)

    def snapshot(self, unpack: Callable[[bytes], Any]) -> Any:
        """The frozen copy; makes the prototype, too."""
        raw = self.raw
        if self._snapshot is None:
            message = unpack(raw)
            # What a policy decides about must not be shared by savers with other policies.
            if type(message).__module__.startswith(_TRUSTED) and is_plain(message.__dict__):
                prototype = types.message_prototype(message)
                _share_empties(prototype.fields)
                self._snapshot = prototype.fields if prototype.plain else NEVER
                self.prototype = prototype
                self.raw = b""  # nobody asks for it any more
            else:
                self._snapshot = NEVER
        return self._snapshot


def _share_empties(fields: dict[str, Any]) -> None:
    """A prototype's empty containers are never handed out, so all can be the same."""
    for name, value in fields.items():
        if type(value) is dict and not value:
            fields[name] = EMPTY_DICT
        elif type(value) is list and not value:
            fields[name] = EMPTY_LIST


class _Raw:
    """Content that is unpacked anew for everybody."""

    __slots__ = ("base", "raw")

    def __init__(self, raw: bytes, base: int):
        self.raw = raw
        self.base = base


def decoded(engine: Engine, session: Session, frame: bytes, thread: int) -> bytes:
    """The content of a frame of a thread."""
    number = template_number(frame)
    if number is None:
        return engine.frames.decode(frame)
    template = engine.template(session, thread << BLOB_BITS | number)
    return engine.frames.decode(frame, template)


def unpacked(raw: bytes) -> list[Any]:
    """The list that an envelope or a task's writes are.

    Raises:
        DataCorrupt: it is something else.
    """
    try:
        tree = unpack_tree(raw)
    except Exception as error:  # noqa: BLE001 - the unpacker raises many kinds; all mean damage
        raise DataCorrupt(f"it does not unpack: {error}") from None
    if not isinstance(tree, list):
        raise DataCorrupt("it is no list")
    return tree


class Restorer:
    """Restores checkpoints and writes of one thread inside one session.

    Args:
        engine: lends codec and caches.
        session: where rows come from.
        thread_id: for messages.
        thread: the thread's number.
        serde: the user's serializer for opaque values.
        policy: which classes may be restored; the engine's by default.
    """

    def __init__(
        self,
        engine: Engine,
        session: Session,
        thread_id: str,
        thread: int,
        serde: UserSerde | None,
        policy: types.TypePolicy | None = None,
    ):
        self._policy = policy or engine.policy
        self._engine = engine
        self.session = self._session = session
        self.thread_id = thread_id
        self.thread = self._thread = thread
        self._serde = serde
        self._loaded: dict[int, Any] = {}
        self._templates: dict[int, Template] = {}
        self._unpackers: dict[int, Unpacker] = {}
        self.series: dict[int, tuple[list[Any], list[int]]] = {}
        """Lists of messages handed out, by identity, with their references."""

    # --- checkpoints --------------------------------------------------------------------------

    def envelope(self, row: CheckpointRow) -> list[Any]:
        """The opened envelope of a checkpoint, values still packed."""
        try:
            raw = decoded(self._engine, self._session, row.frame, self._thread)
            tree = unpacked(raw)
            if len(tree) != envelope.PARTS:
                raise DataCorrupt(f"it has {len(tree)} parts and should have {envelope.PARTS}")
            return tree
        except DataCorrupt as error:
            raise self._wrapped(error, row, None) from None

    def metadata(self, row: CheckpointRow, tree: list[Any]) -> dict[str, Any]:
        """The metadata of an opened envelope."""
        return self._guarded(row, None, lambda: self._value(tree[envelope.METADATA]))  # type: ignore[no-any-return]

    def value(self, row: CheckpointRow, channel: str, packed: bytes) -> Any:
        """One channel's value."""
        return self._guarded(row, channel, lambda: self._value(packed))

    def snapshot(
        self,
        row: CheckpointRow,
        checkpoint_ns: str,
        tree: list[Any] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Snapshot:
        """A checkpoint with its pending writes."""
        tree = self.envelope(row) if tree is None else tree
        values = {
            name: self.value(row, name, packed) for name, packed in tree[envelope.VALUES].items()
        }
        extra = self._guarded(row, None, lambda: self._value(tree[envelope.EXTRA]))
        checkpoint_id = unpack_name(row.id)
        walked = self._guarded(row, None, lambda: self._walked(tree))
        return Snapshot(
            thread_id=self.thread_id,
            checkpoint_ns=checkpoint_ns,
            checkpoint_id=checkpoint_id,
            parent_id=None if row.parent is None else unpack_name(row.parent),
            seq=row.seq,
            checkpoint=envelope.checkpoint_from([*walked[:8], extra], checkpoint_id, values),
            metadata=self.metadata(row, tree) if metadata is None else metadata,
            writes=self.writes(row.ns, row.id),
        )

    def _walked(self, tree: list[Any]) -> list[Any]:
        """Parts that had to be walked when stored (a dict subclass, say) restored."""
        if tree[0] & envelope.WALKED:
            return [self._value(p) if i in envelope.WALKABLE else p for i, p in enumerate(tree)]
        return tree

    # --- writes -------------------------------------------------------------------------------

    def writes(self, ns: int, checkpoint: bytes, channel: str | None = None) -> list[Write]:
        """The writes under a checkpoint in LangGraph's order (path, task, index)."""
        found: list[Write] = []
        for row in rows.writes_of(
            self._session, self._engine.sealer, ns, checkpoint, self.thread_id
        ):
            found.extend(self.writes_in(row, channel))
        found.sort(key=lambda write: (write.task_path, write.task_id, write.index))
        return found

    def writes_in(self, row: WritesRow, channel: str | None = None) -> Iterator[Write]:
        """The writes of one task, all or those to one channel."""
        try:
            raw = decoded(self._engine, self._session, row.frame, self._thread)
            path, indexes, channels, values = unpacked(raw)
            for index, name, packed in zip(indexes, channels, values, strict=True):
                if channel is None or name == channel:
                    yield Write(
                        task_id=unpack_name(row.task),
                        task_path=path,
                        index=index,
                        channel=name,
                        value=self._value(packed),
                    )
        except (DataCorrupt, ValueError, TypeError) as error:
            raise self._wrapped(error, None, None, row) from None

    def content(self, frame: bytes) -> bytes:
        """The content of a frame of this thread."""
        return decoded(self._engine, self._session, frame, self._thread)

    def packed(self, value: bytes) -> Any:
        """A value that was kept packed."""
        return self._value(value)

    # --- values -------------------------------------------------------------------------------

    def _value(self, packed: bytes) -> Any:
        return self._unpacked(packed, self._thread << BLOB_BITS)

    def _unpacked(self, packed: bytes, base: int) -> Any:
        if len(packed) >= _SCATTERED and not is_series(packed):
            self._read_ahead(packed, base)
        return self._unpacker(base).unpack(packed)

    def _read_ahead(self, packed: bytes, base: int) -> None:
        """Read what a value names here and there in few queries, not one by one."""
        try:
            references = references_of(packed, base)
        except (ValueError, TypeError, IndexError, DataCorrupt):
            return  # it is damaged: unpacking it says how
        known = self._engine.cache.many(references)
        self._read([r for r, entry in zip(references, known, strict=True) if entry is None])

    def _unpacker(self, base: int) -> Unpacker:
        found = self._unpackers.get(base)
        if found is None:
            found = self._unpackers[base] = Unpacker(
                self.fetch,
                base,
                self._policy,
                self._engine.key,
                self._opaque,
                self._note,
            )
        return found

    def _note(self, values: list[Any], references: list[int]) -> None:
        if len(values) >= _PRIMED:
            self.series[id(values)] = (values, references)

    def _opaque(self, kind: str, data: bytes) -> Any:
        serde = self._serde
        if serde is None:
            raise DataCorrupt(
                f"it was stored by a serializer that the saver was not given (kind {kind!r}); "
                "set saver.serde to the serializer that wrote it"
            )
        return serde.loads_typed((kind, data))

    def fetch(self, references: list[int]) -> list[Any]:
        """The values of some blobs, in order; each is the caller's own."""
        found = self._engine.cache.many(references)
        if None in found:
            with collector_paused():
                self._read([r for r, entry in zip(references, found, strict=True) if entry is None])
            loaded = self._loaded
            found = [
                loaded[ref] if entry is None else entry
                for ref, entry in zip(references, found, strict=True)
            ]
        if len(found) < _MANY:
            return [self._own(entry) for entry in found]
        clone = types.clone_message
        with collector_paused():
            return [
                clone(entry.prototype)
                if type(entry) is Kept and entry.prototype is not None
                else self._own(entry)
                for entry in found
            ]

    def _own(self, entry: Any) -> Any:
        kind = type(entry)
        if kind is Kept:
            return entry.message(self._unpacker(entry.base).message)
        return self._unpacked(entry.raw, entry.base) if kind is _Raw else entry.value

    def _read(self, references: Sequence[int]) -> None:
        missing = set(references).difference(self._loaded)
        wanted = sorted(missing)
        start = 0
        for index in range(1, len(wanted) + 1):
            if index == len(wanted) or wanted[index] - wanted[index - 1] > _GAP:
                found = rows.read_blobs(self._session, wanted[start], wanted[index - 1])
                self._enter([row for row in found if row[0] in missing])
                start = index
        for blob in wanted:
            if blob not in self._loaded:
                raise BlobCorrupt(
                    f"value {blob} is missing; run `langgraph-resilient verify`",
                    thread_id=self.thread_id,
                )

    def _enter(self, found: list[tuple[int, bytes | None, bytes]]) -> None:
        """Open stored contents and remember them; most of the time of a first read goes here."""
        engine, loaded = self._engine, self._loaded
        unseal, place = engine.sealer.open, rows.blob_place
        size, base = 0, -1
        addresses: dict[bytes, int] = {}
        entries: dict[int, Any] = {}
        with engine.frames.borrowed() as decode:
            for blob, at, stored in found:
                if blob >> BLOB_BITS << BLOB_BITS != base:
                    base = blob >> BLOB_BITS << BLOB_BITS
                    find = partial(self._template, base)
                try:
                    frame = unseal(place(blob), stored)
                    raw = decode(frame, find)
                    named = bool(frame[0] & REFERENCES)
                    entries[blob] = (
                        Kept(raw, base, named) if is_message(raw) else self._entry(raw, base)
                    )
                except (DataCorrupt, TypeError, AttributeError) as error:
                    raise _damaged_blob(blob, error, self.thread_id) from None
                if at is None:  # it stands in an archive
                    at = address_of(engine, blob, raw, named)
                addresses[at] = blob
                size += len(raw) + ENTRY_BYTES
        loaded.update(entries)
        engine.cache.update(entries, size)
        if self._session.addresses is not None:
            self._session.addresses.update(addresses, len(addresses))

    def _template(self, base: int, number: int) -> Template:
        """A template of the thread whose numbers begin at `base`."""
        found = self._templates.get(base | number)
        if found is None:
            found = self._engine.template(self._session, base | number)
            self._templates[base | number] = found
        return found

    def _entry(self, raw: bytes, base: int) -> Any:
        first = raw[0] if raw else 0
        if 0xA0 <= first <= 0xBF or 0xC4 <= first <= 0xC6 or 0xD9 <= first <= 0xDB:
            return _Whole(self._unpacker(base).unpack(raw))
        return _Raw(raw, base)

    # --- errors -------------------------------------------------------------------------------

    def _guarded(self, row: CheckpointRow, channel: str | None, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except DataCorrupt as error:
            raise self._wrapped(error, row, channel) from error

    def _wrapped(
        self,
        error: Exception,
        row: CheckpointRow | None,
        channel: str | None,
        writes: WritesRow | None = None,
    ) -> DataCorrupt:
        if isinstance(error, DataCorrupt) and error.checkpoint_id is not None:
            return error
        id = row.id if row is not None else writes.checkpoint if writes is not None else b""
        kind = type(error) if isinstance(error, DataCorrupt) else CheckpointCorrupt
        if kind is DataCorrupt:
            kind = CheckpointCorrupt if channel is None else BlobCorrupt
        where = f"thread {self.thread_id!r}, checkpoint {rows.readable(id)}"
        if channel is not None:
            where += f", channel {channel!r}"
        if writes is not None:
            where += f", writes of task {rows.readable(writes.task)}"
        return kind(
            f"{where}: {error}",
            thread_id=self.thread_id,
            checkpoint_id=rows.readable(id),
            channel=channel,
        )


def open_blob(
    engine: Engine, session: Session, blob: int, stored: bytes, thread_id: str | None
) -> tuple[bytes, bool]:
    """The content of a blob's row, and whether it names other blobs.

    Raises:
        BlobCorrupt: it is damaged (or what the seal says: TamperDetected, DecryptionFailed).
    """
    try:
        frame = engine.sealer.open(rows.blob_place(blob), stored)
        return decoded(engine, session, frame, blob >> BLOB_BITS), has_references(frame)
    except (DataCorrupt, TypeError, AttributeError) as error:
        raise _damaged_blob(blob, error, thread_id) from None


def _damaged_blob(blob: int, error: Exception, thread_id: str | None) -> DataCorrupt:
    kind = type(error) if isinstance(error, DataCorrupt) else BlobCorrupt
    if kind is DataCorrupt:
        kind = BlobCorrupt
    return kind(f"value {blob} is damaged: {error}", thread_id=thread_id)


@contextmanager
def collector_paused() -> Iterator[None]:
    """No cyclic garbage collection meanwhile: thousands of new objects would set off several.

    What msgpack's documentation advises for unpacking; the collector only comes later.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def address_of(engine: Engine, blob: int, raw: bytes, references: bool) -> bytes:
    """The address that a blob's content must have."""
    scope = (blob >> BLOB_BITS << BLOB_BITS).to_bytes(8, "big") if references else b""
    return digest.address(scope + raw, engine.key)


def primed_lists(
    engine: Engine, ns: int, restorer: Restorer, values: dict[str, Any]
) -> dict[tuple[int, str], ListMemo]:
    """What lets a thread recognise the messages that a reader was just given.

    A run reads the newest checkpoint, then puts the same message objects again and again.
    """
    lists: dict[tuple[int, str], ListMemo] = {}
    for channel, value in values.items():
        noted = restorer.series.get(id(value))
        if noted is None or noted[0] is not value or not all(map(_is_base_message, value)):
            continue
        entries = engine.cache.many(noted[1])
        lists[ns, channel] = ListMemo.primed(
            value, noted[1], partial(_snapshots, engine, value, entries)
        )
    return lists


def _is_base_message(value: Any) -> bool:
    return isinstance(value, BaseMessage)


def _snapshots(engine: Engine, messages: list[Any], entries: list[Any]) -> list[Any]:
    """Frozen copies of messages as they were stored, made when the first put asks for them."""
    unpack = Unpacker(
        _no_session, 0, engine.policy, engine.key, lambda *_: None, lambda *_: None
    ).message
    with collector_paused():
        return [
            entry.snapshot(unpack) if type(entry) is Kept and not entry.named else NEVER
            for entry in entries
        ]


def _no_session(references: list[int]) -> list[Any]:
    raise DataCorrupt(f"blobs {references[:3]} are named where none may be")
