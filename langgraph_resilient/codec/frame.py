"""Bytes to compressed frames and back. Knows no SQL and no objects.

A frame is one header byte, a few varints and the payload:

    bits 7-4  format version of frames (not of the schema)
    bit  3    the content holds references to other blobs
    bits 2-0  method: how the payload is compressed

Frames of every released version stay readable; numbers are never reused.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache, partial
from typing import Generic, TypeVar

import zstandard

from langgraph_resilient.codec import dictionary
from langgraph_resilient.errors import DataCorrupt

FRAME_VERSION = 1
REFERENCES = 0x08
_SMALLEST = 20
"""Shorter contents are stored raw: a compressed block costs about as much as it saves."""
_DICTIONARY_LIMIT = 1 << 16
"""Longer contents gain nothing from a dictionary."""
_SHORT_TEMPLATE = 1 << 12
_TEMPLATE_LEVEL = 5
"""Against a short template higher levels find no more, only later (measured)."""
_LARGE_LEVEL = 6
"""For contents too long for the dictionary: higher levels take tens of megabytes of memory."""
_CONTEXTS_KEPT = 8
_SAME_KEPT = 3
"""Idle contexts that are kept, of all kinds and of one kind."""
ARCHIVE = "archive"
"""Family of the templates that hold old contents whole; no new frame is compressed against them."""
_ARCHIVE_LEVEL = 19
_SMALL, _LARGE = b"small", b"large"
"""Stand for the shipped dictionary and for none where the content of a template could stand."""
C = TypeVar("C")


class Method(IntEnum):
    """How a payload is compressed."""

    RAW = 0
    DICTIONARY_1 = 1
    TEMPLATE = 2
    PLAIN = 3
    SLICE = 4


# Plain integers: a look at an enum's member costs as much as half a frame's header.
_RAW, _DICTIONARY_1, _TEMPLATE, _PLAIN, _SLICE = map(int, Method)


@dataclass(frozen=True, slots=True)
class Template:
    """Bytes that later frames of one thread are compressed against."""

    number: int
    content: bytes


Find = Callable[[int], Template | None]
"""Gives the template of a number."""


def write_varint(out: bytearray, value: int) -> None:
    """Append `value` >= 0 as little-endian groups of seven bits."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at` and the position behind it.

    Raises:
        DataCorrupt: the bytes end inside the number, or it has more than 64 bits.
    """
    if at < len(data) and data[at] < 0x80:
        return data[at], at + 1
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise DataCorrupt("a number in it is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


class FrameCodec:
    """Compresses and decompresses frames; safe to share between threads.

    zstandard contexts are not thread-safe, so each call borrows what it needs. (One per thread
    would be made anew all the time: LangGraph runs each graph on threads of its own.)

    Args:
        level: zstandard level for new frames.
        max_bytes: largest decompressed size that is accepted.
    """

    def __init__(self, level: int, max_bytes: int):
        self._level = level
        self._max_bytes = max_bytes
        self._compressors: _Idle[zstandard.ZstdCompressor] = _Idle(partial(_new_compressor, level))
        self._decompressors: _Idle[zstandard.ZstdDecompressor] = _Idle(_new_decompressor)

    def encode(
        self, raw: bytes, *, references: bool = False, template: Template | None = None
    ) -> bytes:
        """The smallest frame for `raw`; raw when compression does not help."""
        flags = FRAME_VERSION << 4 | (REFERENCES if references else 0)
        size = len(raw)
        if size >= _SMALLEST:
            out = bytearray((flags,))
            if template is not None:
                out[0] |= _TEMPLATE
                write_varint(out, template.number)
                words = template.content
            elif size <= _DICTIONARY_LIMIT:
                out[0] |= _DICTIONARY_1
                words = _SMALL
            else:
                out[0] |= _PLAIN
                words = _LARGE
            idle = self._compressors
            compressor = idle.borrow(words)
            payload = compressor.compress(raw)
            idle.give_back(words, compressor)
            write_varint(out, size)
            if len(out) + len(payload) < size + 1:
                return bytes(out) + payload
        return bytes((flags | _RAW,)) + raw

    def encode_archive(self, raw: bytes) -> bytes:
        """A frame for many contents in a row: slow to make, small, quick to read."""
        words = _high_dictionary()
        parameters = _parameters(_ARCHIVE_LEVEL, words, len(raw))
        compressor = zstandard.ZstdCompressor(compression_params=parameters, dict_data=words)
        out = bytearray((FRAME_VERSION << 4 | _DICTIONARY_1,))
        write_varint(out, len(raw))
        return bytes(out) + compressor.compress(raw)

    def decode(self, frame: bytes, template: Template | None = None) -> bytes:
        """The content of a frame; `template` must be the one that `template_number` names.

        Raises:
            DataCorrupt: the frame is malformed, too large or of an unknown version.
        """
        taken: dict[bytes, zstandard.ZstdDecompressor] = {}
        try:
            return _decode(self._decompressors, taken, self._max_bytes, frame, lambda _: template)
        finally:
            for words, decompressor in taken.items():
                self._decompressors.give_back(words, decompressor)

    @contextmanager
    def borrowed(self) -> Iterator[Callable[[bytes, Find], bytes]]:
        """`decode` for many frames in a row, by one thread; templates are asked for by number."""
        idle = self._decompressors
        taken: dict[bytes, zstandard.ZstdDecompressor] = {}
        try:
            yield partial(_decode, idle, taken, self._max_bytes)
        finally:
            for words, decompressor in taken.items():
                idle.give_back(words, decompressor)


def slice_frame(template: int, start: int, size: int, *, references: bool) -> bytes:
    """A frame that only says where in a template its content stands."""
    out = bytearray((FRAME_VERSION << 4 | (REFERENCES if references else 0) | _SLICE,))
    for number in (template, start, size):
        write_varint(out, number)
    return bytes(out)


def is_slice(frame: bytes) -> bool:
    """Whether a frame only says where in a template its content stands."""
    return bool(frame and frame[0] & 0x07 == _SLICE)


class _Idle(Generic[C]):
    """zstandard contexts that nobody uses just now, by what they are prepared for."""

    def __init__(self, make: Callable[[bytes], C]):
        self._make = make
        self._kept: OrderedDict[tuple[bytes, int], C] = OrderedDict()
        self._lock = threading.Lock()

    def borrow(self, words: bytes) -> C:
        """One for the caller alone, until it is given back."""
        with self._lock:  # protects the table
            for place in range(_SAME_KEPT):
                found = self._kept.pop((words, place), None)
                if found is not None:
                    return found
        return self._make(words)

    def give_back(self, words: bytes, context: C) -> None:
        """The longest unused ones go."""
        with self._lock:  # protects the table
            for place in range(_SAME_KEPT):
                if (words, place) not in self._kept:
                    self._kept[words, place] = context
                    break
            while len(self._kept) > _CONTEXTS_KEPT:
                self._kept.popitem(last=False)


def template_number(frame: bytes) -> int | None:
    """Which template a frame needs, or None."""
    if frame and frame[0] & 0x07 in (_TEMPLATE, _SLICE):
        return read_varint(frame, 1)[0]
    return None


def content_size(frame: bytes) -> int:
    """How many bytes the content of a frame has, without decompressing it.

    Raises:
        DataCorrupt: the frame is cut off.
    """
    if not frame:
        raise DataCorrupt("it is empty")
    method = frame[0] & 0x07
    if method == Method.RAW:
        return len(frame) - 1
    at = read_varint(frame, 1)[1] if method in (Method.TEMPLATE, Method.SLICE) else 1
    if method == Method.SLICE:
        at = read_varint(frame, at)[1]
    return read_varint(frame, at)[0]


def has_references(frame: bytes) -> bool:
    """Whether the content names other blobs (so that a collector must look inside)."""
    return bool(frame and frame[0] & REFERENCES)


def _decode(
    idle: _Idle[zstandard.ZstdDecompressor],
    taken: dict[bytes, zstandard.ZstdDecompressor],
    max_bytes: int,
    frame: bytes,
    find: Find,
) -> bytes:
    """See `FrameCodec.decode`; what it borrows stays in `taken`."""
    try:
        header, at = frame[0], 1
        if header >> 4 != FRAME_VERSION:
            raise DataCorrupt(f"its format version {header >> 4} is unknown to this release")
        method = header & 0x07
        if method == _TEMPLATE:  # most frames are of this kind
            number = frame[1]
            number, at = (number, 2) if number < 0x80 else read_varint(frame, 1)
            template = find(number)
            if template is None or template.number != number:
                raise DataCorrupt(f"its template {number} is missing")
            words = template.content
        elif method == _DICTIONARY_1:
            words = _SMALL
        elif method == _RAW:
            return frame[1:]
        elif method == _SLICE:
            return _sliced(frame, find)
        elif method == _PLAIN:
            words = _LARGE
        else:
            raise DataCorrupt(f"its compression method {method} is unknown to this release")
        size, more = frame[at], frame[at + 1]
        if size < 0x80:
            at += 1
        elif more < 0x80:  # read_varint for the usual two bytes
            size, at = size & 0x7F | more << 7, at + 2
        else:
            size, at = read_varint(frame, at)
        start = frame[at]
    except IndexError:
        what = "it does not decompress: it is cut off" if frame else "it is empty"
        raise DataCorrupt(what) from None
    if size > max_bytes:
        raise DataCorrupt(f"it claims {size} bytes; the limit is {max_bytes}")
    # A size in zstandard's own header would be believed instead of `size`; we never write one.
    if start & 0xE0:
        raise DataCorrupt("it does not decompress: its header is not one of ours")
    decompressor = taken.get(words)
    if decompressor is None:
        decompressor = taken[words] = idle.borrow(words)
    return _decompressed(decompressor, frame[at:], size)


def _decompressed(decompressor: zstandard.ZstdDecompressor, payload: bytes, size: int) -> bytes:
    try:
        raw = decompressor.decompress(payload, max_output_size=size)
    except zstandard.ZstdError as error:
        raise DataCorrupt(f"it does not decompress: {error}") from None
    if len(raw) != size:
        raise DataCorrupt(f"it holds {len(raw)} bytes and should hold {size}")
    return raw


def _sliced(frame: bytes, find: Find) -> bytes:
    number, at = read_varint(frame, 1)
    template = find(number)
    if template is None or template.number != number:
        raise DataCorrupt(f"its template {number} is missing")
    start, at = read_varint(frame, at)
    size, at = read_varint(frame, at)
    if at != len(frame) or start + size > len(template.content):
        raise DataCorrupt("it lies outside of its template")
    return template.content[start : start + size]


def _new_compressor(level: int, words: bytes) -> zstandard.ZstdCompressor:
    """A compressor for contents that resemble a template, are small, or are large."""
    if words is _SMALL:
        return _compressor(level, _shipped(level), _DICTIONARY_LIMIT)
    if words is _LARGE:
        return _compressor(min(level, _LARGE_LEVEL), None, 0)
    if len(words) < _SHORT_TEMPLATE:
        level = min(level, _TEMPLATE_LEVEL)
    return _compressor(level, _prepared(level, words), _source_size(words))


def _new_decompressor(words: bytes) -> zstandard.ZstdDecompressor:
    """Reads what the compressor for the same words made."""
    if words is _SMALL:
        return _decompressor(dictionary.load(1))
    return _decompressor(None if words is _LARGE else _raw_dictionary(words))


@lru_cache
def _shipped(level: int) -> zstandard.ZstdCompressionDict:
    """The shipped dictionary, prepared once for all contexts of a level.

    Trap: preparing it for another level frees what compressors of the first level use, so each
    level has an object of its own.
    """
    words = zstandard.ZstdCompressionDict(
        dictionary.load(1).as_bytes(), dict_type=zstandard.DICT_TYPE_FULLDICT
    )
    words.precompute_compress(compression_params=_parameters(level, words, _DICTIONARY_LIMIT))
    return words


@lru_cache
def _high_dictionary() -> zstandard.ZstdCompressionDict:
    """The shipped dictionary, prepared by each compressor for itself: its input is long."""
    return zstandard.ZstdCompressionDict(
        dictionary.load(1).as_bytes(), dict_type=zstandard.DICT_TYPE_FULLDICT
    )


@lru_cache(maxsize=32)
def _prepared(level: int, content: bytes) -> zstandard.ZstdCompressionDict:
    """A template prepared for compressing, shared by all contexts: its tables are the large part."""
    words = _raw_dictionary(content)
    words.precompute_compress(compression_params=_parameters(level, words, _source_size(content)))
    return words


def _source_size(content: bytes) -> int:
    """For what length of input a template is prepared: it decides how large its tables are."""
    return 512 if len(content) < _SHORT_TEMPLATE else _DICTIONARY_LIMIT


def _raw_dictionary(content: bytes) -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(content, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def _compressor(
    level: int, words: zstandard.ZstdCompressionDict | None, source_size: int
) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(
        compression_params=_parameters(level, words, source_size), dict_data=words
    )


def _parameters(
    level: int, words: zstandard.ZstdCompressionDict | None, source_size: int
) -> zstandard.ZstdCompressionParameters:
    return zstandard.ZstdCompressionParameters.from_level(
        level,
        source_size=source_size,
        dict_size=0 if words is None else len(words),
        format=zstandard.FORMAT_ZSTD1_MAGICLESS,
        write_content_size=False,
        write_checksum=False,
        write_dict_id=False,
    )


def _decompressor(words: zstandard.ZstdCompressionDict | None) -> zstandard.ZstdDecompressor:
    return zstandard.ZstdDecompressor(dict_data=words, format=zstandard.FORMAT_ZSTD1_MAGICLESS)
