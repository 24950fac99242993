"""What LangGraph's run configs say, as records: threads, namespaces, filters, metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    EXCLUDED_METADATA_KEYS,
    CheckpointMetadata,
    get_checkpoint_metadata,
)

from langgraph_resilient.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Where in the store a config points."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What `list` is asked for; None means: any."""

    thread_id: str | None
    checkpoint_ns: str | None
    checkpoint_id: str | None
    filter: Mapping[str, Any]
    before_id: str | None
    before_thread: str | None
    before_ns: str | None
    limit: int | None


def config_of(thread_id: str, checkpoint_ns: str, checkpoint_id: str | None) -> RunnableConfig:
    """The config that points at a checkpoint."""
    return {
        "configurable": {
            "thread_id": thread_id,
            "checkpoint_ns": checkpoint_ns,
            "checkpoint_id": checkpoint_id,
        }
    }


def spot(config: RunnableConfig) -> Spot:
    """The spot of a config.

    Raises:
        ConfigurationError: there is no thread_id.
    """
    configurable = config.get("configurable") or {}
    if configurable.get("thread_id") is None:
        raise ConfigurationError(
            "the config names no thread: pass "
            '{"configurable": {"thread_id": "..."}} to invoke, stream or get_state'
        )
    return Spot(
        thread_id=str(configurable["thread_id"]),
        checkpoint_ns=str(configurable.get("checkpoint_ns") or ""),
        checkpoint_id=_text(configurable.get("checkpoint_id")),
    )


def _text(value: Any) -> str | None:
    return str(value) if value else None


def query(
    config: RunnableConfig | None,
    filter: Mapping[str, Any] | None,
    before: RunnableConfig | None,
    limit: int | None,
) -> Query:
    """The query that the arguments of `list` mean."""
    asked = (config or {}).get("configurable") or {}
    thread = asked.get("thread_id")
    if config is not None and thread is None:
        raise ConfigurationError(
            "list was given a config without a thread_id; pass None to list all threads"
        )
    namespace = asked.get("checkpoint_ns")
    ahead = (before or {}).get("configurable") or {}
    return Query(
        thread_id=None if thread is None else str(thread),
        checkpoint_ns=None if namespace is None else str(namespace),
        checkpoint_id=_text(asked.get("checkpoint_id")),
        filter=filter or {},
        before_id=_text(ahead.get("checkpoint_id")),
        before_thread=_text(ahead.get("thread_id")),
        before_ns=ahead.get("checkpoint_ns"),
        limit=None if limit is None else max(int(limit), 0),
    )


_COUNTERS = "counters_since_delta_snapshot"


def metadata(config: RunnableConfig, given: CheckpointMetadata) -> dict[str, Any]:
    """The metadata to store: LangGraph's own, and what the run's config adds.

    Lists, dicts and None of ``config["metadata"]`` are kept too when they are JSON-able; the base
    class drops them.
    """
    merged = cast("dict[str, Any]", get_checkpoint_metadata(config, given))
    counters = merged.get(_COUNTERS)
    if isinstance(counters, dict):  # LangGraph's own savers read these pairs back as lists
        merged[_COUNTERS] = {k: list(v) if type(v) is tuple else v for k, v in counters.items()}
    for key, value in (config.get("metadata") or {}).items():
        if (
            key not in merged
            and key not in EXCLUDED_METADATA_KEYS
            and not key.startswith("__")
            and _jsonable(value, 0)
        ):
            merged[key] = value
    return merged


def _jsonable(value: Any, depth: int) -> bool:
    if value is None or type(value) in (str, bool, int, float):
        return True
    if depth > 32:
        return False
    if type(value) is list:
        return all(_jsonable(item, depth + 1) for item in value)
    return type(value) is dict and all(
        type(key) is str and _jsonable(item, depth + 1) for key, item in value.items()
    )


_ABSENT = object()


def matches(stored: Mapping[str, Any], filter: Mapping[str, Any]) -> bool:
    """Whether metadata have all the wanted values.

    A key matches literally; one with dots that is not there is tried as a path into nested
    dicts, as ``SqliteSaver`` reads it. A wanted None matches a missing key.
    """
    for key, wanted in filter.items():
        found = stored.get(key, _ABSENT)
        if found is _ABSENT:
            found = _nested(stored, key) if isinstance(key, str) and "." in key else None
        if not _same(found, wanted):
            return False
    return True


def _nested(stored: Any, path: str) -> Any:
    for step in path.split("."):
        if not isinstance(stored, Mapping) or step not in stored:
            return None
        stored = stored[step]
    return stored


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(found, float) and isinstance(wanted, float):
        return found == wanted or (math.isnan(found) and math.isnan(wanted))
    try:
        return bool(found == wanted)
    except Exception:  # noqa: BLE001 - a foreign __eq__ that fails is no match, for nobody else
        return False


def is_root(config: RunnableConfig) -> bool:
    """Whether a graph that runs with this config, on a thread, is no part of another one's run."""
    configurable = config.get("configurable") or {}
    inner = ("__pregel_task_id", "__pregel_checkpointer")
    return configurable.get("thread_id") is not None and not any(
        name in configurable for name in inner
    )


def in_run(config: RunnableConfig) -> bool:
    """Whether a graph that runs uses this config, and not somebody who updates or looks at a thread."""
    return "__pregel_runtime" in (config.get("configurable") or {})


def begins_run(config: RunnableConfig) -> bool:
    """Whether a graph's run begins by reading with this config: not a task's, not a user's look."""
    configurable = config.get("configurable") or {}
    return (
        in_run(config)
        and "__pregel_task_id" not in configurable
        and not configurable.get("checkpoint_ns")
    )
