"""LangChain messages: the hot path.

A message is stored as ``[class, fields, given fields, extra, private]`` without the fields that
have the default of the tables below. The tables are part of the file format: they are only added
to, and what LangChain makes a default later does not change what stored messages mean.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    BaseMessageChunk,
    ChatMessage,
    ChatMessageChunk,
    FunctionMessage,
    FunctionMessageChunk,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    SystemMessageChunk,
    ToolMessage,
    ToolMessageChunk,
)

from langgraph_resilient.codec.naming import TypePolicy, always_allow, class_ref
from langgraph_resilient.codec.registry import Code, Reduced, Reducer, reduces, restores
from langgraph_resilient.codec.types_classes import expect
from langgraph_resilient.codec.types_models import (
    model_family,
    set_dict,
    set_extra,
    set_fields_set,
    set_private,
    trim,
)

# Position = number in the file. Append only.
_CLASSES: tuple[type[BaseMessage], ...] = (
    HumanMessage,
    AIMessage,
    SystemMessage,
    ToolMessage,
    ChatMessage,
    FunctionMessage,
    RemoveMessage,
    HumanMessageChunk,
    AIMessageChunk,
    SystemMessageChunk,
    ToolMessageChunk,
    ChatMessageChunk,
    FunctionMessageChunk,
    BaseMessage,
    BaseMessageChunk,
)

# Bit = number in the file. Append only.
_FIELDS = (
    "content",
    "additional_kwargs",
    "response_metadata",
    "type",
    "name",
    "id",
    "tool_calls",
    "invalid_tool_calls",
    "usage_metadata",
    "tool_call_id",
    "artifact",
    "status",
    "role",
    "tool_call_chunks",
    "chunk_position",
)
_BITS = {name: 1 << position for position, name in enumerate(_FIELDS)}

_NONE_FIELDS = frozenset({"name", "id", "usage_metadata", "artifact", "chunk_position"})
_DICT_FIELDS = frozenset({"additional_kwargs", "response_metadata"})
_LIST_FIELDS = frozenset({"tool_calls", "invalid_tool_calls", "tool_call_chunks"})
_TYPES = {
    HumanMessage: "human",
    AIMessage: "ai",
    SystemMessage: "system",
    ToolMessage: "tool",
    ChatMessage: "chat",
    FunctionMessage: "function",
    RemoveMessage: "remove",
    HumanMessageChunk: "HumanMessageChunk",
    AIMessageChunk: "AIMessageChunk",
    SystemMessageChunk: "SystemMessageChunk",
    ToolMessageChunk: "ToolMessageChunk",
    ChatMessageChunk: "ChatMessageChunk",
    FunctionMessageChunk: "FunctionMessageChunk",
}


class _NoDefault:
    """Stands where a field has no default; no value is it, and no value has it as class."""


class Spec(NamedTuple):
    """What is known about one message class: made once."""

    cls: type[BaseMessage]
    key: Any
    size: int
    names: tuple[str, ...]
    default: dict[str, Any]
    empty: dict[str, type]
    texts: tuple[tuple[str, str], ...]
    template: dict[str, Any]
    factories: tuple[tuple[str, type], ...]


def _spec(cls: type[BaseMessage], key: Any) -> Spec:
    names = tuple(cls.model_fields)
    texts = {"status": "success"} if "status" in names else {}
    if cls in _TYPES:
        texts["type"] = _TYPES[cls]
    default: dict[str, Any] = dict.fromkeys(names, _NoDefault)
    empty: dict[str, type] = dict.fromkeys(names, _NoDefault)
    for name in names:
        if name in _NONE_FIELDS:
            default[name] = None
        elif name in _DICT_FIELDS or name in _LIST_FIELDS:
            empty[name] = dict if name in _DICT_FIELDS else list
        elif name in texts:
            # The class's own string object, so that the test by identity nearly always hits.
            own = cls.model_fields[name].default
            default[name] = texts[name] = own if own == texts[name] else texts[name]
    template = {name: None if value is _NoDefault else value for name, value in default.items()}
    factories = {name: made for name, made in empty.items() if made is not _NoDefault}
    for name in set(names) - _BITS.keys():  # newer than this release: absent in what it wrote
        field = cls.model_fields[name]
        if field.default_factory is not None:
            factories[name] = field.default_factory  # type: ignore[assignment]
        elif not field.is_required():
            template[name] = field.default
    return Spec(
        cls,
        key,
        len(names),
        names,
        default,
        empty,
        tuple(texts.items()),
        template,
        (*factories.items(),),
    )


# --- the set of given fields, as a bit mask -------------------------------------------------

_masks: dict[frozenset[str], Any] = {}
_sets: dict[int, set[str]] = {}
_MAX_SETS = 4096


def pack_names(names: set[str]) -> Any:
    """Field names as a bit mask, or ``[mask, other names...]``."""
    frozen = frozenset(names)
    packed = _masks.get(frozen)
    if packed is None:
        other = sorted(frozen - _BITS.keys())
        mask = sum(bit for name, bit in _BITS.items() if name in frozen)
        packed = [mask, *other] if other else mask
        if len(_masks) < _MAX_SETS:
            _masks[frozen] = packed
    return packed


def unpack_names(packed: Any) -> set[str]:
    """The way back, always a new set."""
    if type(packed) is list:
        return {*unpack_names(packed[0]), *packed[1:]}
    names = _sets.get(packed)
    if names is None:
        names = {name for name, bit in _BITS.items() if packed & bit}
        if len(_sets) < _MAX_SETS:
            _sets[packed] = names
    return names.copy()


# --- reduce ---------------------------------------------------------------------------------


def _reducer(spec: Spec) -> Reducer:
    default, empty, size, key, texts = spec.default, spec.empty, spec.size, spec.key, spec.texts
    general: Reducer | None = None

    def reduce_message(obj: Any) -> Reduced:
        values = obj.__dict__
        try:
            fields = {
                name: value
                for name, value in values.items()
                if value is not default[name] and (type(value) is not empty[name] or value)
            }
        except KeyError:
            return slow(obj)
        if len(values) != size:
            return slow(obj)
        for name, text in texts:
            value = fields.get(name)
            if value == text and type(value) is str:
                del fields[name]
        extra, private = obj.__pydantic_extra__, obj.__pydantic_private__
        names = pack_names(obj.__pydantic_fields_set__)
        if private is None and extra is not None and not extra:
            return Code.MESSAGE, [key, fields, names]
        return Code.MESSAGE, trim([key, fields, names, [extra], private], 4)

    def slow(obj: Any) -> Reduced:
        """A message with missing or undeclared attributes is stored as any model is."""
        nonlocal general
        if general is None:
            general = model_family(spec.cls)
            assert general is not None
        return general(obj)

    return reduce_message


def message_family(cls: type) -> Reducer | None:
    """Message classes that are not in the table, stored by name."""
    if not issubclass(cls, BaseMessage):
        return None
    # Slots and generic classes are a matter for the general model code.
    if "[" in cls.__qualname__:
        return None
    return _reducer(_spec(cls, class_ref(cls)))


# --- restore --------------------------------------------------------------------------------

_SPECS: list[Spec] = [_spec(cls, number) for number, cls in enumerate(_CLASSES)]
for _known in _SPECS:
    reduces(_known.cls)(_reducer(_known))
    always_allow(_known.cls.__module__, _known.cls.__qualname__)

_foreign: dict[type, Spec] = {}
_new = object.__new__


@restores(Code.MESSAGE)
def _restore_message(payload: Any, policy: TypePolicy) -> Any:
    key, fields = payload[0], payload[1]
    spec = _SPECS[key] if type(key) is int else _foreign_spec(key, policy)
    values = spec.template.copy()
    values.update(fields)
    for name, made in spec.factories:
        if name not in fields:
            values[name] = made()
    message = _new(spec.cls)
    set_dict(message, values)
    set_fields_set(message, unpack_names(payload[2]))
    if len(payload) == 3:
        set_extra(message, {})
        set_private(message, None)
    else:
        set_extra(message, payload[3][0])
        set_private(message, payload[4] if len(payload) > 4 else None)
    return message


def _foreign_spec(ref: str, policy: TypePolicy) -> Spec:
    found = policy.resolve_ref(ref)
    cls = expect(found, issubclass(found, BaseMessage), "message", ref)
    spec = _foreign.get(cls)
    if spec is None:
        if len(_foreign) >= _MAX_SETS:
            _foreign.clear()
        spec = _foreign[cls] = _spec(cls, ref)
    return spec
