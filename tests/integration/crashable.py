"""Graphs for the crash kit's tests: they can be pickled, and are built anew in each child."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from langgraph_resilient import ResilienceMiddleware, durable, effect, guarded, once, tool_node
from langgraph_resilient.testing import EffectLog, fault_point

INPUT: Any = {"messages": [("user", "tell Ann")]}


class Streaming(BaseChatModel):
    """Calls a tool, and when it is answered says so in three pieces. Ids are drawn anew."""

    tool: str = "mail"

    @property
    def _llm_type(self) -> str:
        return "streaming"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _answer(self, messages: list[BaseMessage]) -> list[AIMessageChunk]:
        # Not by the last message: one that asks to go on with an answer that was cut may follow.
        if any(isinstance(message, ToolMessage) for message in messages):
            return [AIMessageChunk(content=piece) for piece in ("It ", "is ", "sent.")]
        call = {
            "name": self.tool,
            "args": '{"to": "Ann"}',
            "id": uuid.uuid4().hex,
            "index": 0,
            "type": "tool_call_chunk",
        }
        return [AIMessageChunk(content="", tool_call_chunks=[call])]

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        first, *others = self._answer(messages)
        whole = first
        for chunk in others:
            whole = whole + chunk
        answer = AIMessage(whole.content, tool_calls=whole.tool_calls)
        return ChatResult(generations=[ChatGeneration(message=answer)])

    def _stream(
        self, messages: list[BaseMessage], *_: Any, **__: Any
    ) -> Iterator[ChatGenerationChunk]:
        for chunk in self._answer(messages):
            yield ChatGenerationChunk(message=chunk)


@dataclass(frozen=True, kw_only=True)
class Factory:
    """Makes an agent of a model and one tool.

    Attributes:
        log: what the tool writes to.
        body: what the tool does; see `BODIES`.
        kind: its effect class.
        recorded: whether model and tool calls are.
        is_agent: whether ``create_agent`` makes the graph.
        is_guarded: whether the graph is guarded.
        careless: whether the node that merges the pieces of an answer forgets none when it is told.
    """

    log: EffectLog
    body: str = "mail"
    kind: Any = "external"
    recorded: bool = True
    is_agent: bool = False
    careless: bool = False
    is_guarded: bool = False

    def __call__(self, saver: Any) -> Any:
        made = self._made(saver)
        return guarded(made, on_change="raise") if self.is_guarded else made

    def _made(self, saver: Any) -> Any:
        tool: BaseTool = StructuredTool.from_function(
            lambda to: getattr(self, f"_{self.body}")(to), name="mail", description="Mail."
        )
        model: Any = Streaming()
        if self.is_agent:
            middleware = [ResilienceMiddleware()]
            tools = [effect(self.kind)(tool)]
            return create_agent(model, tools, middleware=middleware, checkpointer=saver)
        if self.recorded:
            tool, model = effect(self.kind)(tool), durable(model)

        def ask(state: MessagesState) -> Any:
            whole = None
            for chunk in model.stream(state["messages"]):
                if chunk.response_metadata.get("resilient_reset") and not self.careless:
                    whole = None
                whole = chunk if whole is None else whole + chunk
            return {"messages": [whole]}

        builder = StateGraph(MessagesState)
        builder.add_node("model", ask)
        builder.add_node("tools", tool_node([tool]) if self.recorded else ToolNode([tool]))
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", after_model, ["tools", END])
        builder.add_edge("tools", "model")
        return builder.compile(checkpointer=saver)

    def _mail(self, to: str) -> str:
        self.log.record("mail")
        return f"mailed {to}"

    def _keyed(self, to: str) -> str:
        """The receipt is another one each time: only the log knows it."""
        receipt = f"receipt {uuid.uuid4().hex}"
        self.log.record("mail", f"to {to}", result=receipt)
        return receipt

    def _twice(self, to: str) -> str:
        self.log.record("reserve")
        self.log.record("book")
        return f"booked for {to}"

    def _steps(self, to: str) -> str:
        once("reserve", lambda: self.log.record("reserve", result="ok"))
        once("book", lambda: self.log.record("book", result="ok"))
        return f"booked for {to}"

    def _pointed(self, to: str) -> str:
        fault_point("mail.half")
        return self._mail(to)

    def _dice(self, to: str) -> str:
        return f"mailed {to} {uuid.uuid4()}"

    def _broken(self, to: str) -> str:
        raise ZeroDivisionError(to)

    def _slow_again(self, to: str) -> str:
        """Comes to no end when it runs a second time."""
        if self.log.entries():
            time.sleep(600)
        return self._mail(to)


def after_model(state: MessagesState) -> str:
    return "tools" if state["messages"][-1].tool_calls else END
