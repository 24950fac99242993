"""One experiment: an agent is killed, resumed in a new process until it ends, and resumed once more.

Every process is forked from one that has everything imported, so a kill costs a few hundredths of a
second. Questions about unknown outcomes are answered truthfully, from the servers' database.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from building import fork, wait
from effects import Row, World
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.errors import EmptyInputError
from langgraph.types import Command
from ledger_agents import INPUT, SHAPES, Workshop
from ledger_faults import Faults

from langgraph_resilient import ResilientSaver

DURABILITIES = ("sync", "async", "exit")
CONFIG = {"configurable": {"thread_id": "t"}}
_QUESTIONS = 12
_LEASE = 0.06
"""Seconds; a third of it lies between two renewals."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What is tried.

    Attributes:
        saver: ``resilient`` or ``sqlite``.
        build: see `ledger_agents.BUILDS`.
        shape: see `ledger_agents.SHAPES`.
        durability: ``sync``, ``async`` or ``exit``.
        is_async: ``ainvoke`` instead of ``invoke``.
        kills: where the first process dies, where the second one that resumes it, and so on.
        operator: decide about unknown outcomes by ``saver.ledger.resolve`` before resuming,
            instead of answering the run's question.
        errors_told: see `Workshop`.
    """

    saver: str = "resilient"
    build: str = "agent"
    shape: str = "one"
    durability: str = "async"
    is_async: bool = False
    kills: tuple[tuple[str, int], ...] = ()
    operator: bool = False
    errors_told: bool = False

    @property
    def name(self) -> str:
        """Unique among experiments."""
        how = "ainvoke" if self.is_async else "invoke"
        more = ["operator"] * self.operator + ["errors_told"] * self.errors_told
        kills = [f"{point}*{hit}" for point, hit in self.kills] or ["undisturbed"]
        parts = [self.saver, self.build, self.shape, self.durability, how, *more, *kills]
        return " ".join(parts)

    @property
    def kind(self) -> str:
        """The last moment of death, without its number."""
        return " > ".join(point for point, _ in self.kills) or "undisturbed"


@dataclass(kw_only=True)
class Outcome:
    """What came of it.

    Attributes:
        killed: how many of the planned kills happened (a moment may not come in parallel work).
        duplicates: effects beyond one a call.
        lost: calls without their effect, at the end.
        wrong: what else is not as it must be.
        hits: how often each moment was reached in the process that ended the run.
        replays: results served from the ledger in the process that ended the run.
        questions: how often a human was asked.
    """

    killed: int = 0
    duplicates: int = 0
    lost: int = 0
    wrong: list[str] = field(default_factory=list)
    hits: dict[str, int] = field(default_factory=dict)
    replays: int = 0
    questions: int = 0

    @property
    def good(self) -> bool:
        """Whether everything is as it must be."""
        return not (self.duplicates or self.lost or self.wrong)

    @property
    def said(self) -> str:
        """What went wrong, for a line of output."""
        return f"{self.duplicates} duplicates, {self.lost} lost; {'; '.join(self.wrong)}"


# --- in the child -----------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Process:
    """One process of an experiment.

    Attributes:
        run: names the experiment's effects.
        report: where it writes what it found, if it lives to do so.
        fresh: whether it submits the input, instead of resuming.
    """

    world: World
    experiment: Experiment
    run: str
    database: Path
    report: Path
    faults: Faults
    fresh: bool
    questions: int = 0

    def main(self) -> None:
        """Everything the process does."""
        self.faults.install()
        if self.experiment.is_async:
            asyncio.run(self._work())
        else:
            _without_loop(self._work())

    async def _work(self) -> None:
        async with self._open() as saver:
            if self.experiment.operator and not self.fresh:
                self._decide(saver)
            graph = self._workshop().graph(saver)
            out = await self._run(graph)
            self.report.write_text(json.dumps(self._seen(saver, out), default=str))

    def _workshop(self) -> Workshop:
        ours = self.experiment
        return Workshop(
            world=self.world,
            faults=self.faults,
            run=self.run,
            build=ours.build,
            shape=ours.shape,
            recorded=ours.saver == "resilient",
            is_async=ours.is_async,
            errors_told=ours.errors_told,
        )

    @asynccontextmanager
    async def _open(self) -> Any:
        path, trace = str(self.database), self.faults.trace()
        if self.experiment.saver == "resilient":
            renewing = self.faults.point in ("renew.before", "commit.renewal", "renew.after")
            options = {"lease": _LEASE} if renewing else {}
            with ResilientSaver.from_conn_string(path, **options) as saver:
                saver.conn.set_trace_callback(trace)
                yield saver
        elif self.experiment.is_async:
            async with AsyncSqliteSaver.from_conn_string(path) as saver:
                await saver.setup()
                await saver.conn.set_trace_callback(trace)
                yield saver
        else:
            with SqliteSaver.from_conn_string(path) as saver:
                saver.setup()
                saver.conn.set_trace_callback(trace)
                yield saver

    async def _step(self, graph: Any, given: Any) -> Any:
        how = {"durability": self.experiment.durability}
        if self.experiment.is_async:
            return await graph.ainvoke(given, CONFIG, **how)
        return graph.invoke(given, CONFIG, **how)

    async def _run(self, graph: Any) -> Any:
        if self.fresh:
            return await self._step(graph, INPUT)
        try:
            out = await self._step(graph, None)
        except EmptyInputError:  # lost before its first checkpoint
            out = await self._step(graph, INPUT)
        for _ in range(_QUESTIONS):
            asked = out.get("__interrupt__")
            if not asked:
                return out
            self.questions += len(asked)
            answers = {one.id: self._truth(one.value["key"]) for one in asked}
            self.faults.reach("answer")
            out = await self._step(graph, Command(resume=answers))
        raise AssertionError(f"still asking: {asked}")

    def _truth(self, key: str) -> dict[str, Any]:
        """What a human says who looks into the servers' database."""
        for row in self.world.rows(self.run):
            if row.key == key:
                return {"action": "succeeded", "result": row.receipt}
        return {"action": "retry"}

    def _decide(self, saver: ResilientSaver) -> None:
        for entry in saver.ledger.unknown("t"):
            truth = self._truth(entry.key)
            if entry.tool != "delegate":
                saver.ledger.resolve(entry.key, **truth, by="op", version=entry.version)

    def _seen(self, saver: Any, out: Any) -> dict[str, Any]:
        entries, replays = [], []
        if isinstance(saver, ResilientSaver):
            entries = [_entry(entry) for entry in saver.ledger.entries("t")]
            replays = [tool for _, tool, _ in saver.ledger.book.replays]
        return {
            "messages": [_message(message) for message in out["messages"]],
            "entries": entries,
            "replays": replays,
            "hits": dict(self.faults.hits),
            "questions": self.questions,
        }


