"""Ways to run an agent with real effects, and the crash kit on each of them.

The kit kills, resumes, answers questions about unknown outcomes from the servers' database, resumes
once more and compares; here stands what else must hold of tool calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from ledger_agents import INPUT, SHAPES, Workshop
from worldlog import WorldLog

from langgraph_resilient import ResilientSaver
from langgraph_resilient.testing import SweepReport, crash_sweep

DURABILITIES = ("sync", "async", "exit")
Moments = tuple[tuple[str, int], ...]
MOST_HITS = 12
_LEASE, _LONG = 0.06, 0.15
"""Seconds; a third of the first lies between two signs of life, the second is a long call."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """How an agent runs, and who looks after it.

    Attributes:
        saver: ``resilient`` or ``sqlite``.
        build: see `ledger_agents.BUILDS`.
        shape: see `ledger_agents.SHAPES`.
        durability: ``sync``, ``async`` or ``exit``.
        is_async: ``ainvoke`` instead of ``invoke``.
        first: where it is killed before, see `langgraph_resilient.testing.crash_sweep`.
        operator: decide about unknown outcomes by ``saver.ledger.resolve`` before resuming,
            instead of answering the run's question.
        errors_told: see `Workshop`.
        long: whether calls take longer than a lease.
    """

    saver: str = "resilient"
    build: str = "agent"
    shape: str = "one"
    durability: str = "async"
    is_async: bool = False
    first: Moments = ()
    operator: bool = False
    errors_told: bool = False
    long: bool = False

    @property
    def name(self) -> str:
        """Unique among ways."""
        how = "ainvoke" if self.is_async else "invoke"
        more = [name for name in ("operator", "errors_told", "long") if getattr(self, name)]
        first = [f"{point}*{hit}" for point, hit in self.first]
        return " ".join([self.saver, self.build, self.shape, self.durability, how, *more, *first])

    def sweep(
        self,
        log: WorldLog,
        folder: Path,
        *,
        points: Iterable[str] | None = None,
        only: Callable[[str, int], bool] | None = None,
    ) -> SweepReport:
        """Kill it wherever it comes by, or at some of these moments."""
        durability: Any = self.durability
        return crash_sweep(
            self._workshop(log).graph,
            INPUT,
            points=points,
            only=only,
            durability=durability,
            mode="ainvoke" if self.is_async else "invoke",
            effects=log,
            saver=self._open,
            normalize=partial(labelled, log),
            check=partial(self._faults, log),
            first=self.first,
            before_resume=partial(decide, log) if self.operator else None,
            most=MOST_HITS,
            folder=folder,
        )

    def _workshop(self, log: WorldLog) -> Workshop:
        return Workshop(
            log=log,
            build=self.build,
            shape=self.shape,
            recorded=self.saver == "resilient",
            is_async=self.is_async,
            errors_told=self.errors_told,
            seconds=_LONG if self.long else 0.0,
        )

    def _open(self, path: str) -> Any:
        if self.saver == "resilient":
            options = {"lease": _LEASE} if self.long else {}
            return ResilientSaver.from_conn_string(path, **options)
        plain: Any = AsyncSqliteSaver if self.is_async else SqliteSaver
        return plain.from_conn_string(path)

    def _faults(self, log: WorldLog, saver: Any, values: Any) -> list[str]:
        """What is not as it must be at the end of a run, beyond what the kit looks at."""
        wrong = []
        told, receipts = told_by(values), receipts_of(log)
        calls = [f"{tool} {label}" for tool, label, _ in SHAPES[self.shape]]
        if [receipts.get(one) for one in told] != calls or len(set(told)) != len(told):
            wrong.append(f"the model was told {told}, the servers have {receipts}")
        if isinstance(saver, ResilientSaver):
            wrong += self._faults_in_ledger(saver.ledger.entries(), values, told)
        return wrong

    def _faults_in_ledger(self, entries: list[Any], values: Any, told: list[str]) -> list[str]:
        wrong = [f"a call is {one.state}: {one}" for one in entries if one.state != "succeeded"]
        calls = len(SHAPES[self.shape]) + (self.build == "subagent")
        if len(entries) != calls:
            wrong.append(f"{calls} calls have {len(entries)} entries")
        recorded = [_text(one.result) for one in entries if one.tool != "delegate"]
        if sorted(recorded) != sorted(told):
            wrong.append(f"recorded are {recorded}, the model was told {told}")
        outer = [
            one.result for one in entries if self.build != "subagent" or one.tool == "delegate"
        ]
        wholes = [_whole(one) for one in outer if isinstance(one, ToolMessage)]
        texts = [one for one in outer if isinstance(one, str)]
        # What an operator resolved is recorded as the text that was given.
        return wrong + [
            f"{one} is in the state, recorded are {outer}"
            for one in values["messages"]
            if isinstance(one, ToolMessage)
            and _whole(one) not in wholes
            and one.content not in texts
        ]


def _whole(message: ToolMessage) -> tuple[Any, ...]:
    return message.id, message.tool_call_id, message.status, message.content


def _text(result: Any) -> str:
    return str(result.content if isinstance(result, ToolMessage) else result)


def told_by(values: Any) -> list[str]:
    """What the calls gave, as it is in the state; a sub-agent gives a list."""
    texts = [str(one.content) for one in values["messages"] if isinstance(one, ToolMessage)]
    return [one for text in texts for one in (json.loads(text) if text[:1] == "[" else [text])]


def receipts_of(log: WorldLog) -> dict[str, str]:
    """What was done, by the receipt that was given for it."""
    return {str(effect.result): effect.name for effect in log.entries()}


def labelled(log: WorldLog, values: Any) -> list[tuple[Any, ...]]:
    """The messages of a state, with what was done in the place of receipts, which all differ."""
    receipts = receipts_of(log)
    done = [receipts.get(one, one) for one in told_by(values)]
    return [
        *((one.type, one.id, one.text) for one in values["messages"] if one.type != "tool"),
        *(one.tool_call_id for one in values["messages"] if one.type == "tool"),
        *done,
    ]


def decide(log: WorldLog, saver: ResilientSaver) -> None:
    """What an operator says who looks into the servers' database."""
    done = {effect.key: effect.result for effect in log.entries()}
    for entry in saver.ledger.unknown():
        if entry.tool == "delegate":
            continue
        truth = {"action": "retry"}
        if entry.key in done:
            truth = {"action": "succeeded", "result": done[entry.key]}
        saver.ledger.resolve(entry.key, **truth, by="op", version=entry.version)
