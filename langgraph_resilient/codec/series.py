"""Series of references as runs: a thousand consecutive ones take a few bytes.

Each run is a varint of ``zigzag(gap to the end of the run before) * 2 + (longer than one)``, and
for longer ones a varint of ``length - 2``. Knows integers and bytes only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from langgraph_resilient.codec.frame import write_varint


class Series:
    """Packs a list of references that mostly grows at its end; only what is new costs."""

    __slots__ = ("_base", "_closed", "_count", "_expected", "_length", "_start")

    def __init__(self) -> None:
        self._restart(0)

    def _restart(self, base: int) -> None:
        self._base = base
        self._closed = bytearray()
        self._count = 0
        self._expected = base
        self._start = 0
        self._length = 0

    def pack(self, references: Sequence[int], base: int) -> bytes:
        """The packed form of `references`, which begin with those of the last call."""
        if base != self._base or self._count > len(references):
            self._restart(base)
        for position in range(self._count, len(references)):
            self._add(references[position])
        self._count = len(references)
        out = bytearray(self._closed)
        if self._length:
            write_run(out, self._start - self._expected, self._length)
        return bytes(out)

    def _add(self, reference: int) -> None:
        if self._length and reference == self._start + self._length:
            self._length += 1
            return
        if self._length:
            write_run(self._closed, self._start - self._expected, self._length)
            self._expected = self._start + self._length
        self._start, self._length = reference, 1


def pack_series(references: Iterable[int], base: int) -> bytes:
    """References as runs, in one go."""
    return Series().pack(list(references), base)


def write_run(out: bytearray, gap: int, length: int) -> None:
    """Append one run."""
    write_varint(out, zigzag(gap) << 1 | (length > 1))
    if length > 1:
        write_varint(out, length - 2)


def zigzag(number: int) -> int:
    """A signed number as an unsigned one, small ones staying small."""
    return number << 1 if number >= 0 else (-number << 1) - 1


def unzigzag(number: int) -> int:
    """The signed number again."""
    return -((number + 1) >> 1) if number & 1 else number >> 1
