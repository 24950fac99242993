"""Savers on a file, as context managers, for test suites that are given a factory by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph_resilient.integrations.models import journaled
from langgraph_resilient.integrations.repair import repair_messages
from langgraph_resilient.integrations.toolnode import recorded_tools
from langgraph_resilient.saver import ResilientSaver


def _tools(saver: ResilientSaver, tools: Sequence[Any]) -> list[Any]:
    return list(recorded_tools(tools, saver=saver))


def _heal(saver: ResilientSaver, messages: Sequence[Any]) -> list[Any]:
    return repair_messages(messages, saver)


def _model(saver: ResilientSaver, function: Any) -> Any:
    return journaled(function, saver=saver)


def _emit(saver: ResilientSaver, config: Any) -> Any:
    return saver.emitter(config["configurable"]["thread_id"])


def _replay(saver: ResilientSaver, config: Any) -> list[str]:
    return [piece.text for piece in saver.stream(config["configurable"]["thread_id"])]


class _Factory:
    """Called with a path, gives a context manager for a saver on that file.

    Attributes:
        hooks: what a richer test suite may plug in, by name: ``tools(saver, tools)`` records
            tools, ``heal(saver, messages)`` mends a history before a model sees it,
            ``model(saver, function)`` journals a function that asks a model, ``emit(saver, config)``
            gives a function that stores a streamed token, ``replay(saver, config)`` the stored ones.
    """

    def __init__(self) -> None:
        self.hooks: dict[str, Any] = {
            "tools": _tools,
            "heal": _heal,
            "model": _model,
            "emit": _emit,
            "replay": _replay,
        }

    def __call__(self, path: str) -> Any:
        return ResilientSaver.from_conn_string(path)


make_saver: Any = _Factory()
"""``with make_saver(path) as saver``"""
amake_saver: Any = _Factory()
"""``async with amake_saver(path) as saver``"""
