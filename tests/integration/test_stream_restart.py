"""An answer that begins anew after a crash and is another one: what was shown does not count."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult

from langgraph_resilient import Replayer, ResilienceMiddleware, ResilientSaver

WHERE: Any = {"configurable": {"thread_id": "t"}}
USAGE: Any = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
CALL: Any = {"name": "pay", "args": "{}", "id": "c", "index": 0}


class Scripted(BaseChatModel):
    """Streams chunks; an exception among them is raised."""

    script: list[Any]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **more: Any) -> Any:
        return self

    def _generate(self, *args: Any, **more: Any) -> ChatResult:
        raise NotImplementedError

    def _stream(self, *args: Any, **more: Any) -> Iterator[ChatGenerationChunk]:
        for chunk in self.script:
            if isinstance(chunk, Exception):
                raise chunk
            yield ChatGenerationChunk(message=chunk)


def pay() -> str:
    """Pay."""
    return "paid"


def resumed(saver: ResilientSaver, first: list[Any], then: list[Any]) -> tuple[str, Any]:
    """What a user has on the screen at the end, and the first answer in the state."""

    def agent(script: list[Any]) -> Any:
        middleware = [ResilienceMiddleware(continuation="restart", pure=["pay"])]
        return create_agent(
            Scripted(script=script),
            [pay],
            checkpointer=saver,
            middleware=middleware,
            interrupt_after=["model"],
        )

    with pytest.raises(ConnectionResetError):
        crashed = agent([*first, ConnectionResetError()])
        list(crashed.stream({"messages": ["x"]}, WHERE, stream_mode="messages"))
    screen = ""
    graph = agent(then)
    for chunk, _ in graph.stream(None, WHERE, stream_mode="messages"):
        screen = "" if chunk.response_metadata.get("resilient_reset") else screen + chunk.text
    return screen, graph.get_state(WHERE).values["messages"][1]


@pytest.fixture
def saver() -> Iterator[ResilientSaver]:
    with ResilientSaver.from_conn_string(":memory:") as opened:
        yield opened


SHOWN = [AIMessageChunk("Once "), AIMessageChunk("upon "), AIMessageChunk("a time")]
LAST = AIMessageChunk("", usage_metadata=USAGE, response_metadata={"finish_reason": "stop"})


def test_an_answer_that_is_shorter_resets_what_was_shown(saver: ResilientSaver) -> None:
    screen, answer = resumed(saver, SHOWN, [AIMessageChunk("Once upon"), LAST])
    assert screen == answer.content == "Once upon"
    assert answer.usage_metadata == USAGE
    assert answer.response_metadata["finish_reason"] == "stop"


def test_a_tool_call_in_place_of_a_text_resets_it(saver: ResilientSaver) -> None:
    call = AIMessageChunk("", tool_call_chunks=[CALL])
    screen, answer = resumed(saver, SHOWN, [AIMessageChunk("Once "), call, LAST])
    assert screen == answer.content == "Once "
    assert [(c["name"], c["id"]) for c in answer.tool_calls] == [("pay", "c")]


def test_the_same_answer_resets_nothing(saver: ResilientSaver) -> None:
    screen, answer = resumed(saver, SHOWN, [AIMessageChunk("Once upon a time there"), LAST])
    assert screen == answer.content == "Once upon a time there"


def test_a_model_that_streams_in_one_way_only_serves_coroutines_too(saver: ResilientSaver) -> None:
    async def run() -> tuple[list[str], Any]:
        middleware = [ResilienceMiddleware(pure=["pay"])]
        model = Scripted(script=[AIMessageChunk("Once "), AIMessageChunk("upon"), LAST])
        graph = create_agent(model, [pay], checkpointer=saver, middleware=middleware)
        shown = [
            chunk.text
            async for chunk, _ in graph.astream({"messages": ["x"]}, WHERE, stream_mode="messages")
        ]
        report = await Replayer(graph, saver, "t").arun()
        return shown, report

    shown, report = asyncio.run(run())
    assert "".join(shown) == "Once upon"
    assert (report.equal, report.calls) == (True, 1)
