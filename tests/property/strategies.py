"""Hypothesis strategies for everything that can be stored, and an equality that looks at types.

`values()` gives nested values of every supported kind, `messages()` every LangChain message.
`same()` tells whether a value came back equal and of the same types. `encode()` and `decode()` do
what the walker does, in its simplest form: they call `reduce` and `restore` at every level.
"""

from __future__ import annotations

import array
import enum
import ipaddress
import math
import pathlib
import re
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from datetime import timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgpack
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
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
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Command, Interrupt, Overwrite, Send, TimeoutPolicy
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr

from langgraph_resilient.codec.types import TypePolicy, reduce, restore

# --- the walker, in its simplest form ---------------------------------------------------------


def encode(value: Any) -> bytes:
    """The bytes of a value: exact types only, the packer refuses everything else."""
    packed = msgpack.packb(_walk(value), strict_types=True, unicode_errors="surrogatepass")
    assert isinstance(packed, bytes)
    return packed


def _walk(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (bool, float, str, bytes):
        return value
    if kind is int and -(2**63) <= value < 2**64:
        return value
    if kind is list:
        return [_walk(item) for item in value]
    if kind is dict:
        return {_walk(key): _walk(item) for key, item in value.items()}
    code, payload = reduce(value)
    return msgpack.ExtType(int(code), encode(payload))


def decode(data: bytes, policy: TypePolicy | None = None) -> Any:
    """The value of bytes that `encode` made."""
    rules = policy or TypePolicy()

    def load(body: bytes) -> Any:
        return msgpack.unpackb(
            body,
            ext_hook=lambda code, inner: restore(code, load(inner), rules),
            strict_map_key=False,
            unicode_errors="surrogatepass",
        )

    return load(data)


def roundtrip(value: Any, policy: TypePolicy | None = None) -> Any:
    """The value after being taken apart, packed, unpacked and put together."""
    return decode(encode(value), policy)


# --- equality ---------------------------------------------------------------------------------


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal and have equal types, all the way down; NaN is itself."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        both_nan = math.isnan(a) and math.isnan(b)
        return both_nan or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, Decimal):
        return str(a) == str(b)
    if isinstance(a, (set, frozenset)):
        return len(a) == len(b) and _same_members(list(a), list(b))
    if isinstance(a, (dict, MappingProxyType)):
        if getattr(a, "default_factory", None) is not getattr(b, "default_factory", None):
            return False
        items = dict.items if isinstance(a, dict) and not isinstance(a, OrderedDict) else _items
        pairs = zip(items(a), items(b), strict=False)
        return len(a) == len(b) and all(same(x, y) for x, y in pairs) and _same_state(a, b)
    if isinstance(a, (list, tuple, deque)):
        if getattr(a, "maxlen", None) != getattr(b, "maxlen", None) or len(a) != len(b):
            return False
        kind = next(kind for kind in (list, tuple, deque) if isinstance(a, kind))
        items = zip(kind.__iter__(a), kind.__iter__(b), strict=True)
        return all(same(x, y) for x, y in items) and _same_state(a, b)
    if isinstance(a, ChainMap):
        return same(a.maps, b.maps)
    if isinstance(a, BaseModel):
        return all(same(x, y) for x, y in zip(_parts(a), _parts(b), strict=True))
    if isinstance(a, BaseException):
        # The text is made of the arguments' reprs, which may fail or depend on the order of a set.
        plain = all(type(arg) in (str, int, bytes, type(None)) for arg in a.args)
        same_text = not plain or str(a) == str(b)
        return same(a.args, b.args) and same_text and _same_state(a, b)
    if hasattr(a, "tzinfo"):
        return bool(a == b) and same(a.tzinfo, b.tzinfo) and a.fold == b.fold
    if isinstance(a, Send):
        return same([a.node, a.arg, a.timeout], [b.node, b.arg, b.timeout])
    if isinstance(a, (str, bytes, int, enum.Enum)):
        return bool(a == b) and (isinstance(a, enum.Enum) or _same_state(a, b))
    if hasattr(a, "__dataclass_fields__") or isinstance(a, SimpleNamespace):
        return _same_state(a, b)
    return bool(a == b)


