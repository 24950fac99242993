"""The child process of the replay: a graph whose model and tools answer from the record.

``python -m langgraph_resilient.demo.replay`` works through the conversations one after another,
each on a thread of its own, and goes on where the database says it had stopped. What it answers
next follows from the stored state alone: the record is asked by the number of messages there.
The model's calls go through the journal and the tools through the ledger, so that a call that has
ended never runs again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langchain_core.tools import BaseTool
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import PrivateAttr

from langgraph_resilient.demo.calls import FINISHED, STARTED, CallLog
from langgraph_resilient.demo.process import file_bytes, open_saver, remove_database
from langgraph_resilient.demo.trajectory import Conversation, read_conversations
from langgraph_resilient.errors import DemoFailed
from langgraph_resilient.integrations.models import journaled
from langgraph_resilient.integrations.toolnode import recorded_tools


def tokens(message: BaseMessage) -> int:
    """Tokens of a model call as recorded, else a rough count of its answer, four a token."""
    usage = message.usage_metadata if isinstance(message, AIMessage) else None
    return (usage["total_tokens"] if usage else 0) or max(1, len(str(message.content)) // 4)


def stretch(messages: Sequence[BaseMessage], start: int, kind: str) -> list[BaseMessage]:
    """The messages from ``start`` on, for as long as they are of that kind.

    The kinds are ``model`` (one message only), ``tool`` and ``input``.
    """
    end = start
    while end < len(messages) and answerer(messages, end) == kind:
        end += 1
        if kind == "model":
            break
    return list(messages[start:end])


def answerer(messages: Sequence[BaseMessage], place: int) -> str:
    """Who wrote the message at ``place``: ``model``, ``tool`` or ``input``; ``end`` after all."""
    if place >= len(messages):
        return "end"
    if isinstance(messages[place], AIMessage):
        return "model"
    return "tool" if isinstance(messages[place], ToolMessage) else "input"


class _Answers(BaseTool):
    """A tool that answers as recorded; which answer is asked for stands beside its input.

    Made anew of ``invoke``, because recorded arguments fit no schema that is known here.
    """

    description: str = "Answers as recorded."
    _answer: Callable[[int], BaseMessage] = PrivateAttr()

    def __init__(self, name: str, answer: Callable[[int], BaseMessage]):
        super().__init__(name=name)
        self._answer = answer

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """The answer at ``place``, a keyword."""
        return self._answer(kwargs["place"])

    def _run(self) -> Any:
        raise NotImplementedError


class _Tools:
    """The tools of a conversation. Every call goes through the ledger and takes ``latency`` seconds.

    They change nothing, so a call that was cut off runs again without a question.
    """

    def __init__(self, conversation: Conversation, log: CallLog, latency: float):
        self._messages = conversation.messages
        self._number = conversation.number
        self._log = log
        self._latency = latency
        self._tools: dict[str, BaseTool] = {}
        self._ran: set[int] = set()

    def __call__(self, places: Sequence[int], config: RunnableConfig) -> list[BaseMessage]:
        """Make the calls that have their answers there, at the same time."""
        requests = [self._request(place) for place in places]
        names = {(request["name"], request["id"]) for request in requests}
        # Calls that only their order tells apart are made in order.
        workers = len(places) if len(names) == len(places) else 1
        with ContextThreadPoolExecutor(max_workers=workers) as pool:
            return list(pool.map(self._call, places, requests, [config] * len(places)))

    def _call(self, place: int, request: dict[str, Any], config: RunnableConfig) -> BaseMessage:
        answer: BaseMessage = self._tool(request["name"]).invoke(request, config, place=place)
        if place in self._ran:  # only now is it recorded, and so finished
            self._write(place, FINISHED)
        return answer

    def _run(self, place: int) -> BaseMessage:
        self._write(place, STARTED)
        time.sleep(self._latency)
        self._ran.add(place)
        return self._messages[place]

    def _write(self, place: int, phase: str) -> None:
        self._log.write("tool", str(place), phase, conversation=self._number)

    def _tool(self, name: str) -> BaseTool:
        if name not in self._tools:
            tool = _Answers(name, self._run)
            (self._tools[name],) = recorded_tools([tool], default_effect="pure", passthrough=True)
        return self._tools[name]

    def _request(self, place: int) -> dict[str, Any]:
        """The tool call that has its answer there; one of its own where no such call is recorded."""
        answer = self._messages[place]
        assert isinstance(answer, ToolMessage)
        earlier = 0
        for message in reversed(self._messages[:place]):
            if isinstance(message, ToolMessage):
                earlier += message.tool_call_id == answer.tool_call_id
            elif isinstance(message, AIMessage):
                calls = [c for c in message.tool_calls if (c["id"] or "") == answer.tool_call_id]
                if earlier < len(calls):
                    return {**calls[earlier], "type": "tool_call"}
                earlier -= len(calls)
        name, arguments = answer.name or "tool", {"place": place}
        return {"name": name, "args": arguments, "id": answer.tool_call_id, "type": "tool_call"}


def build_graph(
    conversation: Conversation, log: CallLog, latency: float
) -> StateGraph[MessagesState]:
    """Model and tools that give the recorded messages; it ends where the user's turn is next.

    Each answer takes ``latency`` seconds; the tool calls of one message run at the same time.
    """
    messages = conversation.messages
    tools = _Tools(conversation, log, latency)
    asked: set[int] = set()

    def answer(prompt: list[BaseMessage]) -> BaseMessage:
        place = len(prompt)
        log.write("model", str(place), STARTED, conversation=conversation.number)
        time.sleep(latency)
        asked.add(place)
        return messages[place]

    model = journaled(answer, passthrough=True)

    def call_model(state: MessagesState) -> dict[str, list[BaseMessage]]:
        log.step()
        place = len(state["messages"])
        given = model(state["messages"])
        if place in asked:  # only now is it recorded, and so finished
            amount = tokens(given)
            log.write(
                "model", str(place), FINISHED, conversation=conversation.number, amount=amount
            )
        return {"messages": [given]}

    def call_tools(state: MessagesState, config: RunnableConfig) -> dict[str, list[BaseMessage]]:
        log.step()
        start = len(state["messages"])
        places = range(start, start + len(stretch(messages, start, "tool")))
        return {"messages": tools(places, config)}

    def onward(state: MessagesState) -> str:
        kind = answerer(messages, len(state["messages"]))
        return {"model": "model", "tool": "tools"}.get(kind, END)

    builder = StateGraph(MessagesState)
    builder.add_node("model", call_model)
    builder.add_node("tools", call_tools)
    for source in (START, "model", "tools"):
        builder.add_conditional_edges(source, onward, ["model", "tools", END])
    return builder


def carry_on(
    conversation: Conversation, log: CallLog, saver: Any, options: argparse.Namespace
) -> None:
    """Bring the conversation to its end from wherever its thread stands.

    Raises:
        DemoFailed: it does not come to its end.
    """
    graph = build_graph(conversation, log, options.latency).compile(checkpointer=saver)
    config: RunnableConfig = {
        "configurable": {"thread_id": conversation.thread_id},
        "recursion_limit": len(conversation.messages) + 10,
    }
    # Each round ends a turn of the user or carries one on, so that this is more than enough.
    for _ in range(2 * len(conversation.messages) + 10):
        state = graph.get_state(config)
        done = len(state.values.get("messages", ()))
        # Not ``next``: a task that has run and whose writes are stored is a task to carry on with.
        if not state.tasks and done >= len(conversation.messages):
            return
        inputs: Any = None
        if not state.tasks:
            inputs = {"messages": stretch(conversation.messages, done, "input")}
        graph.invoke(inputs, config, durability=options.durability)
    raise DemoFailed(f"thread {conversation.thread_id!r} stands still at message {done}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay in this process, as the command line says; events go to standard output."""
    options = _parse(arguments)
    log = CallLog(sys.stdout.fileno(), attempt=options.attempt, sync=False)
    files = [Path(name) for name in options.conversation]
    with ExitStack() as stack:
        if not options.separate:
            log.opening()
            saver = stack.enter_context(open_saver(options.saver, options.db))
        for conversation in read_conversations(files, skip=options.skip, limit=options.limit):
            size = 0
            if options.separate:
                size = _alone(conversation, log, options)
            else:
                carry_on(conversation, log, saver, options)
            log.write("conversation", "", FINISHED, conversation=conversation.number, amount=size)
    return 0


def _alone(conversation: Conversation, log: CallLog, options: argparse.Namespace) -> int:
    """Replay it on a file of its own; the size of the file, which is removed."""
    database = Path(options.db)
    with open_saver(options.saver, options.db) as saver:
        carry_on(conversation, log, saver, options)
    size = file_bytes(database)
    remove_database(database)
    return size


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m langgraph_resilient.demo.replay")
    parser.add_argument("conversation", nargs="+")
    parser.add_argument("--db", required=True)
    parser.add_argument("--saver", choices=("resilient", "sqlite"), default="resilient")
    parser.add_argument("--durability", choices=("async", "sync", "exit"), default="async")
    parser.add_argument("--latency", type=float, default=0.01)
    parser.add_argument("--attempt", type=int, default=0)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--separate", action="store_true", help="a file for each conversation")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
