"""The table of type codes, and how a class is named in stored data and found again.

Everything here is about names and dispatch; what a value of some type looks like when stored is
said in the ``types_*`` modules, which register themselves here. Knows no MessagePack and no SQL.
"""

from __future__ import annotations

import logging
import sys
import types
import typing
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from importlib import import_module
from typing import Any

from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES

from langgraph_resilient.errors import DataCorrupt, TypeNotAllowed

logger = logging.getLogger(__name__)


class Code(IntEnum):
    """Number that stands before a stored object. A file format: a number is never reused.

    100 to 127 belong to the walker (references) and are never used here.
    """

    TUPLE = 0
    SET = 1
    FROZENSET = 2
    BIGINT = 3
    COMPLEX = 4
    BYTEARRAY = 5
    MEMORYVIEW = 6
    RANGE = 7
    SLICE = 8
    SINGLETON = 9
    FRACTION = 10
    DECIMAL = 11
    DATETIME = 12
    DATE = 13
    TIME = 14
    TIMEDELTA = 15
    TIMEZONE = 16
    ZONEINFO = 17
    UUID = 18
    PATH = 19
    IP = 20
    PATTERN = 21
    DEQUE = 22
    COUNTER = 23
    ORDERED_DICT = 24
    DEFAULTDICT = 25
    CHAINMAP = 26
    MAPPING_PROXY = 27
    NAMESPACE = 28
    ARRAY = 29
    FOREIGN_TZ = 30
    # classes written by the user
    ENUM = 32
    FLAG = 33
    NAMEDTUPLE = 34
    DATACLASS = 35
    SUBCLASS = 36
    EXCEPTION = 37
    TYPE = 38
    VALIDATION_ERROR = 39
    # pydantic and langchain
    MODEL = 40
    MODEL_V1 = 41
    SECRET = 42
    URL = 43
    MESSAGE = 44
    # langgraph
    SEND = 50
    COMMAND = 51
    INTERRUPT = 52
    OVERWRITE = 53
    DELTA_SNAPSHOT = 54
    SLOTTED = 55
    # numpy
    NDARRAY = 60
    NP_SCALAR = 61
    NP_DTYPE = 62
    # pandas
    FRAME = 70
    SERIES = 71
    INDEX = 72
    PD_SCALAR = 73
    PD_ARRAY = 74
    PD_OFFSET = 75


Reduced = tuple[int, Any]
Reducer = Callable[[Any], Reduced]
Restorer = Callable[[Any, "TypePolicy"], Any]


