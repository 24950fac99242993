"""Values to MessagePack and back, with messages and long leaves taken out as blobs.

Walks a value; whatever deserves an address of its own (a message, a long string, a slice of a
long list) is handed to a `Place`, which answers with a reference, an integer. What remains is
packed by the C packer with exact types only. Knows objects and references, no rows and no SQL.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import msgpack
from langchain_core.messages import BaseMessage
from msgpack import ExtType

from langgraph_resilient.codec import types
from langgraph_resilient.codec.frame import read_varint, write_varint
from langgraph_resilient.codec.memo import (
    Item,
    ListMemo,
    Memo,
    has_no_buffers,
    plain_bytes,
    snapshot_of,
)
from langgraph_resilient.codec.packed import (
    CHUNK,
    ENTRIES,
    EXTENSIONS,
    OPAQUE,
    REF,
    REFS,
    SPLICE,
    WITH_ID,
    mask,
    pack,
    unmask,
    unpack_series,
)
from langgraph_resilient.codec.series import pack_series, unzigzag, zigzag
from langgraph_resilient.errors import DataCorrupt, ResilientError, ValueRefused

LONG: Final = 64
"""Longer lists and dicts are split into slices of `SLICE` items."""
SLICE: Final = 32
_SLICE_BYTES: Final = 384
"""Shorter slices are cheaper inline."""


class Place(Protocol):
    """Stores content once and gives out its reference."""

    base: int
    """References are coded relative to this number."""

    def __call__(self, raw: bytes, references: bool) -> int:
        """The reference of a content; `references` says whether it names other blobs."""
        ...


class Packer:
    """Packs the values of one thread.

    Args:
        place: stores contents and gives out references.
        memo: what the thread has stored before; it is updated.
        leaf_bytes: strings and bytes at least this long become blobs, outside messages.
        message_leaf_bytes: the same inside messages.
        max_depth: deepest nesting.
        secret_key: key that keeps secrets from standing readable in the file.
        inline: take nothing out; then `place` is never called.
    """

    def __init__(
        self,
        place: Place,
        memo: Memo,
        *,
        leaf_bytes: int,
        message_leaf_bytes: int,
        max_depth: int,
        secret_key: bytes,
        inline: bool = False,
    ):
        self._inline = inline
        self._place = place
        self._memo = memo
        self._leaf_bytes = leaf_bytes
        self._message_leaf_bytes = message_leaf_bytes
        self._max_depth = max_depth
        self._secret_key = secret_key
        self._depth = 0
        self._named = False  # whether the content being packed names a blob

    # --- entry points -----------------------------------------------------------------------

    def channel(self, ns: int, channel: str, value: Any) -> Any:
        """The tree that stands for a channel's value in a checkpoint.

        Cost follows the change: an unchanged list of messages is recognised, an unchanged plain
        container too.

        Raises:
            ValueRefused: something in it cannot round-trip; names channel, path and type.
        """
        kind = type(value)
        self._depth = 0
        try:
            if kind is list and value and isinstance(value[0], BaseMessage):
                return self._messages(self._memo.lists.setdefault((ns, channel), ListMemo()), value)
            if kind in (list, dict) and len(value) > 8:
                return self._container(ns, channel, value)
            return self._contained(self.tree(value))
        except (types.Unsupported, RecursionError, OverflowError, UnicodeError) as error:
            raise self._refusal(channel, value, error) from None

    def write(self, channel: str, value: Any) -> Any:
        """The tree that stands for one pending write.

        Raises:
            ValueRefused: something in it cannot round-trip; names channel, path and type.
        """
        self._depth = 0
        try:
            return self._contained(self.tree(value))
        except (types.Unsupported, RecursionError, OverflowError, UnicodeError) as error:
            raise self._refusal(channel, value, error) from None

    def opaque(self, kind: str, data: bytes) -> ExtType:
        """The tree for what a user's serializer made."""
        body = self._one(self._reference(pack(data), False)) if len(data) >= 256 else data
        return ExtType(OPAQUE, pack([kind, body]))

    # --- walking ----------------------------------------------------------------------------

    def tree(self, value: Any) -> Any:
        """`value` as a tree of exact MessagePack types and extension types."""
        kind = type(value)
        if kind is str or kind is bytes:
            return value if len(value) < self._leaf_bytes else self._leaf(value)
        if kind is bool or value is None or kind is float:
            return value
        if kind is int:
            if -0x8000000000000000 <= value <= 0xFFFFFFFFFFFFFFFF:
                return value
            return self._object(value)
        if isinstance(value, BaseMessage) and not self._inline:
            return self._one(self._message(value).reference)
        self._depth += 1
        if self._depth > self._max_depth:
            self._depth = 0
            raise types.Unsupported(
                f"it is nested deeper than {self._max_depth} levels, or contains itself"
            )
        if kind is list:
            tree = self._list(value)
        elif kind is dict:
            tree = self._dict(value)
        else:
            tree = self._object(value)
        self._depth -= 1
        return tree

    def _list(self, values: list[Any]) -> Any:
        if self._inline:
            return [self.tree(item) for item in values]
        if any(isinstance(item, BaseMessage) for item in values):
            return self._spliced(values)
        if len(values) > LONG:
            return ExtType(SPLICE, pack(self._slices(values)))
        return [self.tree(item) for item in values]

    def _dict(self, value: dict[Any, Any]) -> Any:
        if len(value) > LONG and not self._inline:
            flat = [part for pair in value.items() for part in pair]
            return ExtType(ENTRIES, pack(self._slices(flat)))
        return {
            key if type(key) is str and len(key) < 256 else self._whole(key): self.tree(item)
            for key, item in value.items()
        }

    def _whole(self, value: Any) -> Any:
        """A tree without blobs.

        For keys: reading a dict must not need another row for each key. For secrets: a blob of
        its own would stand readable in the file, and nobody would see the reference to it.
        """
        limits = self._leaf_bytes, self._inline
        self._leaf_bytes, self._inline = sys.maxsize, True
        try:
            return self.tree(value)
        finally:
            self._leaf_bytes, self._inline = limits

    def _slices(self, values: list[Any]) -> list[Any]:
        """Parts of a long list: full slices become blobs, so that a growing list costs its growth."""
        parts: list[Any] = []
        outer, self._named = self._named, False
        for start in range(0, len(values), SLICE):
            piece = [self.tree(item) for item in values[start : start + SLICE]]
            named, self._named = self._named, False
            raw = pack(piece) if len(piece) == SLICE else b""
            if len(raw) >= _SLICE_BYTES:
                parts.append(ExtType(CHUNK, self._varint(self._reference(raw, named))))
                outer = True
            else:
                parts.append(piece)
                outer = outer or named
        self._named = outer
        return parts

    def _spliced(self, values: list[Any]) -> Any:
        """A list with messages in it: runs of references between literal items."""
        parts: list[Any] = []
        references: list[int] = []
        literal: list[Any] = []
        for item in values:
            if isinstance(item, BaseMessage):
                if literal:
                    parts.append(literal)
                    literal = []
                references.append(self._message(item).reference)
            else:
                if references:
                    parts.append(self._series(references))
                    references = []
                literal.append(self.tree(item))
        if not parts and not literal:
            return self._series(references)
        parts.append(literal or self._series(references))
        return ExtType(SPLICE, pack(parts))

    def _messages(self, memo: ListMemo, values: list[Any]) -> Any:
        """A channel that is a list starting with a message; the hot path of every chat."""
        start = memo.prefix(values)
        if not start and memo.messages:
            memo.__init__()  # type: ignore[misc]
        for item in values[start:]:
            if not isinstance(item, BaseMessage):
                memo.__init__()  # type: ignore[misc]
                return self._spliced(values)
            memo.append(self._message(item))
        self._named = True
        return ExtType(REFS, memo.series.pack(memo.references, self._place.base))

    def _container(self, ns: int, channel: str, value: Any) -> Any:
        plain = plain_bytes(value)
        key = (ns, channel)
        known = self._memo.plain.get(key)
        if plain is not None and known is not None and known[0] == plain:
            self._named = True
            return known[1]
        tree = self._contained(self.tree(value))
        if plain is not None and has_no_buffers(value):
            self._memo.plain[key] = (plain, tree)
        else:
            self._memo.plain.pop(key, None)
        return tree

    def _contained(self, tree: Any) -> Any:
        """A large remainder becomes a blob of its own, so that an unchanged one costs nothing."""
        if type(tree) in (list, dict, ExtType) and not self._inline:
            if type(tree) is ExtType and tree.code in (REF, REFS):
                return tree
            raw = pack(tree)
            if len(raw) >= 512:
                named, self._named = self._named, False
                return self._one(self._reference(raw, named))
        return tree

    # --- objects ----------------------------------------------------------------------------

    def _object(self, value: Any) -> ExtType:
        try:
            code, payload = types.reduce(value)
            if code in types.SECRET_CODES:
                body = mask(pack(self._whole(payload)), self._secret_key)
            else:
                body = pack(self.tree(payload))
        except (types.Unsupported, OverflowError):
            if not isinstance(value, BaseException):
                raise
            code, payload = types.degrade_exception(value)
            body = pack(self.tree(payload))
        return ExtType(int(code), body)

    def _message(self, message: BaseMessage) -> Item:
        item = self._memo.item(message)
        if item is not None:
            self._named = True
            return item
        item = self._memo.without_id(message)
        if item is not None:
            return self._identified(message, item)
        # First the copy, then the bytes: another thread may be giving the message its id just now,
        # and a copy that is older than the bytes only means that it is packed again.
        snapshot = snapshot_of(message)
        outer, self._named = self._named, False
        limit, self._leaf_bytes = self._leaf_bytes, self._message_leaf_bytes
        try:
            code, payload = types.reduce(message)
            raw = pack(ExtType(int(code), pack(self.tree(payload))))
        finally:
            self._leaf_bytes = limit
            named, self._named = self._named, outer
        reference = self._reference(raw, named)
        return self._memo.remember(message, snapshot, reference)

    def _identified(self, message: BaseMessage, item: Item) -> Item:
        """LangGraph gives a message its id while, or after, its first write is stored."""
        snapshot = {**item.snapshot, "id": message.id}
        given = "id" in message.__pydantic_fields_set__
        raw = pack(ExtType(WITH_ID, pack([self._one(item.reference), message.id, given])))
        return self._memo.remember(message, snapshot, self._reference(raw, True))

    # --- references -------------------------------------------------------------------------

    def _reference(self, raw: bytes, named: bool) -> int:
        self._named = True
        return self._place(raw, named)

    def _leaf(self, value: str | bytes) -> ExtType:
        reference = self._memo.leaf(value)
        if reference is None:
            reference = self._reference(pack(value), False)
            self._memo.remember_leaf(value, reference)
        self._named = True
        return self._one(reference)

    def _one(self, reference: int) -> ExtType:
        self._named = True
        return ExtType(REF, self._varint(reference))

    def _varint(self, reference: int) -> bytes:
        out = bytearray()
        write_varint(out, zigzag(reference - self._place.base))
        return bytes(out)

    def _series(self, references: Iterable[int]) -> ExtType:
        self._named = True
        return ExtType(REFS, pack_series(references, self._place.base))

    # --- refusals ---------------------------------------------------------------------------

    def _refusal(self, channel: str, value: Any, error: Exception) -> ValueRefused:
        """Walk again to find where the trouble is; only errors pay for it."""
        path, culprit, cause = self._locate(value, "", error)
        reason = getattr(cause, "reason", None) or f"{type(cause).__name__}: {cause}"
        name = getattr(cause, "type_name", "") or types.type_name(type(culprit))
        return ValueRefused(
            f"channel {channel!r}, at {path or 'its top'}: a value of type {name} cannot be stored "
            f"so that it comes back equal: {reason}",
            channel=channel,
            path=path,
            type_name=name,
        )

    def _locate(self, value: Any, path: str, error: Exception) -> tuple[str, Any, Exception]:
        for step, child in children(value):
            self._depth = 0
            try:
                self.tree(child)
            except (types.Unsupported, RecursionError, OverflowError, UnicodeError) as deeper:
                if len(path) > 200:
                    break
                return self._locate(child, path + step, deeper)
        self._depth = 0
        return path, value, error


