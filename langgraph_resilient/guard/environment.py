"""What a compiled graph is made of, as plain data that is stored with each checkpoint.

Two processes that run the same code make equal environments, whatever their hash seeds and memory
addresses. Knows no storage and compares nothing.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import platform
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import metadata
from typing import Any

from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable
from langchain_core.runnables.utils import get_function_nonlocals
from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode
from pydantic import PydanticUserError

Environment = dict[str, Any]
"""``graph`` (name, nodes, edges, channels), ``tools``, ``models``, ``packages``: all plain data."""

NESTED = "|"
"""Between a node and what is inside the graph that it is; LangGraph separates namespaces by it."""
PACKAGES = (
    "langgraph",
    "langgraph-checkpoint",
    "langchain-core",
    "langchain",
    "langgraph-resilient",
)
_IMPLIED = ("branch:to:", "join:")
"""Channels that only say which node is next; the nodes tell of them."""
_LONGEST = 120
_DEEPEST = 6
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_WORDS_FOR_PEOPLE = ("description", "title", "examples", "default")


def environment_of(
    graph: Any,
    *,
    tools: Iterable[Any] = (),
    models: Iterable[Any] = (),
    packages: Iterable[str] = (),
) -> Environment:
    """The environment of a compiled graph, its subgraphs included.

    Args:
        graph: a compiled graph.
        tools: those that no ``ToolNode`` of the graph shows.
        models: those that no node's function refers to.
        packages: distributions to note besides `PACKAGES`.
    """
    nodes: dict[str, list[str]] = {}
    channels: dict[str, list[str]] = {}
    edges: list[str] = []
    offered: dict[str, str] = {}
    asked: dict[str, str] = {}
    for prefix, part in _parts(graph):
        edges.extend(f"{prefix}{edge}" for edge in _edges(part))
        for name, channel in part.channels.items():
            if not name.startswith(_IMPLIED):
                channels[prefix + name] = [_kind(channel), _reducer(channel)]
        for name, node in part.nodes.items():
            nodes[prefix + name] = sorted(node.triggers)
            for found in _inside(node.bound):
                if isinstance(found, ToolNode):
                    offered.update(map(_offered, found.tools_by_name.values()))
                else:
                    asked[prefix + name] = _model(found)
    offered.update(map(_offered, tools))
    asked.update({f"given {number}": _model(one) for number, one in enumerate(models, 1)})
    return {
        "graph": {
            "name": str(graph.get_name()),
            "nodes": nodes,
            "edges": sorted(edges),
            "channels": channels,
        },
        "tools": offered,
        "models": asked,
        "packages": {"python": platform.python_version(), **_versions((*PACKAGES, *packages))},
    }


def tools_of(graph: Any, tools: Iterable[Any] = ()) -> dict[str, Any]:
    """The tools that an environment tells of, by name."""
    found: dict[str, Any] = {}
    for _, part in _parts(graph):
        for node in part.nodes.values():
            for one in _inside(node.bound):
                if isinstance(one, ToolNode):
                    found.update(one.tools_by_name)
    return {**found, **{_offered(one)[0]: one for one in tools}}


def _parts(graph: Any) -> Iterator[tuple[str, Any]]:
    """The graph and its subgraphs, each with what its names begin with."""
    yield "", graph
    for namespace, part in graph.get_subgraphs(recurse=True):
        if hasattr(part, "nodes"):  # a remote graph shows nothing of itself
            yield namespace + NESTED, part


def _edges(graph: Any) -> list[str]:
    builder = getattr(graph, "builder", None)
    found = [f"{start} -> {end}" for start, end in getattr(builder, "edges", ())]
    for starts, end in getattr(builder, "waiting_edges", ()):
        found.append(f"{' + '.join(starts)} -> {end}")
    for start, branches in getattr(builder, "branches", {}).items():
        for branch in branches.values():
            ends = "any" if branch.ends is None else " / ".join(sorted(branch.ends.values()))
            found.append(f"{start} -> {ends}")
    return found


# --- channels -----------------------------------------------------------------------------------


def _kind(channel: Any) -> str:
    """A channel's class and the type of its values."""
    try:
        value = name_of_type(channel.ValueType)
    except (AttributeError, NotImplementedError):
        value = "?"
    return f"{type(channel).__name__}[{value}]"


def _reducer(channel: Any) -> str:
    operator = getattr(channel, "operator", None) or getattr(channel, "reducer", None)
    return "" if operator is None else _name(operator)