def _items(mapping: Any) -> Any:
    return mapping.items()


def _same_members(a: list[Any], b: list[Any]) -> bool:
    for member in a:
        match = next((i for i, other in enumerate(b) if same(member, other)), None)
        if match is None:
            return False
        del b[match]
    return True


def _state(obj: Any) -> dict[str, Any]:
    state = dict(getattr(obj, "__dict__", {}))
    for cls in type(obj).__mro__:
        for name in cls.__dict__.get("__slots__", ()):
            if name not in ("__dict__", "__weakref__") and hasattr(obj, name):
                state[name] = getattr(obj, name)
    return state


def _same_state(a: Any, b: Any) -> bool:
    ours, theirs = _state(a), _state(b)
    return ours is theirs or (not ours and not theirs) or same(ours, theirs)


def _parts(model: BaseModel) -> list[Any]:
    private = model.__pydantic_private__
    return [dict(model.__dict__), model.__pydantic_fields_set__, model.__pydantic_extra__, private]


# --- classes that values are made of ------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"
    GREEN = 2
    ROUGE = "red"  # noqa: PIE796 -- an alias


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Rights(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


class Holder:
    class Inner(enum.Enum):
        ONE = (1, "one")


class Pair(NamedTuple):
    left: Any
    right: Any = None


@dataclass
class Plain:
    name: Any
    items: list[Any] = field(default_factory=list)
    later: Any = field(init=False, default=0)


@dataclass(frozen=True)
class Frozen:
    key: Any
    other: Any = None


@dataclass
class Slotted:
    __slots__ = ("a", "b")
    a: Any
    b: Any


class Text(str):
    """A subclass with a dict."""


class Number(int):
    __slots__ = ()


class Names(list[Any]):
    def __iter__(self) -> Any:
        raise AssertionError("the codec must not use what the subclass overrides")


class Config(dict[Any, Any]):
    """A dict with attributes."""


class Model(BaseModel):
    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)
    value: Any
    hidden: Any = Field(default=None, exclude=True)
    renamed: Any = Field(default=None, alias="other")
    _private: Any = PrivateAttr(default=None)


class Failure(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


# --- leaves -------------------------------------------------------------------------------------

text = st.text(max_size=12)
surrogate_text = st.text(st.characters(), max_size=8)
zones = st.sampled_from(
    [
        None,
        timezone.utc,
        timezone(timedelta(hours=-3, minutes=-30)),
        timezone(timedelta(0), "Z"),
        timezone(timedelta(seconds=3723, microseconds=5), "odd"),
        ZoneInfo("Europe/Berlin"),
    ]
)


def _folded(when: Any) -> Any:
    return st.integers(0, 1).map(lambda fold: when.replace(fold=fold))


moments = st.one_of(
    st.datetimes(timezones=zones).flatmap(_folded),
    st.dates(),
    st.times(timezones=st.sampled_from([None, timezone.utc])).flatmap(_folded),
    st.timedeltas(),
    zones,
)

numbers = st.one_of(
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(),
    st.complex_numbers(),
    st.fractions(),
    st.decimals(),
    st.sampled_from(
        [Decimal("sNaN123"), Decimal("-0E+9"), Fraction(-1, 3), 2**63, 2**64, -(2**63)]
    ),
)

addresses = st.one_of(
    st.ip_addresses(),
    st.sampled_from(
        [
            ipaddress.ip_network("10.0.0.0/8"),
            ipaddress.ip_interface("fe80::1%eth0/64"),
            ipaddress.ip_interface("10.1.2.3/8"),
            ipaddress.ip_network("2001:db8::/32"),
        ]
    ),
)

fixed = st.sampled_from(
    [
        *(pathlib.Path("a/b"), pathlib.PurePosixPath("/x"), pathlib.PureWindowsPath("C:\\y")),
        *(re.compile(r"a+(b)?", re.IGNORECASE), re.compile(rb"\d", re.DOTALL), Ellipsis),
        *(range(2, 9, 3), range(0), Colour.RED, Colour.ROUGE, Level.HIGH, Holder.Inner.ONE),
        *(Rights.READ | Rights.RUN, Rights(0), int, Model, Plain, list[int], Colour),
    ]
)

hashables = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), text, st.binary(max_size=6), st.uuids(), moments
    )
    | st.sampled_from([Colour.RED, Level.LOW, Holder.Inner.ONE, Frozen("k", 1)]),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=6,
)

