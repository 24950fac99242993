"""Graphs for the guard's tests: lines of nodes of which one fails, and the question that follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from agents import run
from langgraph.graph import END, START, StateGraph

from langgraph_resilient import ResilientSaver, guarded


class Down(Exception):
    """A step fails, and the run stops before its end."""


class State(TypedDict, total=False):
    said: Annotated[list, lambda old, new: [*old, *new]]
    number: int


def line(*names: str, failing: str = "", state: Any = State) -> StateGraph:
    """Nodes that run one after the other and note their name; one may fail."""

    def node(name: str) -> Callable[[Any], dict]:
        def step(_: Any) -> dict:
            if name == failing:
                raise Down(name)
            return {"said": [name]}

        return step

    builder = StateGraph(state)
    for name in names:
        builder.add_node(name, node(name))
    for left, right in zip([START, *names], [*names, END], strict=True):
        builder.add_edge(left, right)
    return builder


def stop_before(
    saver: ResilientSaver, builder: StateGraph, mode: str = "invoke", **more: Any
) -> None:
    """Run until the failing node."""
    graph = guarded(builder.compile(checkpointer=saver), **more)
    with pytest.raises(Down):
        run(mode, graph, {"said": ["input"]})


def question(state: Any) -> Any:
    [asked] = state["__interrupt__"]
    assert asked.value["kind"] == "environment_changed"
    return asked