def children(value: Any) -> Iterable[tuple[str, Any]]:
    """The parts of a value with the subscript or attribute that leads to each."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"[{key!r}]", item
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield f"[{index}]", item
    elif isinstance(value, (set, frozenset)):
        for item in value:
            yield "{...}", item
    else:
        fields = getattr(value, "__dict__", None)
        if isinstance(fields, dict):
            for name, item in fields.items():
                yield f".{name}", item
        for name in _slots(type(value)):
            if hasattr(value, name):
                yield f".{name}", getattr(value, name)


def _slots(cls: type) -> Iterable[str]:
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        yield from (n for n in ([slots] if isinstance(slots, str) else slots) if n[:2] != "__")


# --- reading ----------------------------------------------------------------------------------


class Unpacker:
    """Rebuilds values of one thread.

    Args:
        fetch: the objects of some references, in order; each is the caller's own.
        base: what references are relative to.
        policy: which classes may be restored.
        secret_key: the key that `mask` used.
        opaque: rebuilds what a user's serializer made.
        note: is told each list that consists of blobs, and their references.
    """

    def __init__(
        self,
        fetch: Callable[[list[int]], list[Any]],
        base: int,
        policy: types.TypePolicy,
        secret_key: bytes,
        opaque: Callable[[str, bytes], Any],
        note: Callable[[list[Any], list[int]], None],
    ):
        self._fetch = fetch
        self._base = base
        self._policy = policy
        self._secret_key = secret_key
        self._opaque = opaque
        self._note = note

    def unpack(self, raw: bytes) -> Any:
        """The value that was packed.

        Raises:
            DataCorrupt: the bytes are not what was packed.
            TypeNotAllowed: strict mode refuses a class that the value needs.
        """
        try:
            return msgpack.unpackb(
                raw,
                ext_hook=self._extension,
                strict_map_key=False,
                unicode_errors="surrogatepass",
            )
        except (ResilientError, MemoryError):
            raise
        except Exception as error:  # damage may make any constructor fail
            raise DataCorrupt(f"it does not unpack: {type(error).__name__}: {error}") from error

    def message(self, raw: bytes) -> Any:
        """A message that is a content of its own; like `unpack`, with a step less."""
        start = EXTENSIONS.get(raw[0], 2)
        if raw[start - 1] != types.Code.MESSAGE:
            return self.unpack(raw)
        return types.restore(types.Code.MESSAGE, self.unpack(raw[start:]), self._policy)

    def _extension(self, code: int, data: bytes) -> Any:
        if code < REF:
            if code in types.SECRET_CODES:
                data = unmask(data, self._secret_key)
            return types.restore(code, self.unpack(data), self._policy)
        if code in (REF, CHUNK):
            return self._fetch([self._reference(data)])[0]
        if code == REFS:
            references = unpack_series(data, self._base)
            values = self._fetch(references)
            self._note(values, references)
            return values
        if code == SPLICE:
            return self._parts(data)
        if code == ENTRIES:
            flat = self._parts(data)
            return dict(zip(flat[::2], flat[1::2], strict=True))
        if code == WITH_ID:
            return _with_id(*self.unpack(data))
        if code == OPAQUE:
            kind, body = self.unpack(data)
            return self._opaque(kind, body)
        raise DataCorrupt(f"its extension code {code} is unknown to this release")

    def _parts(self, data: bytes) -> list[Any]:
        return [item for part in self.unpack(data) for item in part]

    def _reference(self, data: bytes) -> int:
        return self._base + unzigzag(read_varint(data, 0)[0])


def _with_id(message: BaseMessage, id: str, given: bool) -> BaseMessage:
    message.__dict__["id"] = id
    if given:
        message.__pydantic_fields_set__.add("id")
    return message
