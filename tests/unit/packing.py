"""A thread's contents in memory, for tests of the walker without a database."""

from __future__ import annotations

from typing import Any

from langgraph_resilient.codec.memo import Memo
from langgraph_resilient.codec.msgpack import Packer, Unpacker
from langgraph_resilient.codec.packed import pack
from langgraph_resilient.codec.types import TypePolicy
from langgraph_resilient.errors import DataCorrupt

KEY = b"k" * 32


class Contents:
    """Stores contents once and gives out references, as a draft does."""

    def __init__(self, base: int = 5 << 24):
        self.base = base
        self.stored: list[tuple[bytes, bool]] = []

    def __call__(self, raw: bytes, references: bool) -> int:
        if (raw, references) not in self.stored:
            self.stored.append((raw, references))
        return self.base + 1 + self.stored.index((raw, references))

    def raw(self, reference: int) -> bytes:
        at = reference - self.base - 1
        if not 0 <= at < len(self.stored):
            raise DataCorrupt(f"blob {reference} is missing")
        return self.stored[at][0]

    @property
    def size(self) -> int:
        return sum(len(raw) for raw, _ in self.stored)


class Bench:
    """Packs and unpacks values of one thread."""

    def __init__(self, base: int = 5 << 24, **options: Any):
        self.contents = Contents(base)
        self.memo = Memo()
        self.noted: list[tuple[list[Any], list[int]]] = []
        self._options = {
            "leaf_bytes": 1024,
            "message_leaf_bytes": 8192,
            "max_depth": 128,
            "secret_key": KEY,
            **options,
        }

    def packer(self) -> Packer:
        return Packer(self.contents, self.memo, **self._options)

    def channel(self, value: Any, name: str = "x", ns: int = 1) -> bytes:
        return pack(self.packer().channel(ns, name, value))

    def write(self, value: Any, name: str = "x") -> bytes:
        return pack(self.packer().write(name, value))

    def unpack(self, raw: bytes) -> Any:
        unpacker = Unpacker(
            self.fetch,
            self.contents.base,
            TypePolicy(),
            KEY,
            lambda kind, data: (kind, data),
            lambda values, references: self.noted.append((values, references)),
        )
        return unpacker.unpack(raw)

    def fetch(self, references: list[int]) -> list[Any]:
        return [self.unpack(self.contents.raw(reference)) for reference in references]

    def there_and_back(self, value: Any) -> Any:
        return self.unpack(self.channel(value))
