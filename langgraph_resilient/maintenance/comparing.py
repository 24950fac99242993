"""Whether two values are the same to the last detail: types, order of keys, tuples and lists."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from langgraph_resilient.codec.msgpack import children
from langgraph_resilient.codec.naming import type_name
from langgraph_resilient.errors import ResilientError
from langgraph_resilient.serde import ResilientSerde

_DEEPEST = 200


class Comparer:
    """Compares values by what the codec makes of them, else by ``==``."""

    def __init__(self) -> None:
        self._serde = ResilientSerde()

    def same(self, left: Any, right: Any) -> bool:
        """Whether two values are of the same types and equal all through."""
        if _equal(left, right, 0):
            return True
        try:
            return self._serde.dumps_typed(left) == self._serde.dumps_typed(right)
        except (ResilientError, ValueError, TypeError):
            return False

    def difference(self, left: Any, right: Any) -> str:
        """The qualified name of the type where two different values part."""
        return next(self._parting(left, right, 0), type_name(type(left)))

    def _parting(self, left: Any, right: Any, depth: int) -> Iterator[str]:
        if type(left) is type(right) and depth < _DEEPEST:
            ours, theirs = list(children(left)), list(children(right))
            if [step for step, _ in ours] == [step for step, _ in theirs]:
                for (_, one), (_, other) in zip(ours, theirs, strict=True):
                    if not self.same(one, other):
                        yield from self._parting(one, other, depth + 1)
        yield type_name(type(left))


def _equal(left: Any, right: Any, depth: int) -> bool:
    if type(left) is not type(right) or depth > _DEEPEST:
        return False
    if isinstance(left, (list, tuple)) and type(left) in (list, tuple):
        return len(left) == len(right) and all(
            _equal(one, other, depth + 1) for one, other in zip(left, right, strict=True)
        )
    if type(left) is dict:
        return list(left) == list(right) and all(
            _equal(one, right[key], depth + 1) for key, one in left.items()
        )
    if type(left) is float:
        return left == right or (math.isnan(left) and math.isnan(right))
    fields = getattr(left, "__dict__", None)
    if isinstance(fields, dict):
        if not _equal(fields, right.__dict__, depth + 1):
            return False
        if not _compares(type(left)):
            return bool(fields)
    try:
        return bool(left == right)
    except Exception:  # noqa: BLE001 - a foreign __eq__ that fails: nobody can call it equal
        return False


def _compares(cls: type) -> bool:
    """Whether a class says itself what equal means."""
    return any("__eq__" in vars(base) for base in cls.__mro__[:-1])


def as_json(value: Any) -> Any:
    """A value as it is after a way through JSON, lists for tuples and text for keys."""
    if isinstance(value, Mapping):
        return {_key(key): as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    return value


def _key(key: Any) -> Any:
    return key if isinstance(key, str) else str(key)
