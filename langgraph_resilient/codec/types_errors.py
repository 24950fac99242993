"""Exceptions. They are never refused: LangGraph stores what a node raised.

An exception comes back with its class, arguments, attributes, notes, cause and context; the
traceback is dropped. Arguments and attributes that cannot be stored become their ``repr``, and
an exception whose class is gone or keeps its state in C comes back as `StandInError`.
"""

from __future__ import annotations

import builtins
from typing import Any

from langgraph_resilient.codec.naming import TypePolicy, Unresolved, class_ref, safe_text, type_name
from langgraph_resilient.codec.registry import Code, Reduced, Reducer, reduces, restores, warn_once
from langgraph_resilient.codec.state import state_reader, write_state
from langgraph_resilient.errors import TypeNotAllowed

# An exception chain longer than this is cut: every link costs bytes in each checkpoint's writes.
_MAX_LINKS = 8
_MAX_TEXT = 4000
DEGRADED = "__degraded__"

# Attributes that builtin exceptions keep in C, beside `args`.
_NATIVE: dict[type, tuple[str, ...]] = {
    OSError: ("errno", "strerror", "filename", "filename2"),
    ImportError: ("msg", "name", "path"),
    NameError: ("name",),
    AttributeError: ("name",),
    StopIteration: ("value",),
    SystemExit: ("code",),
    SyntaxError: ("msg", "filename", "lineno", "offset", "text", "end_lineno", "end_offset"),
}


class StandInError(Exception):
    """Stands for an exception that cannot be made again; has its text.

    Attributes:
        type_name: dotted name of the exception's class.
    """

    type_name: str
    _stored: Reduced

    def __init__(self, type_name: str, text: str, stored: Reduced) -> None:
        super().__init__(text)
        self.type_name = type_name
        self._stored = stored

    def __repr__(self) -> str:
        return f"<{self.type_name}: {self.args[0]}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return StandInError, (self.type_name, self.args[0], self._stored)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StandInError) and self._stored == other._stored

    def __hash__(self) -> int:
        return hash((self.type_name, self.args))


@reduces(StandInError)
def _reduce_stand_in(obj: StandInError) -> Reduced:
    return obj._stored


def _builtin_base(cls: type) -> Any:
    return next(base for base in cls.__mro__ if getattr(builtins, base.__name__, None) is base)


def _makeable(cls: type) -> bool:
    """Whether all state of such an exception is visible: every class above it is plain Python."""
    base = _builtin_base(cls)
    heap = all(above.__flags__ & (1 << 9) for above in cls.__mro__[: cls.__mro__.index(base)])
    return heap and cls.__module__ != "pydantic_core._pydantic_core"


def exception_family(cls: type) -> Reducer | None:
    """Exceptions of all classes."""
    if not issubclass(cls, BaseException):
        return None
    if not _makeable(cls):
        return degrade_exception
    return lambda obj: (Code.EXCEPTION, _payload(obj, plain=False))


def degrade_exception(exc: BaseException) -> Reduced:
    """As `reduce`, for an exception of which some part was refused: only plain data, never fails.

    What is no plain data becomes its ``repr``; the attribute ``__degraded__`` says so.
    """
    return Code.EXCEPTION, _payload(exc, plain=True)


def _payload(exc: BaseException, *, plain: bool, links: int = _MAX_LINKS) -> list[Any]:
    """Shape: ``[class, args, text, attributes, {native, cause, context, suppress}]``."""
    cls = type(exc)
    if isinstance(exc, StandInError):
        return [*exc._stored[1]]
    args: list[Any] = list(exc.args)
    state = state_reader(cls)(exc)
    native = {
        name: value
        for base, names in _NATIVE.items()
        if isinstance(exc, base)
        for name in names
        if (value := getattr(exc, name, None)) is not None
    }
    if plain:
        args = [_plain(arg) for arg in args]
        state = {name: _plain(value) for name, value in state.items()} | {DEGRADED: True}
        native = {name: _plain(value) for name, value in native.items()}
    more: dict[str, Any] = {"native": native} if native else {}
    if links:
        for name, link in (("cause", exc.__cause__), ("context", exc.__context__)):
            if link is not None and link is not exc and not (name == "context" and "cause" in more):
                more[name] = _payload(link, plain=plain, links=links - 1)
    if exc.__suppress_context__:
        more["suppress"] = True
    payload = [
        class_ref(cls),
        args,
        safe_text(str, exc)[:_MAX_TEXT] if _needs_text(cls) else None,
        state,
        more,
    ]
    while len(payload) > 2 and not payload[-1]:
        payload.pop()
    return payload


def _needs_text(cls: type) -> bool:
    """Whether `args` may not be enough to read the message when the class is gone."""
    return cls.__module__ != "builtins"


def _plain(value: Any, depth: int = 4) -> Any:
    """Plain data as it is, everything else as its ``repr``."""
    kind = type(value)
    if kind in (str, bytes, float, bool, type(None)) or (kind is int and value.bit_length() < 64):
        return value
    if depth and kind is list:
        return [_plain(item, depth - 1) for item in value]
    if depth and kind is dict and all(type(key) is str for key in value):
        return {key: _plain(item, depth - 1) for key, item in value.items()}
    return safe_text(repr, value)[:_MAX_TEXT]


@restores(Code.EXCEPTION)
def _restore_exception(payload: Any, policy: TypePolicy) -> BaseException:
    """An exception in any case: strict mode too gives a `StandInError`, as it runs no code."""
    ref, args, text, state, more = [*payload, None, None, None][:5]
    try:
        exc = _make(policy.resolve_ref(ref), args, state or {}, more or {})
    except (Unresolved, TypeNotAllowed, TypeError, ValueError) as error:
        name = ref.replace(":", ".")
        if isinstance(error, Unresolved):
            warn_once(error)
        return StandInError(name, _stand_in_text(text, args), (int(Code.EXCEPTION), payload))
    more = more or {}
    if "context" in more:
        exc.__context__ = _restore_exception(more["context"], policy)
    if "cause" in more:
        exc.__cause__ = exc.__context__ = _restore_exception(more["cause"], policy)
    exc.__suppress_context__ = more.get("suppress", False)
    return exc


def _stand_in_text(text: str | None, args: list[Any]) -> str:
    if text is not None:
        return text
    return str(args[0]) if len(args) == 1 else str(tuple(args))


def _make(cls: Any, args: list[Any], state: dict[str, Any], more: dict[str, Any]) -> BaseException:
    if not issubclass(cls, BaseException) or not _makeable(cls):
        raise TypeError(f"{type_name(cls)} cannot be made from its arguments")
    base = _builtin_base(cls)
    exc: BaseException = base.__new__(cls, *args)
    base.__init__(exc, *args)  # the builtin's own, which sets what str() reads
    exc.args = tuple(args)
    write_state(exc, state)
    for name, value in more.get("native", {}).items():
        if getattr(exc, name, None) != value:
            setattr(exc, name, value)
    return exc
