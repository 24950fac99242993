"""Packed bytes without their objects: codes, references, hidden secrets.

What a collector, a copier or a checker needs to know of a packed value: which blobs it names.
Knows no classes but their codes.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgpack
from msgpack import ExtType

from langgraph_resilient.codec.frame import read_varint, write_varint
from langgraph_resilient.codec.series import pack_series, unzigzag, zigzag
from langgraph_resilient.codec.types import SECRET_CODES, Code
from langgraph_resilient.errors import DataCorrupt

REF: Final = 100
"""One blob: its number relative to the thread's first."""
REFS: Final = 101
"""A run-length coded series of blobs: as a value, the list of them; in a SPLICE, its items."""
SPLICE: Final = 102
"""A list in parts: literal items, REFS, and CHUNKs."""
CHUNK: Final = 103
"""Inside SPLICE and ENTRIES: a blob that holds a list of items."""
ENTRIES: Final = 104
"""A dict in parts: flat lists key, value, key, value, ..., and CHUNKs of such lists."""
OPAQUE: Final = 105
"""What a user's serializer made: [type, bytes or REF]."""

WITH_ID: Final = 106
"""A message that differs from a stored one only by its id: [REF, id, whether it was set]."""


def pack(tree: Any) -> bytes:
    """A tree of exact MessagePack types as bytes; lone surrogates survive."""
    return msgpack.packb(tree, strict_types=True, unicode_errors="surrogatepass")  # type: ignore[no-any-return]


def unpack_tree(raw: bytes) -> Any:
    """The tree again, extension types left as they are."""
    return msgpack.unpackb(
        raw, ext_hook=ExtType, strict_map_key=False, unicode_errors="surrogatepass"
    )


# --- references ------------------------------------------------------------------------------


def unpack_series(data: bytes, base: int) -> list[int]:
    """The references of `pack_series`.

    Raises:
        DataCorrupt: the bytes are cut off.
    """
    references: list[int] = []
    at, expected = 0, base
    while at < len(data):
        code, at = read_varint(data, at)
        length = 1
        if code & 1:
            length, at = read_varint(data, at)
            length += 2
        start = expected + unzigzag(code >> 1)
        if len(references) + length > 1 << 24:
            raise DataCorrupt(f"a run of {length} references is longer than any thread")
        references.extend(range(start, start + length))
        expected = start + length
    return references


def references_of(raw: bytes, base: int) -> list[int]:
    """Every blob that packed bytes name directly, without restoring any object."""
    found: list[int] = []

    def extension(code: int, data: bytes) -> Any:
        if code in (REF, CHUNK):
            found.append(base + unzigzag(read_varint(data, 0)[0]))
        elif code == REFS:
            found.extend(unpack_series(data, base))
        elif code not in SECRET_CODES:
            msgpack.unpackb(
                data,
                ext_hook=extension,
                strict_map_key=False,
                unicode_errors="surrogatepass",
                object_pairs_hook=list,
            )
        return None

    msgpack.unpackb(
        raw,
        ext_hook=extension,
        strict_map_key=False,
        unicode_errors="surrogatepass",
        object_pairs_hook=list,
    )
    return found


def rebase(raw: bytes, old: int, new: int) -> bytes:
    """The same packed value for another thread: references coded relative to `new`."""
    if old == new:
        return raw
    return pack(_rebased(unpack_tree(raw), old, new))


def _rebased(tree: Any, old: int, new: int) -> Any:
    kind = type(tree)
    if kind is list:
        return [_rebased(item, old, new) for item in tree]
    if kind is dict:
        return {_rebased(key, old, new): _rebased(item, old, new) for key, item in tree.items()}
    if kind is not ExtType or tree.code in SECRET_CODES:
        return tree
    if tree.code in (REF, CHUNK):
        out = bytearray()
        write_varint(out, zigzag(old + unzigzag(read_varint(tree.data, 0)[0]) - new))
        return ExtType(tree.code, bytes(out))
    if tree.code == REFS:
        return ExtType(REFS, pack_series(unpack_series(tree.data, old), new))
    return ExtType(tree.code, rebase(tree.data, old, new))


# --- messages and secrets --------------------------------------------------------------------


EXTENSIONS: Final = {0xC7: 3, 0xC8: 4, 0xC9: 6, **dict.fromkeys(range(0xD4, 0xD9), 2)}
"""First byte of an extension to where its data begin; the code is the byte before."""
_MESSAGES: Final = frozenset((Code.MESSAGE, WITH_ID))


def is_message(raw: bytes) -> bool:
    """Whether a content is one message."""
    start = EXTENSIONS.get(raw[0]) if len(raw) > 6 else None
    return start is not None and raw[start - 1] in _MESSAGES


def is_series(raw: bytes) -> bool:
    """Whether a value is nothing but a list of blobs."""
    start = EXTENSIONS.get(raw[0]) if len(raw) > 6 else None
    return start is not None and raw[start - 1] == REFS


def mask(data: bytes, key: bytes) -> bytes:
    """Keep a secret from standing readable in the file; only `cipher=` truly protects it.

    A keyed keystream with a nonce that depends on the content alone, so that equal secrets still
    share one blob.
    """
    nonce = hashlib.blake2b(data, digest_size=8, key=key).digest()
    return nonce + _stream(data, key, nonce)


def unmask(data: bytes, key: bytes) -> bytes:
    """The bytes that `mask` hid."""
    return _stream(data[8:], key, data[:8])


def _stream(data: bytes, key: bytes, nonce: bytes) -> bytes:
    blocks = (
        hashlib.blake2b(nonce + index.to_bytes(8, "big"), key=key).digest()
        for index in range((len(data) + 63) // 64)
    )
    keystream = int.from_bytes(b"".join(blocks)[: len(data)], "big")
    return (int.from_bytes(data, "big") ^ keystream).to_bytes(len(data), "big")
