"""The child process of the replay: a graph whose model and tools answer from the record.

``python -m langgraph_resilient.demo.replay`` works through the conversations one after another,
each on a thread of its own, and goes on where the database says it had stopped. What it answers
next follows from the stored state alone: the record is asked by the number of messages there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, MessagesState, StateGraph

from langgraph_resilient.demo.calls import FINISHED, STARTED, CallLog
from langgraph_resilient.demo.process import file_bytes, open_saver, remove_database
from langgraph_resilient.demo.trajectory import Conversation, read_conversations
from langgraph_resilient.errors import DemoFailed


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


def build_graph(
    conversation: Conversation, log: CallLog, latency: float
) -> StateGraph[MessagesState]:
    """Model and tools that give the recorded messages; it ends where the user's turn is next.

    Each answer takes ``latency`` seconds; the tool calls of one message run at the same time.
    """
    messages = conversation.messages

    def answer(kind: str, state: MessagesState) -> dict[str, list[BaseMessage]]:
        log.step()
        start = len(state["messages"])
        answers = stretch(messages, start, kind)
        places = range(start, start + len(answers))
        for place in places:
            log.write(kind, str(place), STARTED, conversation=conversation.number)
        time.sleep(latency)
        for place in places:
            amount = tokens(messages[place]) if kind == "model" else 0
            log.write(kind, str(place), FINISHED, conversation=conversation.number, amount=amount)
        return {"messages": answers}

    def call_model(state: MessagesState) -> dict[str, list[BaseMessage]]:
        return answer("model", state)

    def call_tools(state: MessagesState) -> dict[str, list[BaseMessage]]:
        return answer("tool", state)

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
