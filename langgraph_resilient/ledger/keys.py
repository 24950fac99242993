"""Canonical arguments: equal calls have equal bytes, whatever the order of their keys."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Any

from langgraph_resilient.codec.packed import pack
from langgraph_resilient.errors import ValueRefused
from langgraph_resilient.serde import ResilientSerde

_SCALARS = (str, int, float, bool, bytes, type(None))
_BASES: tuple[Any, ...] = (str, int, float, bytes)
_SEQUENCES = (list, tuple, deque)
_serde = ResilientSerde()


def digest_of(arguments: Any) -> bytes:
    """BLAKE2b-128 of the canonical form of a call's arguments.

    Mappings are sorted by key, tuples count as lists, models and dataclasses as their class and
    fields; ``2`` and ``2.0`` differ, as do ``1`` and ``True``.

    Raises:
        ValueRefused: they hold themselves, or nest without end.
    """
    try:
        tree = canonical(arguments)
    except RecursionError:
        raise _endless() from None
    try:
        packed = pack(tree)
    except ValueError:  # MessagePack's own limit
        raise _endless() from None
    return hashlib.blake2b(packed, digest_size=16).digest()


def _endless() -> ValueRefused:
    return ValueRefused(
        "the arguments of a call hold themselves or nest too deep, so it cannot be told from others"
    )


def canonical(value: Any) -> Any:
    """A tree of plain types that is equal for equal values, and for no others."""
    kind = type(value)
    if kind is int and not -(1 << 63) <= value < 1 << 64:
        return ["int", str(value)]
    if kind in _SCALARS:
        return value
    if kind is list or kind is tuple:
        # Tagged like everything below, or a list could spell what stands for a mapping.
        return ["list", *map(canonical, value)]
    if isinstance(value, Mapping):
        pairs = [[canonical(key), canonical(item)] for key, item in value.items()]
        return ["map", sorted(pairs, key=lambda pair: pack(pair[0]))]
    if isinstance(value, (set, frozenset)):
        return ["set", sorted((canonical(item) for item in value), key=pack)]
    if isinstance(value, Enum):
        return ["enum", kind.__qualname__, value.name]
    for base in _BASES:  # subclasses
        if isinstance(value, base):
            return canonical(base.__new__(base, value))
    if isinstance(value, _SEQUENCES):
        return [kind.__qualname__, *map(canonical, value)]
    return _object(value)


def _object(value: Any) -> Any:
    if isinstance(value, type):
        return ["class", value.__module__, value.__qualname__]
    name = type(value).__qualname__
    if hasattr(value, "model_dump"):
        return [name, canonical(value.model_dump())]
    if dataclasses.is_dataclass(value):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return [name, canonical(fields)]
    try:
        return [name, _serde.dumps_typed(value)[1]]
    except ValueRefused:
        # A connection, say: it cannot be told from another one of its kind by content.
        return [name, "opaque"]
