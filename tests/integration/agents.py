"""Agents for the ledger's tests: models that follow a script, graphs, both ways to run them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph

from langgraph_resilient import ResilienceMiddleware, ResilientSaver, tool_node

MODES = ("invoke", "ainvoke")


class Scripted(BaseChatModel):
    """Answers by how many AI messages the conversation holds; the last reply is repeated.

    The same point of a conversation gets the same words, in a new message with an id of its own.
    """

    replies: list[Any]
    seen: list[list[BaseMessage]] = []

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any
    ) -> ChatResult:
        self.seen.append(list(messages))
        turn = sum(isinstance(message, AIMessage) for message in messages)
        reply = self.replies[min(turn, len(self.replies) - 1)]
        made = reply(messages) if callable(reply) else reply.model_copy(deep=True)
        return ChatResult(generations=[ChatGeneration(message=made)])

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self


def call(name: str, id: str | None = None, **args: Any) -> dict[str, Any]:
    """A tool call as a model makes it."""
    return {"name": name, "args": args, "id": id or f"call_{name}", "type": "tool_call"}


def calling(*calls: Mapping[str, Any], **more: Any) -> AIMessage:
    """An AI message that asks for calls."""
    return AIMessage(content="", tool_calls=[dict(one) for one in calls], **more)


def script(*replies: Any) -> Scripted:
    """A model that gives these replies, and then says ``done``."""
    return Scripted(replies=[*replies, AIMessage("done")], seen=[])


def asking(*calls: Mapping[str, Any]) -> Scripted:
    """A model that asks for these calls at once, and then says ``done``."""
    return script(calling(*calls))


def agent(
    model: Any,
    tools: Sequence[Any],
    saver: Any,
    *,
    before: Sequence[Any] = (),
    more: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """``create_agent`` with the middleware last."""
    return create_agent(
        model,
        list(tools),
        middleware=[*before, ResilienceMiddleware(**options)],
        checkpointer=saver,
        **(more or {}),
    )


def graph(model: Any, node: Any, saver: Any) -> Any:
    """Model and tool node in a plain graph, until the model asks for nothing more."""

    def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    def onward(state: MessagesState) -> str:
        return "tools" if getattr(state["messages"][-1], "tool_calls", None) else END

    builder = StateGraph(MessagesState)
    builder.add_node("model", think)
    builder.add_node("tools", node)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", onward)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


def built(kind: str, model: Any, tools: Sequence[Any], saver: Any, **options: Any) -> Any:
    """The same agent by ``create_agent`` (``agent``) or with `tool_node` (``node``)."""
    if kind == "agent":
        return agent(model, tools, saver, **options)
    if "tools" in options:
        options["policies"] = options.pop("tools")
    return graph(model, tool_node(tools, **options), saver)


KINDS = ("agent", "node")
USER = {"messages": [HumanMessage("go")]}


def where(thread_id: Any = "t", **more: Any) -> dict[str, Any]:
    """A run config."""
    return {"configurable": {"thread_id": thread_id, **more}}


def run(mode: str, made: Any, given: Any = None, config: Any = None, **more: Any) -> Any:
    """Invoke a graph, in this thread or in an event loop."""
    config = where() if config is None else config
    if mode == "invoke":
        return made.invoke(given, config, **more)
    return asyncio.run(made.ainvoke(given, config, **more))


def begin(mode: str, made: Any, config: Any = None, **more: Any) -> Any:
    """Run from a user's message."""
    return run(mode, made, {"messages": [HumanMessage("go", id=str(uuid.uuid4()))]}, config, **more)


def answers(state: Mapping[str, Any]) -> list[ToolMessage]:
    """The tool messages of a state."""
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


def said(state: Mapping[str, Any]) -> list[Any]:
    """What the tools said."""
    return [message.content for message in answers(state)]


def before(made: Any, node: str = "tools", thread_id: str = "t", *, last: bool = True) -> Any:
    """The config of the newest (or oldest) checkpoint from which `node` runs next."""
    found = [
        snapshot.config
        for snapshot in made.get_state_history(where(thread_id))
        if node in snapshot.next
    ]
    return found[0 if last else -1]


def again(mode: str, made: Any, node: str = "tools", **more: Any) -> Any:
    """Run once more from the checkpoint before the tools, as a resume after a crash does."""
    config = before(made, node)
    return run(mode, made, None, {"configurable": {**config["configurable"], **more}})


def entry(saver: ResilientSaver, tool: str, thread_id: str = "t") -> Any:
    """The only recorded call of a tool."""
    [found] = [one for one in saver.ledger.entries(thread_id) if one.tool == tool]
    return found


def state_of(saver: ResilientSaver, tool: str, thread_id: str = "t") -> str:
    """The state of the only recorded call of a tool; empty when it was not begun yet."""
    return dict(states(saver, thread_id)).get(tool, "")


def states(saver: ResilientSaver, thread_id: str = "t") -> list[tuple[str, str]]:
    """Name and state of each recorded call, sorted."""
    return sorted((one.tool, one.state) for one in saver.ledger.entries(thread_id))


def replays(saver: ResilientSaver) -> list[str]:
    """The tools that were answered from the ledger."""
    return sorted(tool for _, tool, _ in saver.ledger.book.replays)
