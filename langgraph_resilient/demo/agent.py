"""The demo's agent and the child process that runs it.

``python -m langgraph_resilient.demo.agent`` runs it on a SQLite file, or resumes it there. Its
model calls go through the journal, its tools through the ledger. A question that the run stops at
goes to standard output as a line of JSON, and the answer is read from standard input.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import EmptyInputError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command

from langgraph_resilient.demo.calls import CallLog
from langgraph_resilient.demo.model import RECIPIENT, ScriptedModel
from langgraph_resilient.demo.process import die, open_saver
from langgraph_resilient.demo.screen import Screen
from langgraph_resilient.demo.tools import DEATHS, make_tools
from langgraph_resilient.integrations.models import durable
from langgraph_resilient.integrations.toolnode import tool_node

THREAD_ID = "demo"
_AHEAD = 2
"""Words that the model is ahead of the screen when the process dies there."""

TASK = (
    "Find out how the tide gauges of the northern harbours stored their readings through last "
    "winter's power cuts, and e-mail a summary to " + RECIPIENT + "."
)


# --- the graph ------------------------------------------------------------------------------


def build_graph(
    log: CallLog,
    *,
    smtp_port: int,
    latency: float = 0.0,
    kill_after: int = 0,
    death: str = "",
    stall_after: int = 0,
    recorded: bool = True,
) -> StateGraph[MessagesState]:
    """The agent, not yet compiled: model and tools in turn until the e-mail is out.

    Args:
        log: gets every step and every call.
        smtp_port: where the e-mail goes.
        latency: seconds that a model call takes.
        kill_after: the process dies right after its model call with this number has finished,
            before LangGraph has the answer; 0 means it does not die.
        death: where the process dies inside the e-mail tool, see `make_tools`.
        stall_after: see `ScriptedModel`.
        recorded: whether the model calls go through the journal and the tools through the ledger.
    """
    model = ScriptedModel(log, latency, stall_after)
    if recorded:
        model = durable(model, continuation="prefill")  # it goes on with a half answer
    finished = 0

    def call_model(state: MessagesState) -> dict[str, list[BaseMessage]]:
        nonlocal finished
        log.step()
        answer = model.invoke(state["messages"])
        finished += 1
        if finished == kill_after:
            die()
        return {"messages": [answer]}

    tools = make_tools(log, smtp_port=smtp_port, death=death)
    builder = StateGraph(MessagesState)
    builder.add_node("model", call_model)
    builder.add_node("tools", tool_node(tools) if recorded else ToolNode(tools))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", _after_model, ["tools", "model", END])
    builder.add_edge("tools", "model")
    return builder


def _after_model(state: MessagesState) -> str:
    last = state["messages"][-1]
    if isinstance(last, AIMessage) and last.tool_calls:
        return "tools"
    sent = any(message.name == "send_email" for message in state["messages"])
    return END if sent else "model"


# --- the child process ----------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or resume the agent in this process, as the command line says."""
    options = _parse(arguments)
    log = CallLog.at_path(options.log, attempt=options.attempt)
    builder = build_graph(
        log,
        smtp_port=options.smtp_port,
        latency=options.latency,
        kill_after=options.kill_after,
        death=options.death,
        stall_after=options.die_after_words and options.die_after_words + _AHEAD,
        recorded=options.saver == "resilient",
    )
    first = MessagesState(messages=[HumanMessage(TASK, id="task")])
    config: RunnableConfig = {"configurable": {"thread_id": THREAD_ID}}
    log.opening()
    with open_saver(options.saver, options.db) as saver:
        graph = builder.compile(checkpointer=saver)
        run = partial(_stream if options.screen else _invoke, graph, config, options)
        inputs = None if options.mode == "resume" else first
        try:
            state = run(inputs)
        except EmptyInputError:
            # Killed before even the input was stored: a client would send it again.
            state = run(first)
        while questions := state.get("__interrupt__"):
            answers = {question.id: _ask(question.value) for question in questions}
            state = run(Command(resume=answers))
    return 0


def _invoke(graph: Any, config: RunnableConfig, options: argparse.Namespace, given: Any) -> Any:
    return graph.invoke(given, config, durability=options.durability)


def _stream(graph: Any, config: RunnableConfig, options: argparse.Namespace, given: Any) -> Any:
    """Run it and show each answer while it comes; die when so many words of the cut one stand there."""
    screen = Screen(options.screen, attempt=options.attempt)
    words: Counter[int] = Counter()
    pieces = graph.stream(given, config, stream_mode="messages", durability=options.durability)
    for piece, about in pieces:
        if not isinstance(piece, AIMessageChunk):
            continue
        step = about["langgraph_step"]
        notes = piece.response_metadata
        screen.show(
            step,
            str(piece.id),
            str(piece.content),
            replayed="resilient_replayed" in notes,
            reset="resilient_reset" in notes,
        )
        words[step] += 1
        if words[step] == options.die_after_words:
            die()
    screen.close()
    return {"__interrupt__": graph.get_state(config).interrupts}


def _ask(question: Any) -> Any:
    """Put a question to whoever started this process."""
    print(json.dumps(question), flush=True)
    answer = sys.stdin.readline()
    if not answer:
        raise SystemExit("nobody answers the question; the run waits for it in its database")
    return json.loads(answer)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m langgraph_resilient.demo.agent")
    parser.add_argument("--db", required=True)
    parser.add_argument("--mode", choices=("run", "resume"), required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--smtp-port", type=int, required=True)
    parser.add_argument("--saver", choices=("resilient", "sqlite"), default="resilient")
    parser.add_argument("--durability", choices=("async", "sync", "exit"), default="async")
    parser.add_argument("--attempt", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--kill-after", type=int, default=0)
    parser.add_argument("--death", choices=DEATHS, default="", help="inside the e-mail tool")
    parser.add_argument("--screen", default="", help="stream, and keep what was shown in this file")
    parser.add_argument("--die-after-words", type=int, default=0, help="of one answer, on screen")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