def _without_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waited")


def _message(message: Any) -> dict[str, Any]:
    found = {"type": message.type, "id": message.id, "content": message.content}
    if isinstance(message, AIMessage):
        found["calls"] = [call["id"] for call in message.tool_calls]
    if isinstance(message, ToolMessage):
        found |= {"call": message.tool_call_id, "status": message.status}
    return found


def _entry(entry: Any) -> dict[str, Any]:
    result = entry.result
    return {
        "key": entry.key,
        "tool": entry.tool,
        "state": entry.state,
        "attempt": entry.attempt,
        "result": _message(result) if isinstance(result, ToolMessage) else str(result),
    }


# --- in the parent ----------------------------------------------------------------------------


def perform(world: World, folder: Path, experiment: Experiment) -> Outcome:
    """Do an experiment and look at what came of it.

    Args:
        world: the running servers.
        folder: an empty folder of its own.
        experiment: what to do.
    """
    outcome, run = Outcome(), uuid4().hex
    process = partial(_process, world, folder, experiment, run)
    plan: list[tuple[str | None, int]] = [*experiment.kills, (None, 1)]
    report: dict[str, Any] | None = None
    fresh = True
    for number, (point, hit) in enumerate(plan):
        code, report = process(number, Faults(point, hit), fresh)
        fresh = False
        world.quiet()
        if code == -signal.SIGKILL and point is not None:
            outcome.killed += 1
        elif code != 0:
            outcome.wrong.append(f"process {number} ended with {code}")
            return outcome
    assert report is not None
    outcome.hits, outcome.questions = report["hits"], report["questions"]
    outcome.replays = len(report["replays"])
    rows = world.rows(run)
    _count(outcome, experiment, rows)
    outcome.wrong += _faults_in(experiment, report, rows)
    code, again = process(len(plan), Faults(), False)
    if code != 0 or again is None:
        outcome.wrong.append(f"resuming a second time ended with {code}")
    else:
        outcome.wrong += _changed(report, again)
        if world.rows(run) != rows:
            outcome.wrong.append("resuming a second time had effects")
    return outcome


