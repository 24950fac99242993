"""Agents with effects in the outside world, built in three ways, with a saver of either kind."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from pydantic import BaseModel
from worldlog import WorldLog

from langgraph_resilient import ResilienceMiddleware, current_call, effect
from langgraph_resilient.integrations.toolnode import tool_node
from langgraph_resilient.testing import fault_point
from langgraph_resilient.testing.faults import active

BUILDS = ("agent", "toolnode", "subagent")
SHAPES: dict[str, list[tuple[str, str, str]]] = {
    # tool, label, tool call id
    "one": [("order", "tea", "c1")],
    "mail": [("mail", "hello", "c1")],
    "three": [("order", "tea", "c1"), ("mail", "hello", "c2"), ("order", "milk", "c3")],
    "equal": [("order", "tea", "c1"), ("order", "tea", "c2"), ("order", "tea", "c3")],
    # Providers reuse ids: nothing but its place tells such a call from the other one.
    "twins": [("mail", "hello", "c1"), ("mail", "hello", "c1")],
}
INPUT = {"messages": [HumanMessage("go", id="human")]}


class _Labelled(BaseModel):
    """What a tool takes; made once, because making it costs more than a run."""

    label: str


class Model(BaseChatModel):
    """Asks for the calls, and when they are answered says "done".

    Its messages and calls have the same ids in every run. A real model that is asked again gives
    new ones: where a run is lost before its first checkpoint, only a recorded answer of the model
    can lead back to the recorded calls, and that is not the ledger's work.
    """

    name_: str
    calls: list[dict[str, Any]]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        fault_point("model")
        if isinstance(messages[-1], ToolMessage):
            answer = AIMessage("done", id=f"{self.name_}-2")
        else:
            answer = AIMessage("", tool_calls=self.calls, id=f"{self.name_}-1")
        return ChatResult(generations=[ChatGeneration(message=answer)])


class Gate:
    """The moment when all calls of a message have come back and nothing of that is stored.

    Args:
        calls: how many calls the message has.
    """

    def __init__(self, calls: int):
        self._calls = calls
        self._back = 0
        self._lock = threading.Lock()
        self._all = threading.Event()

    def _arrived(self) -> bool:
        """Note a call that came back; whether it must wait for the end."""
        fault_point("call.returned")
        with self._lock:  # protects the count
            self._back += 1
            last = self._back == self._calls
        if last:
            fault_point("tools.done")
        faults = active()
        return faults is not None and faults.point == "tools.done" and not last

    def pass_through(self) -> None:
        """A call came back."""
        if self._arrived():
            self._all.wait()

    async def apass_through(self) -> None:
        """The same in a coroutine."""
        if self._arrived():
            await asyncio.Event().wait()


class _GateMiddleware(AgentMiddleware):
    """The outermost wrapper of an agent's tool calls."""

    def __init__(self, gate: Gate):
        super().__init__()
        self._gate = gate

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        result = handler(request)
        self._gate.pass_through()
        return result

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        result = await handler(request)
        await self._gate.apass_through()
        return result


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """Builds the agents of a sweep.

    Attributes:
        log: where effects happen.
        build: see `BUILDS`.
        shape: see `SHAPES`.
        recorded: whether tool calls go through the ledger.
        is_async: whether tools and nodes are coroutines.
        errors_told: whether a tool node turns exceptions into messages.
        seconds: how long a tool goes on after its effect.
    """

    log: WorldLog
    build: str
    shape: str
    recorded: bool
    is_async: bool
    errors_told: bool = False
    seconds: float = 0.0

    def graph(self, saver: Any) -> Any:
        """The whole graph, compiled with a saver."""
        if self.build == "toolnode":
            return self._by_hand(saver)
        if self.build == "agent":
            return self._agent(self._model("ai"), self._tools(), saver, self._gate())
        outer = [{"name": "delegate", "args": {"task": "go"}, "id": "d1", "type": "tool_call"}]
        return self._agent(self._model("outer", outer), [self._delegate()], saver)

    # --- tools --------------------------------------------------------------------------------

    def _effect(self, kind: str, label: str) -> str:
        current = current_call()
        key = "" if current is None else current.idempotency_key
        receipt = self.log.act(kind, label, key)
        time.sleep(self.seconds)
        return receipt

    def _tools(self) -> list[BaseTool]:
        return [self._tool("order"), self._tool("mail")]

    def _tool(self, kind: str) -> BaseTool:
        def run(label: str) -> str:
            return self._effect(kind, label)

        async def arun(label: str) -> str:
            return await asyncio.to_thread(self._effect, kind, label)

        made = StructuredTool.from_function(
            func=None if self.is_async else run,
            coroutine=arun if self.is_async else None,
            name=kind,
            description=kind,
            args_schema=_Labelled,
        )
        return effect("external")(made)

    def _delegate(self) -> BaseTool:
        inner = self._agent(self._model("inner"), self._tools(), None, self._gate())
        given = {"messages": [HumanMessage("go", id="inner-human")]}

        def told(out: Any) -> str:
            return json.dumps([m.content for m in out["messages"] if isinstance(m, ToolMessage)])

        def run(task: str, config: RunnableConfig) -> str:
            return told(inner.invoke(given, config))

        async def arun(task: str, config: RunnableConfig) -> str:
            return told(await inner.ainvoke(given, config))

        made = StructuredTool.from_function(
            func=None if self.is_async else run,
            coroutine=arun if self.is_async else None,
            name="delegate",
            description="delegate",
        )
        # It only orchestrates: what has effects is recorded inside, so it may run again.
        return effect("idempotent")(made)

    # --- graphs -------------------------------------------------------------------------------

    def _calls(self) -> list[dict[str, Any]]:
        return [
            {"name": tool, "args": {"label": label}, "id": id, "type": "tool_call"}
            for tool, label, id in SHAPES[self.shape]
        ]

    def _model(self, name: str, calls: list[dict[str, Any]] | None = None) -> Model:
        return Model(
            name_=name,
            calls=self._calls() if calls is None else calls,
        )

    def _gate(self) -> Gate:
        return Gate(len(SHAPES[self.shape]))

    def _agent(
        self, model: Model, tools: Sequence[BaseTool], saver: Any, gate: Gate | None = None
    ) -> Any:
        middleware: list[Any] = [] if gate is None else [_GateMiddleware(gate)]
        if self.recorded:
            middleware.append(ResilienceMiddleware())
        return create_agent(model, list(tools), middleware=middleware, checkpointer=saver)

    def _by_hand(self, saver: Any) -> Any:
        model = self._model("ai")
        make: Any = tool_node if self.recorded else ToolNode
        node = make(self._tools(), handle_tool_errors=self.errors_told)

        def ask(state: Any) -> Any:
            return {"messages": [model.invoke(state["messages"])]}

        def tools(state: Any, config: RunnableConfig) -> Any:
            found = node.invoke(state, config)
            fault_point("tools.done")
            return found

        async def atools(state: Any, config: RunnableConfig) -> Any:
            found = await node.ainvoke(state, config)
            fault_point("tools.done")
            return found

        def route(state: Any) -> str:
            return "tools" if state["messages"][-1].tool_calls else END

        builder = StateGraph(MessagesState)
        builder.add_node("model", ask)
        builder.add_node("tools", atools if self.is_async else tools)
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", route, ["tools", END])
        builder.add_edge("tools", "model")
        return builder.compile(checkpointer=saver)
