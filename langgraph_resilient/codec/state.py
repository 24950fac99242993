"""Attributes of instances, read and written past whatever a class overrides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import Any

from langgraph_resilient.codec.naming import Unresolved, Unsupported, type_expr, type_name


@lru_cache(maxsize=4096)
def slot_names(cls: type) -> tuple[str, ...]:
    """Attribute names that live in slots of a class and its bases, base first."""
    names: dict[str, None] = {}
    for base in reversed(cls.__mro__):
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name in ("__dict__", "__weakref__"):
                continue
            if name.startswith("__") and not name.endswith("__"):
                name = f"_{base.__name__.lstrip('_')}{name}"
            names[name] = None
    return tuple(names)


def cached_names(cls: type) -> frozenset[str]:
    """Names of ``functools.cached_property``: their values are computed again, not stored."""
    return frozenset(
        name
        for base in cls.__mro__
        for name, attribute in base.__dict__.items()
        if isinstance(attribute, cached_property)
    )


def state_reader(cls: type) -> Callable[[Any], dict[str, Any]]:
    """A function that gives an object's attributes, from ``__dict__`` and from slots."""
    slots, cached = slot_names(cls), cached_names(cls)
    has_dict = cls.__dictoffset__ != 0
    if has_dict and not slots and not cached:
        return _read_dict

    def read(obj: Any) -> dict[str, Any]:
        state: dict[str, Any] = dict(obj.__dict__) if has_dict else {}
        for name in slots:
            try:
                state[name] = object.__getattribute__(obj, name)
            except AttributeError:
                continue  # a slot that was never assigned stays so
        for name in cached:
            state.pop(name, None)
        return _without_odd_alias(state)

    return read


def _read_dict(obj: Any) -> dict[str, Any]:
    return _without_odd_alias(obj.__dict__.copy())


def _without_odd_alias(state: dict[str, Any]) -> dict[str, Any]:
    """Drops typing's note about how ``Box[T](...)`` was written, if that cannot be stored."""
    if "__orig_class__" in state and not _storable(state["__orig_class__"]):
        del state["__orig_class__"]
    return state


def _storable(expr: Any) -> bool:
    try:
        type_expr(expr)
    except Unsupported:
        return False
    return True


def write_state(obj: Any, state: Mapping[str, Any]) -> None:
    """Sets attributes without running the class's own ``__setattr__``.

    Raises:
        Unresolved: the class has no place for one of them any more.
    """
    cls: type = type(obj)
    slots = slot_names(cls)
    if not slots and cls.__dictoffset__:
        obj.__dict__.update(state)
        return
    for name, value in state.items():
        try:
            object.__setattr__(obj, name, value)
        except AttributeError as error:
            raise Unresolved(type_name(cls), f"it has no attribute {name!r}") from error