class Unsupported(Exception):
    """A value cannot be stored so that it comes back equal.

    Attributes:
        reason: what is wrong and what to do about it, a sentence without channel or path.
        type_name: qualified name of the type that was refused.
    """

    def __init__(self, reason: str, type_name: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.type_name = type_name


class Unresolved(Exception):
    """The class that stored data names is gone, or is no longer what it was."""

    def __init__(self, type_name: str, why: str) -> None:
        super().__init__(f"{type_name}: {why}")
        self.type_name = type_name
        self.why = why


# --- names of classes -----------------------------------------------------------------------

# Classes that cannot be found by their name (local ones, shadowed ones) but have been seen by
# this process: they restore as long as somebody else keeps them alive.
_seen: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()


def type_name(cls: type) -> str:
    """Dotted name of a class, for messages."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _lookup(module: str, parts: tuple[str, ...]) -> object | None:
    found: Any = sys.modules.get(module)
    for part in parts:
        found = getattr(found, part, None)
        if found is None:
            return None
    return typing.cast("object", found)


def class_ref(cls: type) -> str:
    """``"module:Qual.Name"`` of a class; remembers it when its name does not lead back to it."""
    module, qualname = cls.__module__, cls.__qualname__
    ref = f"{module}:{qualname}"
    if _lookup(module, tuple(qualname.split("."))) is not cls:
        _seen[ref] = cls
    return ref


def type_expr(obj: Any) -> Any:
    """A class, or a parametrised one, as a tree of strings and lists.

    Shape: ``"module:Name"``, ``[origin, argument, ...]``, ``None`` for ``NoneType``, and
    ``["=", value]`` for a literal value.

    Raises:
        Unsupported: the expression holds a type variable, a callable or the like.
    """
    if obj is None or obj is type(None):
        return None
    metadata = getattr(obj, "__pydantic_generic_metadata__", None)
    if isinstance(metadata, dict) and metadata.get("origin") is not None:
        return [class_ref(metadata["origin"]), *map(type_expr, metadata["args"])]
    origin = typing.get_origin(obj)
    if origin is not None:
        return _alias_expr(obj, origin)
    if isinstance(obj, type):
        return class_ref(obj)
    if obj is typing.Any:
        return "typing:Any"
    raise Unsupported(f"the type expression {obj!r} cannot be stored", type_name(type(obj)))


def _alias_expr(obj: Any, origin: Any) -> Any:
    args = typing.get_args(obj)
    if origin is typing.Literal:
        if not all(type(arg) in (str, int, bool, bytes, type(None)) for arg in args):
            raise Unsupported(f"the type expression {obj!r} cannot be stored", "typing.Literal")
        return ["typing:Literal", *(["=", arg] for arg in args)]
    if origin is typing.Union:
        return ["typing:Union", *map(type_expr, args)]
    if origin is getattr(types, "UnionType", None):
        return ["types:UnionType", *map(type_expr, args)]
    if not isinstance(origin, type) or not args:
        raise Unsupported(f"the type expression {obj!r} cannot be stored", type_name(type(obj)))
    if any(isinstance(arg, list) or arg is Ellipsis for arg in args):
        raise Unsupported(f"the type expression {obj!r} cannot be stored", type_name(type(obj)))
    # typing.List[int] and list[int] are different objects that compare unequal.
    form = "typing" if isinstance(obj, types.GenericAlias) is False else "alias"
    if form == "typing" and origin.__module__ in ("builtins", "collections", "collections.abc"):
        return [f"typing:{obj._name}", *map(type_expr, args)]
    return [class_ref(origin), *map(type_expr, args)]


def expr_name(expr: Any) -> str:
    """Dotted name of a stored type expression, for messages."""
    if isinstance(expr, str):
        return expr.replace(":", ".")
    if isinstance(expr, list) and expr and expr[0] != "=":
        return f"{expr_name(expr[0])}[{', '.join(map(expr_name, expr[1:]))}]"
    return repr(expr)


# --- policy ---------------------------------------------------------------------------------

_TYPING_FORMS = frozenset(
    {"Any", "Union", "Literal", "List", "Dict", "Set", "FrozenSet", "Tuple", "Type", "Deque"}
    | {"DefaultDict", "OrderedDict", "Counter", "Sequence", "Mapping", "Iterable", "Optional"}
)

_ALWAYS_MODULES = frozenset(
    {"builtins", "langgraph.types", "langgraph.errors", "langgraph.store.base"}
)

_ALWAYS: set[tuple[str, ...]] = {
    *SAFE_MSGPACK_TYPES,
    ("collections", "OrderedDict"),
    ("collections", "Counter"),
    ("collections", "defaultdict"),
    ("langgraph.checkpoint.serde.types", "_DeltaSnapshot"),
}


def always_allow(module: str, qualname: str) -> None:
    """Put a class on the list that strict mode allows without being told."""
    _ALWAYS.add((module, qualname))


@dataclass(frozen=True)
class TypePolicy:
    """Which classes stored data may bring back, and under which name they are found today.

    Attributes:
        strict: only `allowed` and the built-in list may be restored; nothing else is imported.
        allowed: ``(module, qualname)`` or ``(module, name)`` pairs for strict mode.
        renamed: ``"old.module:Qual.Name"`` to the class that took its place.
    """

    strict: bool = False
    allowed: frozenset[tuple[str, str]] = frozenset()
    renamed: Mapping[str, type] = field(default_factory=dict)
    _parsed: dict[str, tuple[str, tuple[str, ...]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def allows(self, module: str, qualname: str) -> bool:
        """Whether a class of this name may be restored."""
        if not self.strict or module in _ALWAYS_MODULES:
            return True
        # LangGraph's allowlists carry __name__: not the outer class, but the arguments of Box[int].
        names = (qualname, qualname.rpartition(".")[2])
        if any((module, name) in _ALWAYS for name in names):
            return True
        return any(m == module and n.partition("[")[0] in names for m, n in self.allowed)

    def resolve(self, module: str, qualname: str) -> type:
        """The class of that name, as it stands now.

        Raises:
            TypeNotAllowed: strict mode, and the class is on no list.
            Unresolved: there is no such class.
        """
        return self.resolve_ref(f"{module}:{qualname}")

    def resolve_ref(self, ref: str) -> type:
        """As `resolve`, for ``"module:Qual.Name"``; the check of the name is cached."""
        if ref in self.renamed:
            return self.renamed[ref]
        parsed = self._parsed.get(ref)
        if parsed is None:
            parsed = self._parsed[ref] = self._admit(ref)
        module, parts = parsed
        # Looked up anew each time (two dict reads): a notebook cell may define a class again.
        found = _lookup(module, parts)
        if found is None:
            found = _seen.get(ref) or _import(module, parts)
        if not isinstance(found, type):
            raise Unresolved(ref.replace(":", "."), "it is not a class")
        return found

    def _admit(self, ref: str) -> tuple[str, tuple[str, ...]]:
        module, _, qualname = ref.partition(":")
        if not self.allows(module, qualname):
            name = f"{module}.{qualname}"
            raise TypeNotAllowed(
                f"Strict mode: stored data holds an object of type {name}, which is not on the "
                f"allowlist. Allow it with allowed_types=[({module!r}, {qualname!r})] if you "
                "trust the file, or with saver.with_allowlist(...).",
                type_name=name,
            )
        return module, tuple(qualname.split("."))

    def resolve_expr(self, expr: Any) -> Any:
        """What `type_expr` wrote, as a class or a parametrised class."""
        if type(expr) is str:
            if expr.startswith("typing:"):
                return _typing_form(expr)
            return self.resolve_ref(expr)
        if expr is None:
            return type(None)
        head, *rest = expr
        if head == "=":
            return rest[0]
        if head == "types:UnionType":
            return _union([self.resolve_expr(arg) for arg in rest])
        origin = self.resolve_expr(head)
        args = tuple(self.resolve_expr(arg) for arg in rest)
        try:
            return origin[args if len(args) != 1 else args[0]]
        except TypeError as error:
            raise Unresolved(expr_name(expr), f"it takes no such arguments ({error})") from error


def _union(members: list[Any]) -> Any:
    union = members[0]
    for member in members[1:]:
        union = union | member
    return union


def _typing_form(ref: str) -> Any:
    name = ref.partition(":")[2]
    if name not in _TYPING_FORMS:
        raise Unresolved(ref.replace(":", "."), "it is not a known typing form")
    return getattr(typing, name)


def _import(module: str, parts: tuple[str, ...]) -> object:
    name = ".".join((module, *parts))
    if "<locals>" in parts:
        raise Unresolved(name, "it was defined inside a function of another process")
    try:
        import_module(module)
    except (ImportError, ValueError) as error:
        raise Unresolved(name, f"its module cannot be imported ({error})") from error
    found = _lookup(module, parts)
    if found is None:
        raise Unresolved(name, f"module {module} has no such class")
    return found


# --- data whose class is gone -----------------------------------------------------------------

_warned: set[str] = set()


class Unrestored:
    """The data of an object whose class was renamed or removed. Not a dict.

    Stored fields are readable as attributes and as items; `data` holds them all. Saved again, it
    is stored exactly as it was, so nothing is lost until the class is back (or is named in
    ``renamed_types``).

    Attributes:
        type_name: dotted name of the missing class.
        data: the stored state: a dict of fields, or the bare value.
    """

    __slots__ = ("_code", "_payload", "data", "type_name")
    __iter__ = None

    def __init__(
        self, type_name: str, data: Any, code: int = Code.DATACLASS, payload: Any = None
    ) -> None:
        self.type_name = type_name
        self.data = data
        self._code = code
        self._payload = payload if payload is not None else [type_name, data]

    def __getattr__(self, name: str) -> Any:
        # Only called when the normal lookup failed; slots may be unset while being copied.
        if not name.startswith("__") and name not in Unrestored.__slots__:
            data = self.data
            if isinstance(data, dict) and name in data:
                return data[name]
            raise AttributeError(
                f"{self.type_name} could not be restored, and its data has no {name!r}"
            )
        raise AttributeError(name)

    def __getitem__(self, key: Any) -> Any:
        return self.data[key]

    def __contains__(self, key: object) -> bool:
        return isinstance(self.data, dict) and key in self.data

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Unrestored):
            return NotImplemented
        return (self._code, self._payload) == (other._code, other._payload)

    def __hash__(self) -> int:
        return hash((self._code, self.type_name))

    def __repr__(self) -> str:
        return f"<Unrestored {self.type_name}>"


def warn_once(why: Unresolved) -> None:
    """Logs that a class is gone, once per class."""
    if why.type_name not in _warned:
        _warned.add(why.type_name)
        logger.warning(
            "Stored data holds %s, which cannot be restored: %s. It is returned as Unrestored "
            "with its data; name the class that replaces it in renamed_types.",
            why.type_name,
            why.why,
        )


def _unrestored(code: int, payload: Any, why: Unresolved) -> Unrestored:
    warn_once(why)
    data = payload[1] if isinstance(payload, list) and len(payload) > 1 else payload
    return Unrestored(why.type_name, data, code, payload)


# --- dispatch -----------------------------------------------------------------------------------

_FIXED: dict[type, Reducer] = {}
_families: list[Callable[[type], Reducer | None]] = []
_restorers: list[Restorer | None] = [None] * 128
_reducers: dict[type, Reducer] = {}

# The cache holds classes strongly; programs that make a class per request must not grow it.
_MAX_CACHED = 4096


def reduces(*classes: type) -> Callable[[Reducer], Reducer]:
    """Registers the reducer of exactly these classes."""

    def register(reducer: Reducer) -> Reducer:
        for cls in classes:
            _FIXED[cls] = _reducers[cls] = reducer
        return reducer

    return register


def restores(code: Code) -> Callable[[Restorer], Restorer]:
    """Registers what reads a code."""

    def register(restorer: Restorer) -> Restorer:
        if _restorers[code] is not None:
            raise AssertionError(f"two restorers for {code!r}")
        _restorers[code] = restorer
        return restorer

    return register


def register_families(*finders: Callable[[type], Reducer | None]) -> None:
    """Registers the rules that find the reducer of a class by what it is; asked in this order."""
    _families.extend(finders)


def reducer_for(cls: type) -> Reducer:
    """The reducer of a class, found once and then cached.

    Raises:
        Unsupported: objects of this class cannot be stored.
    """
    for find in _families:
        reducer = find(cls)
        if reducer is not None:
            if len(_reducers) > _MAX_CACHED:
                _reducers.clear()
                _reducers.update(_FIXED)
            _reducers[cls] = reducer
            return reducer
    raise AssertionError("the last family refuses")


def reduce(obj: Any) -> Reduced:
    """Takes an object apart: its type code and its state.

    The state holds builtins and further objects, which the caller takes apart in turn; it may
    share containers with `obj` and must not be changed.

    Raises:
        Unsupported: the object would not come back equal.
    """
    cls = type(obj)
    reducer = _reducers.get(cls)
    if reducer is None:
        reducer = reducer_for(cls)
    return reducer(obj)


def restore(code: int, payload: Any, policy: TypePolicy) -> Any:
    """Puts an object together again; the containers of `payload` are used, not copied.

    No constructor of a user's class runs. A class that is gone gives `Unrestored`.

    Raises:
        TypeNotAllowed: strict mode, and the class is on no list.
        DataCorrupt: the code is unknown.
    """
    restorer = _restorers[code]
    if restorer is None:
        raise DataCorrupt(
            f"Stored data holds an object with type code {code}, which this release does not "
            "know: it was written by a newer release, or the data is damaged."
        )
    try:
        return restorer(payload, policy)
    except Unresolved as why:
        return _unrestored(code, payload, why)


# --- state of instances ---------------------------------------------------------------------


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

    def read(obj: Any) -> dict[str, Any]:
        state: dict[str, Any] = dict(obj.__dict__) if has_dict else {}
        for name in slots:
            try:
                state[name] = object.__getattribute__(obj, name)
            except AttributeError:
                continue  # a slot that was never assigned stays so
        for name in cached:
            state.pop(name, None)
        if "__orig_class__" in state and not _storable(state["__orig_class__"]):
            del state["__orig_class__"]  # typing's note about Box[T](...): no part of the value
        return state

    return read


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
    slots = slot_names(type(obj))
    if not slots and type(obj).__dictoffset__:
        obj.__dict__.update(state)
        return
    for name, value in state.items():
        try:
            object.__setattr__(obj, name, value)
        except AttributeError as error:
            raise Unresolved(type_name(type(obj)), f"it has no attribute {name!r}") from error
