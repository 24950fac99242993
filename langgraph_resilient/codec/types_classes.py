"""Objects of classes that users write: enums, named tuples, dataclasses, subclasses of builtins.

An object is stored as the name of its class and its state, and is put together again by setting
that state: neither ``__init__`` nor ``__post_init__`` nor a user's ``__new__`` runs.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from typing import Any

from langgraph_resilient.codec.naming import (
    TypePolicy,
    Unresolved,
    Unsupported,
    class_ref,
    expr_name,
    type_expr,
    type_name,
)
from langgraph_resilient.codec.registry import Code, Reduced, Reducer, Unrestored, reduces, restores
from langgraph_resilient.codec.state import state_reader, write_state
from langgraph_resilient.codec.types_std import datetime_parts, factory_of, factory_ref, in_order

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement, so all its state is visible


def expect(cls: Any, is_kind: bool, kind: str, expr: Any) -> Any:
    """The class, if it still is what it was when the object was stored.

    Raises:
        Unresolved: the name leads to something else now.
    """
    if not is_kind:
        raise Unresolved(expr_name(expr), f"it is no {kind} any more")
    return cls


@reduces(Unrestored)
def _reduce_unrestored(obj: Unrestored) -> Reduced:
    return obj._code, obj._payload


# --- enums ----------------------------------------------------------------------------------


def enum_family(cls: type) -> Reducer | None:
    """Enum members are stored by name, and by value too where that is a plain one."""
    if not issubclass(cls, Enum):
        return None
    ref, flag = class_ref(cls), issubclass(cls, Flag)

    def reduce_member(obj: Any) -> Reduced:
        name = obj._name_
        if flag and (name is None or name not in cls.__members__):
            return Code.FLAG, [ref, obj._value_]
        value = obj._value_
        return Code.ENUM, [ref, name, value] if type(value) in (str, int) else [ref, name]

    return reduce_member


@restores(Code.ENUM)
def _restore_enum(payload: Any, policy: TypePolicy) -> Any:
    ref, name = payload[0], payload[1]
    found = policy.resolve_ref(ref)
    cls = expect(found, issubclass(found, Enum), "enum", ref)
    member = cls.__members__.get(name)
    if member is None and len(payload) > 2:  # the member was renamed and kept its value
        member = cls._value2member_map_.get(payload[2])
    if member is None:
        raise Unresolved(expr_name(ref), f"it has no member {name!r}")
    return member


@restores(Code.FLAG)
def _restore_flag(payload: Any, policy: TypePolicy) -> Any:
    ref, value = payload
    found = policy.resolve_ref(ref)
    cls = expect(found, issubclass(found, Flag), "flag", ref)
    try:
        return cls(value)
    except ValueError as error:
        raise Unresolved(expr_name(ref), f"it rejects {value!r}") from error


# --- named tuples ---------------------------------------------------------------------------


def namedtuple_family(cls: type) -> Reducer | None:
    """Named tuples are stored by field name, so that fields may be added or moved."""
    fields = getattr(cls, "_fields", None)
    if not issubclass(cls, tuple) or not isinstance(fields, tuple):
        return None
    ref, read = class_ref(cls), state_reader(cls)

    def reduce_namedtuple(obj: Any) -> Reduced:
        if tuple.__len__(obj) != len(fields):
            raise Unsupported(f"{type_name(cls)} has not as many values as fields", type_name(cls))
        payload = [ref, dict(zip(fields, tuple.__iter__(obj), strict=True))]
        state = read(obj)
        return Code.NAMEDTUPLE, [*payload, state] if state else payload

    return reduce_namedtuple


@restores(Code.NAMEDTUPLE)
def _restore_namedtuple(payload: Any, policy: TypePolicy) -> Any:
    ref, values = payload[0], payload[1]
    found: Any = policy.resolve_ref(ref)
    names: Any = getattr(found, "_fields", None)
    cls = expect(found, isinstance(names, tuple) and issubclass(found, tuple), "named tuple", ref)
    if tuple(values) != names:
        values = {**cls._field_defaults, **values}
        if values.keys() != set(names):
            raise Unresolved(expr_name(ref), f"its fields are {names}, stored are {[*payload[1]]}")
    obj = tuple.__new__(cls, [values[name] for name in names])
    if len(payload) > 2:
        write_state(obj, payload[2])
    return obj


# --- subclasses of builtins -----------------------------------------------------------------


def _new_list(cls: Any, value: Any) -> Any:
    obj = list.__new__(cls)
    list.extend(obj, value)
    return obj


def _new_dict(cls: Any, value: Any) -> Any:
    obj = dict.__new__(cls)
    dict.update(obj, value)
    return obj


def _new_set(cls: Any, value: Any) -> Any:
    obj = set.__new__(cls)
    set.update(obj, value)
    return obj


def _new_ordered(cls: Any, value: Any) -> Any:
    obj = OrderedDict.__new__(cls)
    for key, item in value.items():
        OrderedDict.__setitem__(obj, key, item)
    return obj


def _new_defaultdict(cls: Any, value: Any) -> Any:
    obj = defaultdict.__new__(cls)
    defaultdict.__init__(obj, factory_of(value[0]), value[1])
    return obj


def _new_deque(cls: Any, value: Any) -> Any:
    obj = deque.__new__(cls)
    deque.__init__(obj, value[0], value[1])
    return obj


def _new_bytearray(cls: Any, value: Any) -> Any:
    obj = bytearray.__new__(cls)
    bytearray.__init__(obj, value)
    return obj


@dataclasses.dataclass(frozen=True)
class _Base:
    """How to look at an instance as its builtin base, past whatever the subclass overrides."""

    cls: type
    take: Callable[[Any], Any]
    make: Callable[[Any, Any], Any]


def _by_new(base: Any) -> Callable[[Any, Any], Any]:
    return lambda cls, value: base.__new__(cls, value)


# The more special one first: bool and datetime are subclasses too.
_BASES: dict[str, _Base] = {
    base.cls.__name__: base
    for base in (
        _Base(str, str.__str__, _by_new(str)),
        _Base(int, int.__int__, _by_new(int)),
        _Base(float, float.__float__, _by_new(float)),
        _Base(complex, lambda obj: [obj.real, obj.imag], lambda cls, v: complex.__new__(cls, *v)),
        _Base(bytes, lambda obj: bytes.__getitem__(obj, slice(None)), _by_new(bytes)),
        _Base(bytearray, lambda obj: b"".join([obj]), _new_bytearray),
        _Base(list, lambda obj: [*list.__iter__(obj)], _new_list),
        _Base(tuple, lambda obj: [*tuple.__iter__(obj)], _by_new(tuple)),
        _Base(set, lambda obj: in_order(set.__iter__(obj)), _new_set),
        _Base(frozenset, lambda obj: in_order(frozenset.__iter__(obj)), _by_new(frozenset)),
        _Base(
            defaultdict,
            lambda obj: [factory_ref(obj.default_factory), dict(dict.items(obj))],
            _new_defaultdict,
        ),
        _Base(OrderedDict, lambda obj: dict(OrderedDict.items(obj)), _new_ordered),
        _Base(dict, lambda obj: dict(dict.items(obj)), _new_dict),
        _Base(deque, lambda obj: [[*deque.__iter__(obj)], obj.maxlen], _new_deque),
        _Base(
            datetime,
            datetime_parts,
            lambda cls, v: datetime.__new__(cls, *v[:8], fold=v[8]),
        ),
        _Base(date, lambda o: [o.year, o.month, o.day], lambda cls, v: date.__new__(cls, *v)),
        _Base(
            time,
            lambda o: [o.hour, o.minute, o.second, o.microsecond, o.tzinfo, o.fold],
            lambda cls, v: time.__new__(cls, *v[:5], fold=v[5]),
        ),
        _Base(
            timedelta,
            lambda o: [o.days, o.seconds, o.microseconds],
            lambda cls, v: timedelta.__new__(cls, *v),
        ),
        _Base(Decimal, Decimal.__str__, _by_new(Decimal)),
    )
}


def subclass_family(cls: type) -> Reducer | None:
    """Subclasses of builtins are stored as the builtin value plus the instance's attributes."""
    base = next((base for base in _BASES.values() if issubclass(cls, base.cls)), None)
    if base is None:
        return None
    for between in cls.__mro__[: cls.__mro__.index(base.cls)]:
        if not between.__flags__ & _HEAP_TYPE:
            name = type_name(cls)
            raise Unsupported(f"{name} keeps state of its own in C, which cannot be stored", name)
    ref, read, take = class_ref(cls), state_reader(cls), base.take
    base_name = base.cls.__name__

    def reduce_subclass(obj: Any) -> Reduced:
        payload = [ref, take(obj), base_name]
        state = read(obj)
        return Code.SUBCLASS, [*payload, state] if state else payload

    return reduce_subclass


