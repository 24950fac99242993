"""Graphs around real clients, for the tests of journal and stream: one node, crashes, both ways."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

from langgraph_resilient import ResilientSaver

WAYS = ("invoke", "stream", "batch", "ainvoke", "astream", "abatch", "astream_events")
TOKENS = ("invoke", "ainvoke")


class State(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    seen: list[Any]


class Lost(ConnectionError):
    """A line that is lost behind the model calls: says nothing against their answers."""


class Crash:
    """Raises the first times it is asked."""

    def __init__(self, times: int = 1, error: type[BaseException] = Lost):
        self._left = times
        self._error = error

    def __call__(self) -> None:
        self._left -= 1
        if self._left >= 0:
            raise self._error("lost behind the model call")


def spread(*axes: Any, keep: Callable[..., bool]) -> list[Any]:
    """The product of axes; what is not kept runs in the campaign only."""
    return [
        pytest.param(*values, marks=() if keep(*values) else (pytest.mark.campaign,))
        for values in itertools.product(*axes)
    ]


def where(thread_id: str = "t", **more: Any) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread_id, **more}}


def user(text: str = "go", **more: Any) -> dict[str, Any]:
    return {"messages": [HumanMessage(text, **more)]}


def is_async(way: str) -> bool:
    return way.startswith("a")


def merged(chunks: list[Any]) -> Any:
    """The message that chunks make, for a node that forgets what a reset tells to forget."""
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = chunk if is_reset(chunk) else whole + chunk
    return whole


def asked(model: Any, way: str, messages: Any) -> Any:
    """Ask a model in one of the ways; the answer."""
    if way == "invoke":
        return model.invoke(messages)
    if way == "batch":
        return model.batch([messages])[0]
    return merged(list(model.stream(messages)))


async def aasked(model: Any, way: str, messages: Any) -> Any:
    """`asked`, for the ways of coroutines."""
    if way == "ainvoke":
        return await model.ainvoke(messages)
    if way == "abatch":
        return (await model.abatch([messages]))[0]
    if way == "astream":
        return merged([chunk async for chunk in model.astream(messages)])
    events = [event async for event in model.astream_events(messages, version="v2")]
    return events[-1]["data"]["output"]


def thinking(
    model: Any, saver: Any, way: str = "invoke", behind: Callable[[], None] = lambda: None
) -> Any:
    """One node that asks the model in a way, then does `behind`."""

    def node(state: State) -> Any:
        answer = asked(model, way, state["messages"])
        behind()
        return {"messages": [answer]}

    async def anode(state: State) -> Any:
        answer = await aasked(model, way, state["messages"])
        behind()
        return {"messages": [answer]}

    return one_node(anode if is_async(way) else node, saver)


def one_node(node: Any, saver: Any, **options: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("think", node, **options)
    builder.add_edge(START, "think")
    builder.add_edge("think", END)
    return builder.compile(checkpointer=saver)


def run(made: Any, given: Any, way: str = "invoke", config: Any = None, **more: Any) -> Any:
    """Run a graph in the manner that a way of asking needs."""
    config = config or where()
    if is_async(way):
        return asyncio.run(made.ainvoke(given, config, **more))
    return made.invoke(given, config, **more)


def tokens(made: Any, given: Any, *, asynchronous: bool = False, config: Any = None) -> list[Any]:
    """What `stream_mode="messages"` shows: message chunks."""
    config = config or where()
    if not asynchronous:
        return [m for m, _ in made.stream(given, config, stream_mode="messages")]

    async def gathered() -> list[Any]:
        return [m async for m, _ in made.astream(given, config, stream_mode="messages")]

    return asyncio.run(gathered())


def is_reset(chunk: Any) -> bool:
    return bool(chunk.response_metadata.get("resilient_reset"))


def is_replayed(chunk: Any) -> bool:
    return bool(chunk.response_metadata.get("resilient_replayed"))


def shown(chunks: list[Any]) -> str:
    """The text a user sees who forgets what a reset tells to forget."""
    text = ""
    for chunk in chunks:
        text = "" if is_reset(chunk) else text + str(chunk.text)
    return text


def last(state: Mapping[str, Any]) -> AIMessage:
    return state["messages"][-1]  # type: ignore[no-any-return]


def plain(message: Any) -> dict[str, Any]:
    """A message without what differs from generation to generation."""
    found = message.model_dump()
    found["type"] = "ai"
    for name in ("id", "tool_call_chunks", "chunk_position"):
        found.pop(name, None)
    found["response_metadata"].pop("id", None)
    for one in found["tool_calls"]:
        one["id"] = None
    if isinstance(found["content"], list):
        for block in found["content"]:
            if isinstance(block, dict):
                block.pop("id", None)
                block.pop("call_id", None)
                (block.get("extras") or {}).pop("item_id", None)
    return found


def states(saver: ResilientSaver, thread_id: str = "t") -> list[str]:
    return [entry.state for entry in saver.journal.entries(thread_id)]


__all__ = [
    "TOKENS",
    "WAYS",
    "AIMessageChunk",
    "Crash",
    "Lost",
    "State",
    "aasked",
    "asked",
    "is_async",
    "is_replayed",
    "is_reset",
    "last",
    "merged",
    "one_node",
    "plain",
    "run",
    "shown",
    "spread",
    "states",
    "thinking",
    "tokens",
    "user",
    "where",
]
