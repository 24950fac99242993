"""An agent of five model calls and three tool calls that is killed and resumed in new processes.

What is counted stands in a file outside every process, each line synced before the process goes on:
a model call has ended when its answer is in the journal, a tool call when its result is in the
ledger. Ids of answers and of tool calls are drawn anew whenever the model is really called, as real
ones are.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from typing import Any
from uuid import uuid4

from building import fork, wait
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, hook_config
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.errors import EmptyInputError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command

from langgraph_resilient import ResilienceMiddleware, ResilientSaver, durable, effect
from langgraph_resilient.integrations.toolnode import tool_node
from langgraph_resilient.journal import JournalBook
from langgraph_resilient.ledger import Book
from langgraph_resilient.testing import Faults

BUILDS = ("agent", "hand")
DURABILITIES = ("sync", "async", "exit")
Way = tuple[str, str, bool]
WAYS: list[Way] = list(itertools.product(BUILDS, DURABILITIES, (False, True)))
"""How the graph is built, LangGraph's durability, and whether it runs in a coroutine."""
Kill = tuple[str, int]
"""A moment, and at which time it is reached."""
CONFIG: Any = {"configurable": {"thread_id": "t"}}
INPUT: Any = {"messages": [HumanMessage("Ask the gauges, and mail what they say.", id="human")]}
SCRIPT: list[tuple[str, str]] = [
    # what is said, which tool is called
    ("I look for them.", "search"),
    ("The third one fits.", "extract"),
    ("They say: 412 cm, rising. " * 40, ""),
    ("I send it.", "send"),
    ("It is sent.", ""),
]
MODEL_CALLS, TOOL_CALLS = len(SCRIPT), 3
_QUESTIONS = 6


# --- the log ----------------------------------------------------------------------------------


class Log:
    """Lines outside the process, synced one by one."""

    def __init__(self, path: Path, process: int):
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._process = process

    def write(self, what: str, **about: Any) -> None:
        times = {"at": time.perf_counter_ns(), "cpu": time.process_time_ns()}
        line = {"what": what, "process": self._process, **times, **about}
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")
        os.fsync(self._descriptor)