@restores(Code.SUBCLASS)
def _restore_subclass(payload: Any, policy: TypePolicy) -> Any:
    ref, value, base_name = payload[:3]
    base = _BASES[base_name]
    found = policy.resolve_ref(ref)
    cls = expect(found, issubclass(found, base.cls), f"subclass of {base_name}", ref)
    try:
        obj = base.make(cls, value)
    except TypeError as error:  # object.__new__(X) is not safe: another C class stands between
        raise Unresolved(expr_name(ref), str(error)) from error
    if len(payload) > 3:
        write_state(obj, payload[3])
    return obj


# --- dataclasses ----------------------------------------------------------------------------


def _is_declared(cls: type) -> bool:
    """Whether a class says what its fields are: a dataclass, or one made by attrs."""
    return dataclasses.is_dataclass(cls) or hasattr(cls, "__attrs_attrs__")


def dataclass_family(cls: type) -> Reducer | None:
    """Dataclasses are stored with all attributes, those that are no fields too."""
    if not _is_declared(cls):
        return None
    name = type_name(cls)
    if object.__new__ is not _native_new(cls):
        raise Unsupported(f"{name} keeps state of its own in C, which cannot be stored", name)
    ref, read = class_ref(cls), state_reader(cls)
    return lambda obj: (Code.DATACLASS, [ref, read(obj)])


