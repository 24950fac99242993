"""Pydantic models (v2 and v1), secrets and URLs.

A model is stored as what the instance holds, not as what it would dump: excluded fields, aliases,
extras, private attributes and the set of given fields come back; no validator runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pydantic
import pydantic_core
from pydantic import BaseModel, SecretBytes, SecretStr, networks
from pydantic_core import PydanticUndefined

from langgraph_resilient.codec.naming import TypePolicy, class_ref, type_expr
from langgraph_resilient.codec.registry import Code, Reduced, Reducer, reduces, restores
from langgraph_resilient.codec.state import cached_names, slot_names, state_reader, write_state
from langgraph_resilient.codec.types_classes import expect
from langgraph_resilient.codec.types_errors import StandInError, degrade_exception

# Payloads with these codes must not stand readable in the file.
SECRET_CODES = frozenset({int(Code.SECRET)})

# BaseModel keeps its four parts in slots; their descriptors skip every __setattr__.
set_dict: Callable[[Any, Any], None] = BaseModel.__dict__["__dict__"].__set__
set_fields_set: Callable[[Any, Any], None] = BaseModel.__dict__["__pydantic_fields_set__"].__set__
set_extra: Callable[[Any, Any], None] = BaseModel.__dict__["__pydantic_extra__"].__set__
set_private: Callable[[Any, Any], None] = BaseModel.__dict__["__pydantic_private__"].__set__


_MODEL_SLOTS = len(slot_names(BaseModel))  # they come first: the base's slots


def trim(payload: list[Any], keep: int) -> list[Any]:
    """Drops trailing ``None``s of a payload."""
    while len(payload) > keep and payload[-1] is None:
        payload.pop()
    return payload


# --- pydantic v2 ----------------------------------------------------------------------------


def model_family(cls: type) -> Reducer | None:
    """Pydantic v2 models: ``[class, __dict__, fields set or None, extra, private]``."""
    if not issubclass(cls, BaseModel):
        return None
    expr, read = type_expr(cls), state_reader_of_model(cls)

    def reduce_model(obj: Any) -> Reduced:
        state = read(obj)
        given = obj.__pydantic_fields_set__
        names = None if given == state.keys() else sorted(given)
        payload = [expr, state, names, obj.__pydantic_extra__, obj.__pydantic_private__]
        return Code.MODEL, trim(payload, 2)

    return reduce_model


def state_reader_of_model(cls: type) -> Callable[[Any], dict[str, Any]]:
    """As `state_reader`, without the four slots that pydantic itself uses."""
    read, own = state_reader(cls), frozenset(slot_names(BaseModel))
    if not cached_names(cls) and own.issuperset(slot_names(cls)):
        return lambda obj: obj.__dict__.copy()

    def read_model(obj: Any) -> dict[str, Any]:
        return {name: value for name, value in read(obj).items() if name not in own}

    return read_model


@restores(Code.MODEL)
def _restore_model(payload: Any, policy: TypePolicy) -> Any:
    expr, state, names, extra, private = [*payload, None, None, None][:5]
    found = policy.resolve_expr(expr)
    is_model = isinstance(found, type) and issubclass(found, BaseModel)
    cls = expect(found, is_model, "pydantic model", expr)
    obj = object.__new__(cls)
    given = set(state) if names is None else set(names)
    _add_new_fields(cls, state)
    _set_model_dict(obj, state)
    set_fields_set(obj, given)
    set_extra(obj, extra)
    set_private(obj, _add_new_private(cls, private))
    return obj


def _set_model_dict(obj: Any, state: dict[str, Any]) -> None:
    cls: type = type(obj)
    for name in slot_names(cls)[_MODEL_SLOTS:]:
        if name in state:
            object.__setattr__(obj, name, state.pop(name))
    set_dict(obj, state)


def _add_new_fields(cls: Any, state: dict[str, Any]) -> None:
    """Fields which the class did not have when the object was stored get their default."""
    fields = cls.__pydantic_fields__
    if fields.keys() <= state.keys():
        return
    for name, field in fields.items():
        if name not in state and not field.is_required():
            state[name] = field.get_default(call_default_factory=True, validated_data=state)


def _add_new_private(cls: Any, private: dict[str, Any] | None) -> dict[str, Any] | None:
    attributes = cls.__private_attributes__
    if not attributes or (private is not None and attributes.keys() <= private.keys()):
        return private
    # A private attribute without a default is absent until it is set.
    defaults = {name: attribute.get_default() for name, attribute in attributes.items()}
    known = {name: value for name, value in defaults.items() if value is not PydanticUndefined}
    return {**known, **(private or {})}


# --- pydantic v1 ----------------------------------------------------------------------------


def model_v1_family(cls: type) -> Reducer | None:
    """Models of ``pydantic.v1``: ``[class, __dict__, fields set, private attributes]``."""
    # Not imported here: on Python 3.14 importing it warns.
    main: Any = sys.modules.get("pydantic.v1.main")
    if not hasattr(main, "BaseModel") or not issubclass(cls, main.BaseModel):
        return None
    ref = class_ref(cls)

    def reduce_v1(obj: Any) -> Reduced:
        state = main.BaseModel.__getstate__(obj)  # not the user's own, which may leave parts out
        private = state["__private_attribute_values__"] or None
        names = sorted(state["__fields_set__"])
        return Code.MODEL_V1, trim([ref, dict(state["__dict__"]), names, private], 3)

    return reduce_v1


@restores(Code.MODEL_V1)
def _restore_v1(payload: Any, policy: TypePolicy) -> Any:
    ref, state, names, private = [*payload, None][:4]
    found: Any = policy.resolve_ref(ref)
    cls = expect(found, hasattr(found, "__fields_set__"), "pydantic v1 model", ref)
    obj = object.__new__(cls)
    object.__setattr__(obj, "__dict__", state)
    object.__setattr__(obj, "__fields_set__", set(names))
    for name, value in (private or {}).items():
        object.__setattr__(obj, name, value)
    return obj


# --- secrets --------------------------------------------------------------------------------

_SECRETS: dict[str, Any] = {"str": SecretStr, "bytes": SecretBytes}


@reduces(SecretStr)
def _reduce_secret_str(obj: SecretStr) -> Reduced:
    return Code.SECRET, ["str", obj.get_secret_value()]


@reduces(SecretBytes)
def _reduce_secret_bytes(obj: SecretBytes) -> Reduced:
    return Code.SECRET, ["bytes", obj.get_secret_value()]


def _secret_classes() -> tuple[type, ...]:
    """Every class that hides a value, also those of ``pydantic.v1`` if that is loaded."""
    v1 = sys.modules.get("pydantic.v1.types")
    found = (
        *(getattr(pydantic, name, None) for name in ("Secret", "SecretStr", "SecretBytes")),
        getattr(v1, "SecretStr", None),
        getattr(v1, "SecretBytes", None),
    )
    return tuple(cls for cls in found if isinstance(cls, type))


def secret_family(cls: type) -> Reducer | None:
    """Other secrets: ``[class, all attributes]``."""
    if not issubclass(cls, _secret_classes()):
        return None
    ref, read = class_ref(cls), state_reader(cls)
    return lambda obj: (Code.SECRET, [ref, read(obj)])


@restores(Code.SECRET)
def _restore_secret(payload: Any, policy: TypePolicy) -> Any:
    kind, value = payload
    if kind in _SECRETS:
        return _SECRETS[kind](value)
    found = policy.resolve_ref(kind)
    cls = expect(found, issubclass(found, _secret_classes()), "secret", kind)
    obj = object.__new__(cls)
    write_state(obj, value)
    return obj


# --- URLs -----------------------------------------------------------------------------------

_CORE_URLS: dict[str, Any] = {"url": pydantic_core.Url, "multi": pydantic_core.MultiHostUrl}


@reduces(pydantic_core.Url)
def _reduce_core_url(obj: Any) -> Reduced:
    return Code.URL, ["url", str(obj)]


@reduces(pydantic_core.MultiHostUrl)
def _reduce_core_multi_url(obj: Any) -> Reduced:
    return Code.URL, ["multi", str(obj)]


def url_family(cls: type) -> Reducer | None:
    """``AnyUrl``, ``HttpUrl``, the DSNs and subclasses of them: a class around a core URL."""
    if not _is_url(cls):
        return None
    ref = class_ref(cls)
    return lambda obj: (Code.URL, [ref, obj._url])


def _is_url(cls: type) -> bool:
    bases = (vars(networks).get(name) for name in ("_BaseUrl", "_BaseMultiHostUrl"))
    return issubclass(cls, tuple(base for base in bases if isinstance(base, type)))


@restores(Code.URL)
def _restore_url(payload: Any, policy: TypePolicy) -> Any:
    kind, url = payload
    if kind in _CORE_URLS:
        return _CORE_URLS[kind](url)
    found = policy.resolve_ref(kind)
    cls = expect(found, _is_url(found), "pydantic URL", kind)
    obj: Any = object.__new__(cls)
    obj._url = url
    return obj


# --- validation errors ------------------------------------------------------------------------


@reduces(pydantic_core.ValidationError)
def _reduce_validation_error(obj: Any) -> Reduced:
    """``[title, text, errors]`` if that makes the same error again, else a degraded exception."""
    errors = obj.errors(include_url=False)
    payload = [obj.title, str(obj), errors]
    try:
        same = str(_validation_error(payload)) == payload[1]
    except (TypeError, ValueError, KeyError):
        same = False
    return (Code.VALIDATION_ERROR, payload) if same else degrade_exception(obj)


def _validation_error(payload: Any) -> Any:
    title, _, errors = payload
    details: list[Any] = []
    for error in errors:
        context = error.get("ctx")
        try:
            kind: Any = error["type"]
            pydantic_core.PydanticKnownError(kind, context)
        except (KeyError, TypeError):
            kind = pydantic_core.PydanticCustomError(error["type"], error["msg"], context)
        detail = {"type": kind, "loc": tuple(error["loc"]), "input": error["input"]}
        details.append({**detail, "ctx": context} if context else detail)
    return pydantic_core.ValidationError.from_exception_data(title, details)


@restores(Code.VALIDATION_ERROR)
def _restore_validation_error(payload: Any, policy: TypePolicy) -> Any:
    try:
        return _validation_error(payload)
    except (TypeError, ValueError, KeyError):  # another pydantic knows other kinds of errors
        stored = (int(Code.VALIDATION_ERROR), payload)
        return StandInError("pydantic_core.ValidationError", payload[1], stored)
