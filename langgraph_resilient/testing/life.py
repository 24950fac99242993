"""One process of a sweep: opens the database, runs or resumes the graph, dies or reports.

Runs in a child; what it is given must survive the way there (by fork, or by pickle).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from langchain_core.messages import ToolMessage
from langgraph.errors import EmptyInputError
from langgraph.types import Command

from langgraph_resilient.ledger.answers import Answer, parse
from langgraph_resilient.saver import ResilientSaver
from langgraph_resilient.stream.buffer import StreamBuffer
from langgraph_resilient.testing.effects import EffectLog
from langgraph_resilient.testing.faults import Faults, fault_point
from langgraph_resilient.testing.states import call_faults, messages_of, plain
from langgraph_resilient.testing.wrapping import surround

FAILED: Final = 70
"""Exit code of a process that ended with an error."""
_QUESTIONS: Final = 50


class Unanswered(Exception):
    """A question about an unknown outcome that nobody here can answer."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What all processes of a sweep have in common; see `crash_sweep` for the fields."""

    graph_factory: Callable[[Any], Any]
    input: Any
    config: Mapping[str, Any]
    mode: str
    answer: Callable[[Any], Any] | None
    effects: Any
    saver: Callable[[str], Any]
    normalize: Callable[[Any], Any] | None
    check: Callable[[Any, Any], Iterable[str]] | None = None
    before_resume: Callable[[Any], None] | None = None

    @property
    def is_async(self) -> bool:
        """Whether a process runs an event loop."""
        return self.mode in ("ainvoke", "astream")

    @property
    def thread_id(self) -> str:
        """The thread of every run."""
        return str(self.config["configurable"]["thread_id"])


