"""Canonical arguments: equal calls have equal bytes, whatever the order of their keys."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from enum import Enum
from typing import Any

from langgraph_resilient.codec.packed import pack
from langgraph_resilient.errors import ValueRefused
from langgraph_resilient.serde import ResilientSerde

_SCALARS = (str, int, float, bool, bytes, type(None))
_BASES: tuple[Any, ...] = (str, int, float, bytes)
_serde = ResilientSerde()


def digest_of(arguments: Any) -> bytes:
    """BLAKE2b-128 of the canonical form of a call's arguments.

    Mappings are sorted by key, tuples count as lists, models and dataclasses as their class and
    fields; ``2`` and ``2.0`` differ, as do ``1`` and ``True``.
    """
    return hashlib.blake2b(pack(_canonical(arguments)), digest_size=16).digest()


def _canonical(value: Any) -> Any:
    kind = type(value)
    if kind is int and not -(1 << 63) <= value < 1 << 64:
        return ["int", str(value)]
    if kind in _SCALARS:
        return value
    if kind is list or kind is tuple:
        return [_canonical(item) for item in value]
    if isinstance(value, Mapping):
        pairs = [[_canonical(key), _canonical(item)] for key, item in value.items()]
        return ["map", sorted(pairs, key=lambda pair: pack(pair[0]))]
    if isinstance(value, (set, frozenset)):
        return ["set", sorted((_canonical(item) for item in value), key=pack)]
    if isinstance(value, Enum):
        return ["enum", kind.__qualname__, value.name]
    for base in _BASES:  # subclasses
        if isinstance(value, base):
            return _canonical(base.__new__(base, value))
    return _object(value)


def _object(value: Any) -> Any:
    name = type(value).__qualname__
    if hasattr(value, "model_dump"):
        return [name, _canonical(value.model_dump())]
    if dataclasses.is_dataclass(value):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return [name, _canonical(fields)]
    try:
        return [name, _serde.dumps_typed(value)[1]]
    except ValueRefused:
        # A connection, say: it cannot be told from another one of its kind by content.
        return [name, "opaque"]