def read_log(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


class SeedFaults(Faults):
    """Also the moment of an answer on its way, and the order of all moments."""

    def __init__(self, point: str | None = None, hit: int = 1):
        super().__init__(point, hit)
        self.course: list[Kill] = []

    def due(self, point: str) -> bool:
        found = super().due(point)
        self.course.append((point, self.hits[point]))
        return found

    def watch(self, log: Log) -> None:
        """Watch, and log what has ended before anybody can die behind it."""
        _log_answers(log)
        _log_results(log)
        self.install()
        self.around(JournalBook, "answer", "journal.answer")


def _log_answers(log: Log) -> None:
    plain = JournalBook.end

    @wraps(plain)
    def watched(book: Any, record: Any, answer: Any, **more: Any) -> None:
        plain(book, record, answer, **more)
        log.write("model ended", id=answer.id)

    JournalBook.end = watched  # type: ignore[method-assign]


def _log_results(log: Log) -> None:
    plain = Book.settle

    @wraps(plain)
    def watched(book: Any, record: Any, state: Any, *args: Any, **more: Any) -> Any:
        found = plain(book, record, state, *args, **more)
        if state.name == "SUCCEEDED":
            log.write("tool ended", tool=record.name.tool)
        return found

    Book.settle = watched  # type: ignore[method-assign]


# --- the agent --------------------------------------------------------------------------------


class SeedModel(BaseChatModel):
    """Says what the script says; what it is given decides where in it."""

    log: Any
    reached: Callable[[str], None]

    @property
    def _llm_type(self) -> str:
        return "seed"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        step = sum(isinstance(message, AIMessage) for message in messages)
        said, tool = SCRIPT[step]
        self.reached("model.before")
        self.log.write("model started", step=step)
        self.reached("model.during")
        calls = [{"name": tool, "args": {"what": messages[-1].text}, "id": uuid4().hex}]
        answer = AIMessage(said, id=f"msg-{uuid4()}", tool_calls=calls if tool else [])
        tokens = sum(len(message.text) for message in [*messages, answer]) // 4
        self.log.write("model answered", step=step, id=answer.id, tokens=tokens)
        self.reached("model.after")
        return ChatResult(generations=[ChatGeneration(message=answer)])

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        await asyncio.sleep(0)
        return self._generate(messages)


class GoOn(AgentMiddleware):
    """An answer that calls no tool is not the end before the mail is out."""

    @hook_config(can_jump_to=["model"])
    def after_model(self, state: Any, runtime: Any) -> Any:
        return {"jump_to": "model"} if _after_model(state) == "model" else None


def _after_model(state: Any) -> str:
    messages = state["messages"]
    if messages[-1].tool_calls:
        return "tools"
    sent = any(isinstance(one, ToolMessage) and one.name == "send" for one in messages)
    return END if sent else "model"


def _tools(log: Log, reached: Callable[[str], None], is_async: bool) -> list[BaseTool]:
    def make(name: str, kind: Any) -> BaseTool:
        def run(what: str) -> str:
            log.write("tool started", tool=name)
            reached("effect.before")
            log.write("effect", tool=name)
            return f"{name} did: {what[:20]}"

        async def arun(what: str) -> str:
            await asyncio.sleep(0)
            return run(what)

        made = StructuredTool.from_function(
            func=None if is_async else run,
            coroutine=arun if is_async else None,
            name=name,
            description=name,
        )
        return effect(kind)(made)

    return [make("search", "pure"), make("extract", "external"), make("send", "external")]


def _graph(way: Way, saver: Any, model: SeedModel, tools: list[BaseTool]) -> Any:
    build, _, is_async = way
    if build == "agent":
        middleware = [GoOn(), ResilienceMiddleware()]
        return create_agent(model, tools, middleware=middleware, checkpointer=saver)
    asked = durable(model)

    def ask(state: MessagesState) -> Any:
        return {"messages": [asked.invoke(state["messages"])]}

    async def aask(state: MessagesState) -> Any:
        return {"messages": [await asked.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", aask if is_async else ask)
    builder.add_node("tools", tool_node(tools))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", _after_model, ["tools", "model", END])
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


# --- one process ------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Process:
    """One life of the agent.

    Attributes:
        number: 0 submits the input, the others resume.
        kill: where it dies; None: nowhere.
        slow_from: the number of the checkpoint that the database is not done with when the process
            dies, as it is with every later one; 0: it is quick.
    """

    way: Way
    folder: Path
    number: int
    kill: Kill | None
    slow_from: int = 0

    def main(self) -> None:
        """Everything the process does."""
        log = Log(self.folder / "log", self.number)
        faults = SeedFaults(*self.kill) if self.kill else SeedFaults()
        faults.watch(log)
        if self.slow_from:
            _hold_back(self.slow_from)
        # As a program has them: made when its modules are imported.
        model = SeedModel(log=log, reached=faults.reach)
        tools = _tools(log, faults.reach, self.way[2])
        log.write("opening")
        with ResilientSaver.from_conn_string(self.folder / "agent.db") as saver:
            saver.conn.set_trace_callback(faults.trace())
            graph = _graph(self.way, saver, model, tools)
            out = self._run(graph)
            messages = [_plain(message) for message in out["messages"]]
        report = {"messages": messages, "course": faults.course}
        (self.folder / f"report{self.number}").write_text(json.dumps(report))

    def _run(self, graph: Any) -> Any:
        if not self.number:
            return self._step(graph, INPUT)
        try:
            out = self._step(graph, None)
        except EmptyInputError:  # lost before its first checkpoint
            out = self._step(graph, INPUT)
        for _ in range(_QUESTIONS):
            asked = out.get("__interrupt__")
            if not asked:
                return out
            out = self._step(graph, Command(resume={q.id: self._look(q.value) for q in asked}))
        raise AssertionError(f"still asking: {asked}")

    def _step(self, graph: Any, given: Any) -> Any:
        _, durability, is_async = self.way
        if is_async:
            return asyncio.run(graph.ainvoke(given, CONFIG, durability=durability))
        return graph.invoke(given, CONFIG, durability=durability)

    def _look(self, question: Any) -> Any:
        """What somebody says who looks into the world."""
        tool = question["tool"]
        if not any(
            e["what"] == "effect" and e["tool"] == tool for e in read_log(self.folder / "log")
        ):
            return {"action": "retry"}
        return {
            "action": "succeeded",
            "result": f"{tool} did: {question['arguments']['what'][:20]}",
        }


def _hold_back(first: int) -> None:
    """Let no checkpoint come through from the ``first`` on."""
    plain, count = ResilientSaver.put, itertools.count(1)

    @wraps(plain)
    def held(*args: Any, **more: Any) -> Any:
        if next(count) >= first:
            threading.Event().wait()
        return plain(*args, **more)

    ResilientSaver.put = held  # type: ignore[method-assign]


def _plain(message: Any) -> dict[str, Any]:
    found = {"type": message.type, "id": message.id, "text": message.text, "name": message.name}
    if isinstance(message, AIMessage):
        found["calls"] = [[call["name"], call["args"], call["id"]] for call in message.tool_calls]
    if isinstance(message, ToolMessage):
        found |= {"call": message.tool_call_id, "status": message.status}
    return found


# --- the experiment ---------------------------------------------------------------------------


@dataclass(kw_only=True)
class Found:
    """What came of one run.

    Attributes:
        killed: how many of the planned deaths came.
        model_calls, tool_calls: how often a model or a tool was really called.
        wrong: what is not as it must be.
        repeated_model_calls, repeated_tool_calls: calls that began again after they had ended.
        tokens_finished: of the calls that had ended at a death; ``tokens_saved``: of those that
            were not made again.
        tokens_after: of the calls that were made after the last death.
        resume_ms: opening the saver to the first new model call, in the process after a death;
            None where none was left; ``resume_cpu_ms``: how much of that the process was working.
        messages: the final state.
        course: the moments that the last process came by.
    """

    killed: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    wrong: list[str] = field(default_factory=list)
    repeated_model_calls: int = 0
    repeated_tool_calls: int = 0
    tokens_finished: int = 0
    tokens_saved: int = 0
    tokens_after: int = 0
    resume_ms: float | None = None
    resume_cpu_ms: float = 0.0
    messages: list[dict[str, Any]] = field(default_factory=list)
    course: list[Kill] = field(default_factory=list)


def perform(
    way: Way,
    folder: Path,
    kills: Sequence[Kill] = (),
    undisturbed: Found | None = None,
    *,
    slow_from: int = 0,
) -> Found:
    """Run the agent, kill it as planned, resume it to its end, and look.

    Args:
        way: how it is built and run.
        folder: an empty folder.
        kills: where the first process dies, the second one, and so on.
        undisturbed: what the state is compared with.
        slow_from: see `Process`, of the first one; the others have durability "sync" then, in which
            checkpoints are ahead of model calls.
    """
    found = Found()
    for number, kill in enumerate([*kills, None]):
        slow = 0 if number else slow_from
        if number and slow_from:
            way = (way[0], "sync", way[2])
        process = Process(way=way, folder=folder, number=number, kill=kill, slow_from=slow)
        code = wait(fork(partial(process.main)))
        if code == -signal.SIGKILL and kill is not None:
            found.killed += 1
        elif code != 0:
            found.wrong.append(f"process {number} ended with {code}")
            return found
        else:
            break
    report = json.loads((folder / f"report{number}").read_text())
    found.messages, found.course = report["messages"], [tuple(one) for one in report["course"]]
    events = read_log(folder / "log")
    _count(found, events)
    found.wrong += _lost_ids(found, events)
    if undisturbed is not None and shape(found.messages) != shape(undisturbed.messages):
        found.wrong.append(f"{shape(found.messages)} is not {shape(undisturbed.messages)}")
    return found


def shape(messages: Sequence[dict[str, Any]]) -> list[Any]:
    """Messages without ids; what answers which call is told by its number."""
    calls = [call[2] for message in messages for call in message.get("calls", ())]
    return [
        {
            **{name: value for name, value in message.items() if name not in ("id", "calls")},
            "calls": [[name, args, calls.index(id)] for name, args, id in message.get("calls", ())],
            "call": calls.index(message["call"]) if "call" in message else None,
        }
        for message in messages
    ]


def _count(found: Found, events: Sequence[dict[str, Any]]) -> None:
    answered = {e["id"]: e for e in events if e["what"] == "model answered"}
    ended: dict[Any, int] = {}
    again: set[Any] = set()
    tools: set[str] = set()
    last = max(event["process"] for event in events)
    for event in events:
        match event["what"]:
            case "model ended":
                one = answered[event["id"]]
                ended[one["step"]] = one["tokens"]
            case "model started":
                found.model_calls += 1
                found.repeated_model_calls += event["step"] in ended
                again |= {event["step"]} & set(ended)
            case "tool ended":
                tools.add(event["tool"])
            case "tool started":
                found.tool_calls += 1
                found.repeated_tool_calls += event["tool"] in tools
            case "opening" if event["process"] == last:
                found.tokens_finished = sum(ended.values())
            case "model answered" if event["process"] == last:
                found.tokens_after += event["tokens"]
    found.tokens_saved = found.tokens_finished - sum(ended[step] for step in again)
    opened = next(e for e in events if e["process"] == last)
    calls = [e for e in events if e["process"] == last and e["what"] == "model started"]
    if calls and last:
        found.resume_ms = (calls[0]["at"] - opened["at"]) / 1e6
        found.resume_cpu_ms = (calls[0]["cpu"] - opened["cpu"]) / 1e6


def _lost_ids(found: Found, events: Sequence[dict[str, Any]]) -> list[str]:
    """Recorded answers that are not in the final state under their own ids, and effects."""
    steps = {e["id"]: e["step"] for e in events if e["what"] == "model answered"}
    ids = [message["id"] for message in found.messages if message["type"] == "ai"]
    wrong = [
        f"answer {steps[event['id']]} was recorded as {event['id']}, the state has {ids}"
        for event in events
        if event["what"] == "model ended" and event["id"] not in ids
    ]
    effects = [event["tool"] for event in events if event["what"] == "effect"]
    if effects.count("extract") != 1 or effects.count("send") != 1:
        wrong.append(f"effects: {effects}")
    return wrong
