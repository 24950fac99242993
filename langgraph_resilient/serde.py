"""The serializer that stands in ``saver.serde`` when the user gave none.

The saver does not use it for storing: it takes values apart itself. It serves tools that reach
for ``saver.serde`` and carries the types that strict mode allows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_resilient.codec.memo import Memo
from langgraph_resilient.codec.msgpack import Packer, Unpacker
from langgraph_resilient.codec.packed import pack
from langgraph_resilient.codec.types import TypePolicy
from langgraph_resilient.errors import DataCorrupt

KIND = "resilient"
_KEY = b"langgraph-resilient serde, no secret"


class _Inline:
    base = 0

    def __call__(self, raw: bytes, references: bool) -> int:
        raise AssertionError("an inline value has no blobs")


class ResilientSerde(SerializerProtocol):
    """MessagePack with faithful types, whole values inline.

    Args:
        policy: which classes may be restored.
    """

    def __init__(self, policy: TypePolicy | None = None):
        self.policy = policy or TypePolicy()

    def with_allowlist(self, extra: Iterable[tuple[str, ...] | type]) -> ResilientSerde:
        """A serializer that strict mode lets restore more types; itself when nothing changes."""
        if not self.policy.strict:
            return self
        pairs = {
            (item.__module__, item.__qualname__) if isinstance(item, type) else (item[0], item[1])
            for item in extra
        }
        allowed = self.policy.allowed | pairs
        if allowed == self.policy.allowed:
            return self
        return ResilientSerde(replace(self.policy, allowed=frozenset(allowed)))

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Kind and bytes of an object.

        Raises:
            ValueRefused: it cannot be stored so that it comes back equal.
        """
        return KIND, pack(_Whole().write("value", obj))

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """The object again; also reads what LangGraph's own serializer made."""
        kind, body = data
        if kind != KIND:
            return JsonPlusSerializer().loads_typed(data)
        return Unpacker(_no_blobs, 0, self.policy, _KEY, _no_opaque, lambda *_: None).unpack(body)


class _Whole(Packer):
    """Packs everything inline, messages and long strings included."""

    def __init__(self) -> None:
        limit = 1 << 62
        super().__init__(
            _Inline(),
            Memo(),
            leaf_bytes=limit,
            message_leaf_bytes=limit,
            max_depth=128,
            secret_key=_KEY,
            inline=True,
        )


def _no_blobs(references: list[int]) -> list[Any]:
    raise DataCorrupt(f"an inline value names blobs {references[:3]}")


def _no_opaque(kind: str, data: bytes) -> Any:
    raise DataCorrupt(f"an inline value holds {len(data)} bytes of another serializer ({kind})")