leaves = st.one_of(
    st.none(),
    st.booleans(),
    numbers,
    surrogate_text,
    st.binary(max_size=8),
    moments,
    st.uuids(),
    addresses,
    fixed,
    st.binary(max_size=8).map(bytearray),
    st.lists(st.integers(-100, 100), max_size=4).map(lambda v: array.array("h", v)),
    text.map(SecretStr),
)


# --- containers and objects ---------------------------------------------------------------------


def _with(obj: Any, **attributes: Any) -> Any:
    for name, value in attributes.items():
        object.__setattr__(obj, name, value)
    return obj


def _model(value: Any, extra: dict[str, Any], private: Any) -> Model:
    model = Model(value=value, other=1, **extra)
    model._private = private
    return model


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=4)
    dicts = st.dictionaries(hashables, inner, max_size=4)
    named = st.dictionaries(st.sampled_from(["x", "y", "zed"]), inner, max_size=3)
    return st.one_of(
        lists,
        dicts,
        lists.map(tuple),
        st.sets(hashables, max_size=4),
        st.frozensets(hashables, max_size=4),
        st.builds(deque, lists, maxlen=st.none() | st.integers(4, 6)),
        dicts.map(OrderedDict),
        st.builds(lambda f, d: defaultdict(f, d), st.sampled_from([None, list, dict, int]), dicts),
        st.dictionaries(hashables, st.integers(), max_size=3).map(Counter),
        st.lists(dicts, min_size=1, max_size=2).map(lambda maps: ChainMap(*maps)),
        dicts.map(MappingProxyType),
        named.map(lambda d: SimpleNamespace(**d)),
        _objects(inner, lists, dicts, named),
        _langgraph(inner),
    )


def _objects(inner: Any, lists: Any, dicts: Any, named: Any) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(Pair, inner, inner),
        st.builds(lambda n, i, s: _with(Plain(n, i), later=s, stray=s), inner, lists, inner),
        st.builds(Frozen, inner, inner),
        st.builds(Slotted, inner, inner),
        st.builds(lambda t, v: _with(Text(t), note=v), text, inner),
        st.integers().map(Number),
        lists.map(Names),
        st.builds(lambda d, v: _with(Config(d), note=v), dicts, inner),
        st.builds(_model, inner, named, inner),
        st.builds(lambda t, d: Document(page_content=t, metadata=d), text, named),
        st.builds(lambda c, t, v: _with(Failure(c, t), seen=v), st.integers(0, 9), text, inner),
        st.builds(lambda t, v: ValueError(t, v), text, inner),
    )


def _langgraph(inner: Any) -> st.SearchStrategy[Any]:
    sends = st.builds(
        lambda arg, timeout: Send("node", arg, timeout=timeout),
        inner,
        st.sampled_from([None, 2.5, TimeoutPolicy(idle_timeout=3)]),
    )
    return st.one_of(
        sends,
        st.builds(
            lambda u, r, g, p: Command(graph=p, update=u, resume=r, goto=g),
            inner,
            inner,
            st.sampled_from([(), "n"]) | st.lists(sends, max_size=2),
            st.sampled_from([None, Command.PARENT]),
        ),
        st.builds(Interrupt, inner, text),
        st.builds(Overwrite, inner),
        st.builds(_DeltaSnapshot, inner),
    )


# --- messages -----------------------------------------------------------------------------------

_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
_objects_json = st.dictionaries(text, _json, max_size=3)