@dataclass(kw_only=True)
class Life:
    """One process.

    Attributes:
        plan: what is run.
        durability: LangGraph's.
        folder: where the database is, and the report comes.
        name: of the report; only the one that is called ``calm`` logs warnings.
        point: where it dies; None: nowhere.
        hit: at which time.
        fresh: whether it submits the input, instead of resuming.
        truths: the calls of the undisturbed run, from its report.
    """

    plan: Plan
    durability: str
    folder: str
    name: str
    point: str | None = None
    hit: int = 1
    fresh: bool = False
    truths: Sequence[Mapping[str, Any]] = ()
    questions: int = 0
    retried: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def report(self) -> Path:
        """Where it tells what it found, if it lives to do so."""
        return Path(self.folder) / f"{self.name}.json"

    def main(self) -> None:
        """Everything the process does."""
        if self.name != "calm":  # each process would give the same warnings
            logging.getLogger("langgraph_resilient").setLevel(logging.ERROR)
        try:
            work = self._work()
            found = asyncio.run(work) if self.plan.is_async else _without_loop(work)
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent is told
            said = traceback.format_exc()
            found = {"error": f"{type(error).__name__}: {error}", "traceback": said}
        self.report.write_text(json.dumps(found, default=repr))
        if "error" in found:
            sys.exit(FAILED)

    async def _work(self) -> dict[str, Any]:
        faults = Faults(self.point, self.hit)
        async with _opened(self.plan.saver(str(Path(self.folder) / "agent.db"))) as saver:
            faults.install(type(saver))
            await _traced(saver, faults)
            tokens = Tokens(saver, self.plan.thread_id, self.fresh)
            tokens.watch()
            if self.plan.before_resume is not None and not self.fresh:
                self.plan.before_resume(saver)
            graph = await _awaited(self.plan.graph_factory(saver))
            out = await self._run(graph, saver)
            snapshot = await self._snapshot(graph)
            messages = messages_of(snapshot.values)
            entries = _entries(saver, self.plan.thread_id)
            asked = [plain(one.value) for one in _interrupts(out)]
            self.problems += call_faults(messages, ended=not (snapshot.next or asked))
            self.problems += tokens.faults(messages)
            values = snapshot.values
            if self.plan.check is not None:
                self.problems += self.plan.check(saver, values)
            values = values if self.plan.normalize is None else self.plan.normalize(values)
            return {
                "state": {"values": plain(values), "next": snapshot.next, "interrupts": asked},
                "hits": dict(faults.hits),
                "entries": [_told(entry) for entry in entries],
                "unequal": _unequal(entries, messages),
                "problems": self.problems,
                "questions": self.questions,
                "retried": self.retried,
            }

    # --- running ------------------------------------------------------------------------------

    async def _run(self, graph: Any, saver: Any) -> Any:
        if self.fresh:
            out = await self._step(graph, self.plan.input)
        else:
            try:
                out = await self._step(graph, None)
            except EmptyInputError:  # lost before its first checkpoint
                out = await self._step(graph, self.plan.input)
        for _ in range(_QUESTIONS):
            asked = _interrupts(out)
            answers = {one.id: await self._answer(saver, one.value) for one in asked}
            given = {id: answer for id, answer in answers.items() if answer is not None}
            if not given:
                return out
            self.questions += len(given)
            fault_point("answer")
            out = await self._step(graph, Command(resume=given))
        self.problems.append(f"it still asks after {_QUESTIONS} answers")
        return out

    async def _step(self, graph: Any, given: Any) -> Any:
        mode, config = self.plan.mode, dict(self.plan.config)
        if mode == "invoke":
            return graph.invoke(given, config, durability=self.durability)
        if mode == "ainvoke":
            return await graph.ainvoke(given, config, durability=self.durability)
        how = {"stream_mode": ["messages", "values"], "durability": self.durability}
        if mode == "stream":
            for _ in graph.stream(given, config, **how):
                pass
        else:
            async for _ in graph.astream(given, config, **how):
                pass
        return {"__interrupt__": (await self._snapshot(graph)).interrupts}

    async def _snapshot(self, graph: Any) -> Any:
        config = dict(self.plan.config)
        if self.plan.is_async:
            return await graph.aget_state(config)
        return graph.get_state(config)

    # --- answering ----------------------------------------------------------------------------

    async def _answer(self, saver: Any, question: Any) -> Any:
        """What is said to an interrupt; None when it is left open."""
        given = None
        is_ours = isinstance(question, Mapping) and question.get("kind") == "unknown_outcome"
        if self.plan.answer is not None:
            given = await _awaited(self.plan.answer(question))
        if is_ours and given is not None:
            decided = parse(given)
            if isinstance(decided, Answer) and decided.action == "retry":
                self.retried.append(question["key"])
        elif is_ours:
            given = self._truth(saver, question)
        return given

    def _truth(self, saver: Any, question: Mapping[str, Any]) -> Any:
        """What a human says who looks into the effect log.

        Raises:
            Unanswered: there is no log, or what it says is no answer.
        """
        tool, key = question["tool"], question["key"]
        if not isinstance(self.plan.effects, EffectLog):
            raise Unanswered(
                f"the outcome of a call to {tool!r} is unknown, and nobody can say what became of "
                "it: give the tool verify=, or the sweep effects=EffectLog(…) or answer="
            )
        done = [effect for effect in self.plan.effects.entries() if key in effect.call]
        if not done:
            return {"action": "retry"}
        arguments = _comparable(question["arguments"])
        known = [one for one in self.truths if (one["tool"], one["arguments"]) == (tool, arguments)]
        whole = known[0]["effects"] if known else len(done)
        if len(done) < whole:
            steps = {effect.call[0] for effect in done} - {key}
            own = any(effect.call[0] == key for effect in done)
            if not own and all(saver.ledger.get(step).state == "succeeded" for step in steps):
                return {"action": "retry"}  # its steps are recorded: they are not done again
            raise Unanswered(
                f"a call to {tool!r} was cut off after {len(done)} of its {whole} effects: neither "
                "running it again nor leaving it is right; make each effect a step with once()"
            )
        own_words = [effect.result for effect in done if effect.call[0] == key]
        said = [result for result in own_words if result is not None]
        if said:
            return {"action": "succeeded", "result": said[-1]}
        if known and known[0]["said"] is not None:
            return {"action": "succeeded", "result": known[0]["said"]}
        raise Unanswered(
            f"a call to {tool!r} took effect, and what it would have said is not known: use "
            "EffectLog.record(…, result=…), or give the sweep answer="
        )


