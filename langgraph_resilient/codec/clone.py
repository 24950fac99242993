"""Independent copies of decoded values, much faster than decoding again.

Reading a history decodes each distinct message once and hands out a copy per checkpoint. A value
is looked at once, by `freeze`, which gives a function that makes copies of it.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from langchain_core.messages import BaseMessage

from langgraph_resilient.codec.naming import TypePolicy, Unsupported
from langgraph_resilient.codec.registry import reduce, restore
from langgraph_resilient.codec.types_models import set_dict, set_extra, set_fields_set, set_private

Thaw = Callable[[], Any]
V = TypeVar("V")

_IMMUTABLE: frozenset[type] = frozenset(
    {type(None), bool, int, float, complex, str, bytes, range, Decimal, UUID}
    | {date, datetime, time, timedelta, type(Ellipsis)}
)
# Cannot change either; kinds with many classes.
_SHARED = (Enum, type, tzinfo, PurePath, re.Pattern, Fraction)
# What was restored once may be restored again: strict mode has had its say.
_POLICY = TypePolicy()

_new = object.__new__


def freeze(value: Any) -> Thaw | None:
    """A function that gives a new, independent copy of the value each time it is called.

    ``None`` if the value cannot change, so that it may be shared. The value itself belongs to the
    function from now on and must not be changed.
    """
    kind = type(value)
    if kind in _IMMUTABLE:
        return None
    if kind is dict:
        return _freeze_dict(value)
    if kind is list:
        return _freeze_list(value)
    if kind is tuple or kind is frozenset:
        if all(freeze(item) is None for item in value):
            return None
    elif isinstance(value, _SHARED):
        return None
    elif isinstance(value, BaseMessage):
        prototype = message_prototype(value)
        return lambda: clone_message(prototype)
    return _freeze_object(value)


def _freeze_object(value: Any) -> Thaw:
    """Copies as storing and reading would: no constructor or ``__deepcopy__`` of a user's runs."""
    try:
        code, payload = reduce(value)
        state = freeze(payload)
    except Unsupported:
        return lambda: copy.deepcopy(value)
    if state is None:
        return lambda: restore(code, payload, _POLICY)
    return lambda: restore(code, state(), _POLICY)


def _freeze_dict(value: dict[Any, Any]) -> Thaw:
    if not value:
        return dict
    inner = [(key, thaw) for key, item in value.items() if (thaw := freeze(item)) is not None]
    if not inner:
        return value.copy
    if len(inner) == 1:
        (only, thaw_only) = inner[0]

        def thaw_one() -> dict[Any, Any]:
            fresh = value.copy()
            fresh[only] = thaw_only()
            return fresh

        return thaw_one

    def thaw_dict() -> dict[Any, Any]:
        fresh = value.copy()
        for key, thaw in inner:
            fresh[key] = thaw()
        return fresh

    return thaw_dict


def _freeze_list(value: list[Any]) -> Thaw:
    if not value:
        return list
    inner = [(place, thaw) for place, item in enumerate(value) if (thaw := freeze(item))]
    if not inner:
        return value.copy
    if len(inner) == len(value):
        thaws = [thaw for _, thaw in inner]
        return lambda: [thaw() for thaw in thaws]

    def thaw_list() -> list[Any]:
        fresh = value.copy()
        for place, thaw in inner:
            fresh[place] = thaw()
        return fresh

    return thaw_list


class MessagePrototype(NamedTuple):
    """A message taken apart so that `clone_message` can make many independent ones of it."""

    cls: type[BaseMessage]
    fields: dict[str, Any]
    fields_set: set[str]
    thaws: tuple[tuple[str, Thaw], ...]
    thaw_extra: Thaw | None
    thaw_private: Thaw | None
    plain: bool


def message_prototype(message: BaseMessage) -> MessagePrototype:
    """Takes a message apart. It belongs to the prototype from now on and must not be changed."""
    fields: dict[str, Any] = message.__dict__
    extra, private = message.__pydantic_extra__, message.__pydantic_private__
    thaws = tuple((k, thaw) for k, v in fields.items() if (thaw := freeze(v)) is not None)
    names = message.__pydantic_fields_set__
    return MessagePrototype(
        type(message),
        fields,
        _shared(frozenset(names), names),
        _shared(thaws, thaws) if all(thaw in _EMPTIES for _, thaw in thaws) else thaws,
        freeze(extra),
        freeze(private),
        extra == {} and private is None,
    )


_same: dict[Any, Any] = {}
_MAX_SAME = 4096
_EMPTIES = (dict, list)


def _shared(key: Any, value: V) -> V:
    """One object for all equal ones: thousands of prototypes differ in their texts only."""
    found: V | None = _same.get(key)
    if found is None:
        found = value
        if len(_same) < _MAX_SAME:
            _same[key] = value
    return found


def clone_message(prototype: MessagePrototype) -> Any:
    """A new message, equal to the one the prototype was made of, that shares nothing mutable."""
    cls, fields, fields_set, thaws, thaw_extra, thaw_private, plain = prototype
    values = fields.copy()
    for name, thaw in thaws:
        values[name] = thaw()
    message = _new(cls)
    set_dict(message, values)
    set_fields_set(message, fields_set.copy())
    if plain:
        set_extra(message, {})
        set_private(message, None)
    else:
        set_extra(message, None if thaw_extra is None else thaw_extra())
        set_private(message, None if thaw_private is None else thaw_private())
    return message