def _native_new(cls: type) -> Any:
    """``__new__`` of the nearest base that was not made by a class statement."""
    return next(base for base in cls.__mro__ if not base.__flags__ & _HEAP_TYPE).__new__


@restores(Code.DATACLASS)
def _restore_dataclass(payload: Any, policy: TypePolicy) -> Any:
    ref, state = payload
    found = policy.resolve_ref(ref)
    cls = expect(found, _is_declared(found), "dataclass", ref)
    expect(cls, object.__new__ is _native_new(cls), "plain dataclass", ref)
    obj = object.__new__(cls)
    write_state(obj, state)
    for field in getattr(cls, "__dataclass_fields__", {}).values():
        if field.name not in state:
            _fill(obj, field)
    return obj


def _fill(obj: Any, field: dataclasses.Field[Any]) -> None:
    """Gives a field its default that the class did not have yet when the object was stored."""
    if field._field_type is not dataclasses._FIELD or not field.init:  # type: ignore[attr-defined]
        return
    if field.default is not dataclasses.MISSING:
        object.__setattr__(obj, field.name, field.default)
    elif field.default_factory is not dataclasses.MISSING:
        object.__setattr__(obj, field.name, field.default_factory())


# --- classes and typing expressions -----------------------------------------------------------

_ALIASES: tuple[Any, ...] = (
    types.GenericAlias,
    type(typing.List[int]),  # noqa: UP006 -- typing's own private alias classes
    type(typing.Literal[1]),
    type(typing.Union[int, str]),  # noqa: UP007
    type(int | str),
    type(typing.Any),  # a class since 3.11, a special form before
)


def type_family(cls: type) -> Reducer | None:
    """Classes themselves, and parametrised ones, are stored as references."""
    if issubclass(cls, type) or issubclass(cls, _ALIASES):
        return lambda obj: (Code.TYPE, [type_expr(obj)])
    return None


@restores(Code.TYPE)
def _restore_type(payload: Any, policy: TypePolicy) -> Any:
    return policy.resolve_expr(payload[0])


# --- what cannot be stored --------------------------------------------------------------------

_ADVICE: tuple[tuple[str, str], ...] = (
    ("builtins.function", "store its name and look the function up when it is needed"),
    ("builtins.method", "store its name and look the method up when it is needed"),
    ("builtins.builtin_function", "store its name and look the function up when it is needed"),
    ("functools.partial", "store its arguments and make the partial when it is needed"),
    ("builtins.module", "store its name"),
    ("builtins.generator", "store list(...) of it"),
    ("builtins.async_generator", "collect its items into a list first"),
    ("builtins.coroutine", "await it and store the result"),
    ("asyncio", "await it and store the result"),
    ("_asyncio", "await it and store the result"),
    ("concurrent.futures", "store its result()"),
    ("_thread", "keep locks outside the state"),
    ("threading", "keep threads and locks outside the state"),
    ("socket", "keep connections outside the state and store what is needed to open them"),
    ("sqlite3", "keep connections outside the state and store what is needed to open them"),
    ("_io", "store the path or the content of the file"),
    ("torch", "store tensor.detach().cpu().numpy()"),
    ("builtins.dict_", "store list(...) of it"),
    ("builtins.traceback", "store traceback.format_exc()"),
    ("builtins.frame", "store traceback.format_stack()"),
)


def refuse_family(cls: type) -> Reducer | None:
    """Stands last: everything else is refused, with what to do about it."""
    name = type_name(cls)
    if cls.__module__ == "builtins" and name.endswith("iterator"):
        raise Unsupported(f"an object of type {name} cannot be stored; store list(...) of it", name)
    for start, advice in _ADVICE:
        if name.startswith(start):
            raise Unsupported(f"an object of type {name} cannot be stored; {advice}", name)
    raise Unsupported(
        f"{name} has no declared fields, so what it holds cannot be stored and restored safely; "
        "make it a dataclass or a pydantic model, or keep it outside the state",
        name,
    )