class Tokens:
    """The pieces of answers that a client had seen before its run was resumed.

    Args:
        saver: a saver that may have stored some.
        thread_id: the thread.
        fresh: whether nothing can have been shown yet.
    """

    def __init__(self, saver: Any, thread_id: str, fresh: bool):
        self._shown: dict[str, str] = {}
        self._reset: list[None] = []
        if fresh or not isinstance(saver, ResilientSaver):
            return
        for piece in saver.stream(thread_id):
            if piece.kind in ("reset", "end"):
                self._shown.pop(piece.message_id, None)
            else:
                text = self._shown.get(piece.message_id, "") + piece.text
                self._shown[piece.message_id] = text

    def watch(self) -> None:
        """Notice from now on, in this process, when a client is told to forget. Cannot be undone."""
        surround(StreamBuffer, "reset", before=lambda: self._reset.append(None))

    def faults(self, messages: Sequence[Any]) -> list[str]:
        """What was shown must begin the message, unless the client was told to forget it."""
        return [
            f"{self._shown[one.id]!r} was shown of a message that is now {str(one.text)!r}"
            for one in messages
            if one.id in self._shown and not self._reset
            if not str(one.text).startswith(self._shown[one.id])
        ]


# --- what is found --------------------------------------------------------------------------


def _entries(saver: Any, thread_id: str) -> list[Any]:
    return saver.ledger.entries(thread_id) if isinstance(saver, ResilientSaver) else []


def _told(entry: Any) -> dict[str, Any]:
    return {
        "key": entry.key,
        "tool": entry.tool,
        "arguments": _comparable(entry.arguments),
        "effect": entry.effect,
        "state": entry.state,
        "said": _said(entry.result),
    }


def _said(result: Any) -> Any:
    """What a human would give as a call's result; None where no human could."""
    if isinstance(result, ToolMessage):
        return result.content
    return result if isinstance(result, str | int | float | list | dict) else None


def _comparable(arguments: Any) -> str:
    return json.dumps(plain(arguments), sort_keys=True)


def _unequal(entries: Sequence[Any], messages: Sequence[Any]) -> list[str]:
    """Recorded results that are not the ones in the state."""
    told = [one for one in messages if isinstance(one, ToolMessage)]
    wrong = []
    for entry in entries:
        result = entry.result
        if entry.state == "succeeded" and isinstance(result, ToolMessage):
            same = [one.content for one in told if one.tool_call_id == result.tool_call_id]
            if same and result.content not in same:
                wrong.append(f"the recorded result of {entry.tool!r} is not the one in the state")
    return wrong


def _interrupts(out: Any) -> Sequence[Any]:
    return out.get("__interrupt__", ()) if isinstance(out, dict) else ()


# --- sync and async -------------------------------------------------------------------------


@asynccontextmanager
async def _opened(given: Any) -> AsyncIterator[Any]:
    """An open saver, whichever way it is opened."""
    if hasattr(given, "__enter__"):
        with given as saver:
            yield saver
    else:
        async with given as saver:
            yield saver


async def _traced(saver: Any, faults: Faults) -> None:
    connection: Any = getattr(saver, "conn", None)
    if hasattr(connection, "set_trace_callback"):
        await _awaited(connection.set_trace_callback(faults.trace()))
    elif hasattr(connection, "cursor_factory"):  # psycopg's
        connection.cursor_factory = _tracing(connection.cursor_factory, faults.trace())


def _tracing(cursor: Any, traced: Callable[[str], None]) -> Any:
    """A class of cursors that tell each statement before it is carried out."""

    def tell(query: Any) -> Any:
        traced(query.decode() if isinstance(query, bytes) else str(query))
        return query

    class Tracing(cursor):  # type: ignore[misc]
        def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:
            return super().execute(tell(query), *arguments, **options)

        def executemany(self, query: Any, *arguments: Any, **options: Any) -> Any:
            return super().executemany(tell(query), *arguments, **options)

    return Tracing


async def _awaited(given: Any) -> Any:
    return await given if inspect.isawaitable(given) else given


def _without_loop(work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as ended:
        found: dict[str, Any] = ended.value
        return found
    work.close()
    raise TypeError("this needs coroutines: use mode='ainvoke'")
