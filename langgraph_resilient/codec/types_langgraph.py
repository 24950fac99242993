"""LangGraph's own objects: Send, Command, Interrupt, Overwrite, delta snapshots, store items.

Each is stored by its known parts in order, and what a later LangGraph adds by name behind them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.store.base import Item
from langgraph.types import Command, Interrupt, Overwrite, Send

from langgraph_resilient.codec.naming import TypePolicy, class_ref
from langgraph_resilient.codec.registry import Code, Reduced, Reducer, reduces, restores
from langgraph_resilient.codec.state import slot_names, state_reader, write_state
from langgraph_resilient.codec.types_classes import expect


def _register(code: Code, cls: type, known: tuple[str, ...], defaults: dict[str, Any]) -> None:
    """Registers a class stored as ``[known parts..., {other parts that have no default}]``."""
    count = len(known)
    # Command and Interrupt may be generic, which sets __orig_class__ where there is a __dict__.
    read: Callable[[Any], dict[str, Any]] = state_reader(cls)

    def reduce_parts(obj: Any) -> Reduced:
        state = read(obj)
        parts = [state.pop(name) for name in known]
        other = {k: v for k, v in state.items() if k not in defaults or not _is(v, defaults[k])}
        if other:
            parts.append(other)
        return code, parts

    def restore_parts(payload: Any, policy: TypePolicy) -> Any:
        obj: Any = object.__new__(cls)
        state = dict(zip(known, payload, strict=False))
        state.update(defaults)
        if len(payload) > count:
            state.update(payload[count])
        for name, value in state.items():
            object.__setattr__(obj, name, value)
        return obj

    reduces(cls)(reduce_parts)
    restores(code)(restore_parts)


def _is(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) is str and value == default)


def _field_defaults(cls: Any, known: tuple[str, ...]) -> dict[str, Any]:
    """Defaults of a dataclass's other fields. These are stable: they mean "not given"."""
    return {
        field.name: field.default
        for field in dataclasses.fields(cls)
        if field.name not in known and field.default is not dataclasses.MISSING
    }


_register(
    Code.SEND,
    Send,
    ("node", "arg"),
    dict.fromkeys(name for name in slot_names(Send) if name not in ("node", "arg")),
)
_register(Code.COMMAND, Command, (), _field_defaults(Command, ()))
_register(Code.INTERRUPT, Interrupt, ("value", "id"), _field_defaults(Interrupt, ("value", "id")))
_register(Code.OVERWRITE, Overwrite, ("value",), _field_defaults(Overwrite, ("value",)))


@reduces(_DeltaSnapshot)
def _reduce_delta_snapshot(obj: _DeltaSnapshot) -> Reduced:
    return Code.DELTA_SNAPSHOT, list(obj)


@restores(Code.DELTA_SNAPSHOT)
def _restore_delta_snapshot(payload: Any, policy: TypePolicy) -> _DeltaSnapshot:
    return _DeltaSnapshot(*payload)


def slotted_family(cls: type) -> Reducer | None:
    """Store items, and subclasses of `Send`: ``[class, attributes]``."""
    if not issubclass(cls, (Item, Send)):
        return None
    ref, read = class_ref(cls), state_reader(cls)
    return lambda obj: (Code.SLOTTED, [ref, read(obj)])


@restores(Code.SLOTTED)
def _restore_slotted(payload: Any, policy: TypePolicy) -> Any:
    ref, state = payload
    found = policy.resolve_ref(ref)
    cls = expect(found, issubclass(found, (Item, Send)), "langgraph object", ref)
    obj = object.__new__(cls)
    write_state(obj, state)
    return obj
