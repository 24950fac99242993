"""What a graph is made of, as data: equal in every process, whatever hash seeds and addresses."""

from __future__ import annotations

import functools
import json
import operator
import os
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pytest
from building import plain_id
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from langgraph_resilient import durable, tool_node
from langgraph_resilient.guard.environment import environment_of, name_of_type, tools_of

ROOT = Path(__file__).parents[2]


class Point(BaseModel):
    x: int


TYPES: list[tuple[Any, str]] = [
    (int, "int"),
    (None, "None"),
    (list[int], "list[int]"),
    (dict[str, list[Any]], "dict[str, list[Any]]"),
    (Annotated[list[int], operator.add], "list[int]"),
    (int | None, "None | int"),
    (typing.Optional[int], "None | int"),  # noqa: UP045 - the old way to say it
    (typing.Union[str, int], "int | str"),  # noqa: UP007
    (Literal["b", "a"], "Literal[\"'a'\", \"'b'\"]"),
    (list[AnyMessage], "list[AnyMessage]"),
    (AIMessage | HumanMessage, "AnyMessage"),
    (typing.Callable[[int], str], "collections.abc.Callable[[int], str]"),
    (Point, f"{__name__}.Point"),
    ("Later", "Later"),
    (typing.ForwardRef("Later"), "Later"),
    (typing.TypeVar("T"), f"{__name__}.T"),
]


@pytest.mark.parametrize(("kind", "name"), TYPES, ids=plain_id)
def test_a_type_has_a_name(kind: Any, name: str) -> None:
    assert name_of_type(kind) == name


def test_a_long_name_is_cut_and_stays_different() -> None:
    long = [Literal[tuple(f"value {n}" for n in range(50 + more))] for more in (0, 1)]
    first, second = map(name_of_type, long)
    assert len(first) == len(second) < 140
    assert first != second


@tool
def search(query: str) -> str:
    """Search the web."""
    return query


@tool("search")
def reworded(query: str) -> str:
    """Look for pages."""
    return query


@tool("search")
def widened(query: str, pages: int = 1) -> str:
    """Search the web."""
    return query


def environment(*tools: Any, **more: Any) -> dict[str, Any]:
    builder = StateGraph(MessagesState)
    builder.add_node("tools", tool_node(tools or [search]))
    builder.add_edge(START, "tools")
    return environment_of(builder.compile(), **more)


def test_other_words_make_no_other_tool_and_other_arguments_do() -> None:
    assert environment(search)["tools"] == environment(reworded)["tools"]
    assert environment(search)["tools"] != environment(widened)["tools"]


def test_it_is_plain_data() -> None:
    found = environment(search)
    assert json.loads(json.dumps(found)) == found
    assert found["graph"]["nodes"] == {"__start__": ["__start__"], "tools": ["branch:to:tools"]}
    assert found["graph"]["edges"] == ["__start__ -> tools"]
    assert found["graph"]["channels"]["messages"][0] == "BinaryOperatorAggregate[list[AnyMessage]]"
    assert "branch:to:tools" not in found["graph"]["channels"]


def model() -> Any:
    return GenericFakeChatModel(messages=iter(()))


def asks_at_once(state: MessagesState) -> dict:
    return {"messages": [LONE.invoke(state["messages"])]}


LONE = model()


class Asks:
    def __init__(self) -> None:
        self.model = durable(model())

    def node(self, state: MessagesState) -> dict:
        return {"messages": [self.model.invoke(state["messages"])]}


def nested() -> Any:
    inner = model()

    def helper(state: Any) -> Any:
        return inner.invoke(state)

    return lambda state: {"messages": [helper(state)]}


NODES = {
    "method": Asks().node,
    "global": asks_at_once,
    "helper": nested(),
    "bound": model().bind(stop=["x"]),
    "chain": model() | (lambda said: {"messages": [said]}),
}


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_a_nodes_model_is_found(node: Any) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("ask", node)
    builder.add_edge(START, "ask")
    found = environment_of(builder.compile())["models"]
    assert list(found) == ["ask"]
    assert "generic" in found["ask"]


class Proxy:
    """Like a proxy of a web framework outside of a request."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("working outside of context")


def test_what_is_not_langchains_is_not_touched() -> None:
    proxy = Proxy()
    builder = StateGraph(MessagesState)
    builder.add_node("ask", lambda state: {"messages": [proxy.ask(state)]})
    builder.add_edge(START, "ask")
    assert environment_of(builder.compile())["models"] == {}


@tool
def odd(query: Callable[[int], int]) -> str:
    """Take what JSON does not know."""
    return str(query)


def test_a_tool_whose_arguments_json_does_not_know_has_a_digest() -> None:
    assert len(environment(odd)["tools"]["odd"]) == 16


def test_models_and_packages_can_be_named() -> None:
    found = environment(search, models=[model()], packages=["pytest", "no-such-package"])
    assert list(found["models"]) == ["given 1"]
    assert found["packages"]["pytest"] == pytest.__version__
    assert "no-such-package" not in found["packages"]


def test_subgraphs_and_functional_graphs_are_looked_into() -> None:
    inner = StateGraph(MessagesState)
    inner.add_node("tools", tool_node([search]))
    inner.add_edge(START, "tools")
    outer = StateGraph(MessagesState)
    outer.add_node("sub", inner.compile())
    outer.add_edge(START, "sub")
    graph = outer.compile()
    found = environment_of(graph)
    assert "sub|tools" in found["graph"]["nodes"]
    assert list(found["tools"]) == ["search"]
    assert tools_of(graph) == {"search": search}

    @entrypoint()
    def flow(given: int) -> int:
        return given

    assert list(environment_of(flow)["graph"]["nodes"]) == ["flow"]


CODE = """
import json, typing
from test_guard_environment import environment, model, Reduced, reduced
print(json.dumps([environment(models=[model()]), reduced()]))
"""


class Reduced(TypedDict):
    said: Annotated[list[Literal["a", "b"] | int | None], functools.partial(operator.add)]


def reduced() -> dict[str, Any]:
    builder = StateGraph(Reduced)
    builder.add_node("say", lambda _: {})
    builder.add_edge(START, "say")
    return environment_of(builder.compile())


def test_it_is_equal_in_every_process() -> None:
    found = set()
    for seed in ("1", "2"):
        paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests", Path(__file__).parent)))
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        done = subprocess.run(
            [sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=True
        )
        found.add(done.stdout)
    assert len(found) == 1