def name_of_type(kind: Any) -> str:
    """A type's name that is equal in every process; long ones are cut and end in a digest."""
    text = _type_name(kind, 0)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}…{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"


def _type_name(kind: Any, depth: int) -> str:
    if kind is None or kind is type(None):
        return "None"
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if depth > _DEEPEST:
        return "…"
    if origin is typing.Annotated:
        return _type_name(arguments[0], depth)
    if origin in (typing.Union, types.UnionType):
        plain = [_bare(one) for one in arguments]
        if all(isinstance(one, type) and issubclass(one, BaseMessage) for one in plain):
            return "AnyMessage"  # which classes there are is a matter of langchain-core's version
        return " | ".join(sorted(_type_name(one, depth + 1) for one in arguments))
    if origin is typing.Literal:
        return f"Literal{sorted(map(repr, arguments))}"
    if origin is not None:
        inside = ", ".join(
            f"[{', '.join(_type_name(one, depth + 1) for one in item)}]"
            if isinstance(item, (list, tuple))
            else _type_name(item, depth + 1)
            for item in arguments
        )
        return f"{_name(origin)}[{inside}]"
    return _name(kind)


def _bare(kind: Any) -> Any:
    return typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind


def _name(item: Any) -> str:
    """Of a class or a function: its module and name; of anything else: what it prints as."""
    if isinstance(item, typing.ForwardRef):
        return item.__forward_arg__
    name = getattr(item, "__qualname__", None) or getattr(item, "__name__", None)
    if not isinstance(name, str):
        return item if isinstance(item, str) else _ADDRESS.sub("", repr(item))
    module = getattr(item, "__module__", "") or ""
    return name if module in ("builtins", "typing") else f"{module}.{name}"


# --- tools and models ---------------------------------------------------------------------------


def _offered(tool: Any) -> tuple[str, str]:
    """A tool's name, and a digest of what it can be called with."""
    if not isinstance(tool, BaseTool):
        name = (
            tool.get("name", "?") if isinstance(tool, Mapping) else getattr(tool, "__name__", "?")
        )
        return str(name), ""
    shape = _without_words(_arguments(tool.tool_call_schema))
    text = json.dumps(shape, sort_keys=True, default=repr)
    return tool.name, hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _arguments(schema: Any) -> Any:
    """What a tool takes, as a JSON schema where there is one."""
    if isinstance(schema, dict):
        return schema
    try:
        return (getattr(schema, "model_json_schema", None) or schema.schema)()
    except (PydanticUserError, TypeError, ValueError):  # a type that JSON does not know
        fields = getattr(schema, "model_fields", None) or schema.__fields__
        return {name: name_of_type(field.annotation) for name, field in fields.items()}


def _without_words(schema: Any) -> Any:
    """A JSON schema without what only people and models read."""
    if isinstance(schema, dict):
        return {
            key: {name: _without_words(one) for name, one in item.items()}
            if key in ("properties", "$defs") and isinstance(item, dict)
            else _without_words(item)
            for key, item in schema.items()
            if key not in _WORDS_FOR_PEOPLE
        }
    return [_without_words(item) for item in schema] if isinstance(schema, list) else schema


def _model(model: Any) -> str:
    """A model's provider and name."""
    if not isinstance(model, BaseLanguageModel):
        return _name(type(model))
    known: dict[str, Any] = getattr(model, "_get_ls_params", dict)()
    kind = getattr(model, "_llm_type", type(model).__name__)
    name = known.get("ls_model_name") or getattr(model, "model_name", None) or ""
    return "/".join(str(part) for part in (known.get("ls_provider") or kind, name) if part)


def _inside(bound: Any) -> Iterator[Any]:
    """The tool nodes and models that a node is made of or that its functions refer to."""
    seen: set[int] = set()
    todo: list[tuple[Any, int]] = [(bound, 0)]
    while todo:
        item, depth = todo.pop()
        if id(item) in seen or depth > _DEEPEST:
            continue
        seen.add(id(item))
        if isinstance(item, (ToolNode, BaseLanguageModel)):
            yield item
            continue
        todo.extend((found, depth + 1) for found in _next(item))


def _next(item: Any) -> Sequence[Any]:
    """What to look at behind an object of a node; nothing of objects that are not LangChain's."""
    if isinstance(item, (list, tuple)):
        return item[:32]
    if inspect.ismethod(item):
        owner = item.__self__
        held = getattr(owner, "__dict__", {}).values()
        return [owner, item.__func__, *(one for one in held if isinstance(one, Runnable))]
    if inspect.isfunction(item):
        try:
            return get_function_nonlocals(item)
        except Exception:  # noqa: BLE001 - a foreign object's attribute: look at names only
            found = inspect.getclosurevars(item)
            return [*found.nonlocals.values(), *found.globals.values()]
    if not isinstance(item, Runnable):
        return ()
    names = ("func", "afunc", "bound", "runnable", "first", "middle", "last", "steps")
    return [getattr(item, name) for name in names if getattr(item, name, None) is not None]


# --- packages -----------------------------------------------------------------------------------


def _versions(names: Iterable[str]) -> dict[str, str]:
    found = {name: _version(name) for name in names}
    return {name: version for name, version in found.items() if version is not None}


@lru_cache(maxsize=64)
def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
