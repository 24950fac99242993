"""The demo's agent and the child process that runs it.

The model is scripted and needs no key: what it answers depends only on the messages it is given,
so a lost or altered message changes the outcome. ``python -m langgraph_resilient.demo.agent``
runs it on a SQLite file, or resumes it there. A question that the run stops at goes to standard
output as a line of JSON, and the answer is read from standard input.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langgraph.errors import EmptyInputError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command
from pydantic import PrivateAttr

from langgraph_resilient.demo.calls import FINISHED, STARTED, CallLog
from langgraph_resilient.demo.process import die, open_saver
from langgraph_resilient.demo.tools import DEATHS, make_tools
from langgraph_resilient.integrations.toolnode import tool_node

MODEL_CALLS = ("choose a search", "choose a source", "summarise", "write the e-mail", "report")
THREAD_ID = "demo"
RECIPIENT = "harbour@example.org"

TASK = (
    "Find out how the tide gauges of the northern harbours stored their readings through last "
    "winter's power cuts, and e-mail a summary to " + RECIPIENT + "."
)


# --- the model ------------------------------------------------------------------------------


def _choose_search(messages: Sequence[BaseMessage]) -> AIMessage:
    query = " ".join(str(messages[0].content).split()[4:14])
    return _asking("I look for sources first.", "search", {"query": query})


def _choose_source(messages: Sequence[BaseMessage]) -> AIMessage:
    hits = json.loads(str(messages[-1].content))
    best = max(hits, key=lambda hit: hit["score"])
    return _asking(f"{best['title']} fits best.", "extract", {"url": best["url"]})


def _summarise(messages: Sequence[BaseMessage]) -> AIMessage:
    page = str(messages[-1].content)
    findings = [line[9:] for line in page.splitlines() if line.startswith("Finding: ")]
    return AIMessage("Summary:\n" + "\n".join(f"- {finding}" for finding in findings))


def _write_email(messages: Sequence[BaseMessage]) -> AIMessage:
    arguments = {
        "to": RECIPIENT,
        "subject": "How the tide gauges kept their readings",
        "body": str(messages[-1].content),
    }
    return _asking("The summary is ready, I send it.", "send_email", arguments)


def _report(messages: Sequence[BaseMessage]) -> AIMessage:
    findings = str(messages[5].content).count("\n- ")
    return AIMessage(f"Done: {findings} findings summarised. {messages[-1].content}")


_ANSWERS: tuple[Callable[[Sequence[BaseMessage]], AIMessage], ...] = (
    _choose_search,
    _choose_source,
    _summarise,
    _write_email,
    _report,
)


def _asking(content: str, name: str, arguments: dict[str, str]) -> AIMessage:
    call = {"name": name, "args": arguments, "id": f"call-{name}", "type": "tool_call"}
    return AIMessage(content, tool_calls=[call])


def _tokens(text: str) -> int:
    """A rough count, four characters a token; only ratios are shown."""
    return max(1, len(text) // 4)


class ScriptedModel(BaseChatModel):
    """Answers each of the five steps by rule, after ``latency`` seconds.

    Which step it is follows from the number of its answers in the messages. Every call is
    written to the call log when it begins and when it has ended.
    """

    latency: float = 0.05
    _log: CallLog = PrivateAttr()

    def __init__(self, log: CallLog, latency: float):
        super().__init__(latency=latency)  # type: ignore[call-arg]
        self._log = log

    @property
    def _llm_type(self) -> str:
        return "langgraph-resilient-demo"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        step = sum(isinstance(message, AIMessage) for message in messages)
        name = MODEL_CALLS[step]
        self._log.write("model", name, STARTED)
        time.sleep(self.latency)
        answer = _ANSWERS[step](messages)
        read = sum(_tokens(str(message.content)) for message in messages)
        written = _tokens(str(answer.content) + json.dumps(answer.tool_calls))
        usage = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
        answer = answer.model_copy(update={"id": f"answer-{step + 1}", "usage_metadata": usage})
        self._log.write("model", name, FINISHED, amount=read + written)
        return ChatResult(generations=[ChatGeneration(message=answer)])


# --- the graph ------------------------------------------------------------------------------


def build_graph(
    log: CallLog,
    *,
    smtp_port: int,
    latency: float = 0.0,
    kill_after: int = 0,
    death: str = "",
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
        recorded: whether the tools go through the ledger.
    """
    model = ScriptedModel(log, latency)
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
        recorded=options.saver == "resilient",
    )
    first = MessagesState(messages=[HumanMessage(TASK, id="task")])
    config: RunnableConfig = {"configurable": {"thread_id": THREAD_ID}}
    log.opening()
    with open_saver(options.saver, options.db) as saver:
        graph = builder.compile(checkpointer=saver)
        inputs = None if options.mode == "resume" else first
        try:
            state = graph.invoke(inputs, config, durability=options.durability)
        except EmptyInputError:
            # Killed before even the input was stored: a client would send it again.
            state = graph.invoke(first, config, durability=options.durability)
        while questions := state.get("__interrupt__"):
            answers = {question.id: _ask(question.value) for question in questions}
            command: Command[Any] = Command(resume=answers)
            state = graph.invoke(command, config, durability=options.durability)
    return 0


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
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