blocks = st.one_of(
    text,
    st.builds(lambda t: {"type": "text", "text": t}, text),
    st.builds(lambda t: {"type": "reasoning", "reasoning": t, "extras": {"signature": t}}, text),
    st.builds(lambda t: {"type": "image", "base64": t, "mime_type": "image/png"}, text),
    st.builds(lambda d: {"type": "non_standard", "value": d}, _objects_json),
)
contents = text | st.lists(blocks, max_size=3)
_calls = st.lists(
    st.builds(
        lambda name, args, ident: {"name": name, "args": args, "id": ident, "type": "tool_call"},
        text,
        _objects_json,
        st.none() | text,
    ),
    max_size=3,
)
_bad_calls = st.lists(
    st.builds(lambda t: {"name": t, "args": "{", "id": t, "error": "bad json"}, text), max_size=1
)
_usage = st.none() | st.builds(
    lambda i, o: {
        "input_tokens": i,
        "output_tokens": o,
        "total_tokens": i + o,
        "input_token_details": {"cache_read": i},
    },
    st.integers(0, 10**6),
    st.integers(0, 10**6),
)
_chunks = st.lists(
    st.builds(
        lambda name, args, i: {"name": name, "args": args, "id": name, "index": i},
        st.none() | text,
        text,
        st.integers(0, 3),
    ),
    max_size=2,
)


@st.composite
def messages(draw: st.DrawFn, artifacts: st.SearchStrategy[Any] | None = None) -> BaseMessage:
    """A message of any LangChain class, with content blocks, tool calls, usage, artifacts."""
    common: dict[str, Any] = {"content": draw(contents)}
    for name, strategy in (
        ("additional_kwargs", _objects_json),
        ("response_metadata", _objects_json),
        ("name", st.none() | text),
        ("id", st.none() | text),
        ("surprise", _json),
    ):
        if draw(st.booleans()):
            common[name] = draw(strategy)
    maker = draw(st.sampled_from(_MAKERS))
    return maker(draw, common, _json if artifacts is None else artifacts)  # type: ignore[no-any-return]


def _simple(cls: Any) -> Any:
    return lambda draw, common, artifacts: cls(**common)


def _ai(draw: Any, common: dict[str, Any], artifacts: Any) -> BaseMessage:
    common |= {"tool_calls": draw(_calls), "invalid_tool_calls": draw(_bad_calls)}
    return AIMessage(**common, usage_metadata=draw(_usage))


def _ai_chunk(draw: Any, common: dict[str, Any], artifacts: Any) -> BaseMessage:
    position = draw(st.sampled_from([None, "last"]))
    return AIMessageChunk(**common, tool_call_chunks=draw(_chunks), chunk_position=position)


def _tool(cls: Any) -> Any:
    def make(draw: Any, common: dict[str, Any], artifacts: Any) -> BaseMessage:
        status = draw(st.sampled_from(["success", "error"]))
        message = cls(**common, tool_call_id=draw(text), status=status)
        message.artifact = draw(artifacts)
        return message  # type: ignore[no-any-return]

    return make


def _remove(draw: Any, common: dict[str, Any], artifacts: Any) -> BaseMessage:
    return RemoveMessage(id=draw(text))


def _role(cls: Any) -> Any:
    return lambda draw, common, artifacts: cls(**common, role=draw(text))


def _function(cls: Any) -> Any:
    return lambda draw, common, artifacts: cls(**{**common, "name": draw(text)})


_MAKERS = [
    *map(_simple, (HumanMessage, SystemMessage, HumanMessageChunk, SystemMessageChunk)),
    _ai,
    _ai_chunk,
    _remove,
    *map(_tool, (ToolMessage, ToolMessageChunk)),
    *map(_role, (ChatMessage, ChatMessageChunk)),
    *map(_function, (FunctionMessage, FunctionMessageChunk)),
]


def values(max_leaves: int = 12) -> st.SearchStrategy[Any]:
    """Nested values of every supported kind."""
    return st.recursive(leaves | messages(), _containers, max_leaves=max_leaves)
