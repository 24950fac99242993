"""How a class is named in stored data, how it is found again, and which ones may be.

Knows nothing of how objects of a class are stored.
"""

from __future__ import annotations

import logging
import sys
import types
import typing
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES

from langgraph_resilient.errors import TypeNotAllowed


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


# --- names -----------------------------------------------------------------------

logger = logging.getLogger(__name__)

# Classes that cannot be found by their name (local ones, shadowed ones) but have been seen by
# this process: they restore as long as somebody else keeps them alive.
_seen: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()


def type_name(cls: type) -> str:
    """Dotted name of a class, for messages."""
    return f"{cls.__module__}.{cls.__qualname__}"


def safe_text(render: Callable[[Any], str], obj: Any) -> str:
    """``str`` or ``repr`` of an object; a broken one of a user's class gives the class's name."""
    try:
        return render(obj)
    except Exception as error:  # noqa: BLE001 -- must not keep the value from being stored
        name = type_name(type(obj))
        logger.warning("%s of %s failed with %s", render.__name__, name, type(error).__name__)
        return f"<{name}>"


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

# Only what is stored by class name matters here; fixed codes ask nobody.
_ALWAYS_MODULES = frozenset(
    {"builtins", "langgraph.types", "langgraph.errors", "langgraph.store.base"}
    | {"langchain_core.exceptions", "pydantic.networks", "pydantic.types"}
)

_ALWAYS: set[tuple[str, ...]] = {
    *SAFE_MSGPACK_TYPES,
    ("collections", "OrderedDict"),
    ("collections", "Counter"),
    ("collections", "defaultdict"),
    ("langgraph.checkpoint.serde.types", "_DeltaSnapshot"),
    # A message's `text`, and what a graph's or runnable's stream adds up to.
    ("langchain_core.messages.base", "TextAccessor"),
    ("langchain_core.runnables.utils", "AddableDict"),
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
        except (TypeError, KeyError, ValueError, AttributeError) as error:
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