def _process(
    world: World,
    folder: Path,
    experiment: Experiment,
    run: str,
    number: int,
    faults: Faults,
    fresh: bool,
) -> tuple[int, dict[str, Any] | None]:
    report = folder / f"report{number}.json"
    process = _Process(
        world=world,
        experiment=experiment,
        run=run,
        database=folder / "agent.db",
        report=report,
        faults=faults,
        fresh=fresh,
    )
    code = wait(fork(partial(process.main)))
    return code, json.loads(report.read_text()) if report.exists() else None


def _count(outcome: Outcome, experiment: Experiment, rows: list[Row]) -> None:
    """Effects against calls: by key where keys came along, by what was asked for anyway."""
    wanted = Counter((tool, label) for tool, label, _ in SHAPES[experiment.shape])
    found = Counter((row.kind, row.label) for row in rows)
    keys = Counter(row.key for row in rows if row.key)
    by_label = sum((found - wanted).values())
    by_key = sum(count - 1 for count in keys.values())
    outcome.duplicates = max(by_label, by_key)
    outcome.lost = sum((wanted - found).values())


def _faults_in(experiment: Experiment, report: dict[str, Any], rows: list[Row]) -> list[str]:
    """What is not as it must be at the end of a run."""
    messages, wrong = report["messages"], []
    asked = Counter(call for message in messages for call in message.get("calls", ()))
    answered = Counter(message["call"] for message in messages if message["type"] == "tool")
    if asked != answered:
        wrong.append(f"calls {dict(asked)} have answers {dict(answered)}")
    if messages[-1]["content"] != "done":
        wrong.append(f"the last message is {messages[-1]}")
    told = _told(experiment, messages)
    receipts = {row.receipt: (row.kind, row.label) for row in rows}
    calls = [(tool, label) for tool, label, _ in SHAPES[experiment.shape]]
    if [receipts.get(one) for one in told] != calls or len(set(told)) != len(told):
        wrong.append(f"the model was told {told}, the servers have {receipts}")
    if experiment.saver == "resilient":
        wrong += _faults_in_ledger(experiment, report, told)
    return wrong


def _told(experiment: Experiment, messages: list[dict[str, Any]]) -> list[str]:
    """What the calls gave, as it is in the state."""
    found = [message["content"] for message in messages if message["type"] == "tool"]
    if experiment.build != "subagent":
        return found
    return [one for text in found for one in (json.loads(text) if text[:1] == "[" else [text])]


def _faults_in_ledger(experiment: Experiment, report: dict[str, Any], told: list[str]) -> list[str]:
    entries, wrong = report["entries"], []
    calls = len(SHAPES[experiment.shape]) + (experiment.build == "subagent")
    if len(entries) != calls:
        wrong.append(f"{calls} calls have {len(entries)} entries")
    for entry in entries:
        if entry["state"] != "succeeded":
            wrong.append(f"a call is {entry['state']}: {entry}")
    recorded = [e["result"] for e in entries if e["tool"] != "delegate"]
    if sorted(map(_text, recorded)) != sorted(told):
        wrong.append(f"recorded are {recorded}, the model was told {told}")
    asked = "delegate" if experiment.build == "subagent" else None
    outer = [e["result"] for e in entries if asked in (None, e["tool"])]
    for message in report["messages"]:
        # What an operator resolved is recorded as the text that was given.
        if message["type"] == "tool" and message not in outer and message["content"] not in outer:
            wrong.append(f"{message} is in the state, recorded are {outer}")
    return wrong


def _text(result: Any) -> str:
    return str(result["content"] if isinstance(result, dict) else result)


def _changed(report: dict[str, Any], again: dict[str, Any]) -> list[str]:
    return [
        f"resuming a second time changed the {what}: {again[what]} instead of {report[what]}"
        for what in ("messages", "entries")
        if report[what] != again[what]
    ]
