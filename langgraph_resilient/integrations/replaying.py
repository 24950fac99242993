"""`Replayer`: a whole thread once more, offline, from journal and ledger; nothing else is called.

The graph runs on a saver of its own in memory. Every model call is answered with what is recorded
of the thread, every tool call from the ledger; what asks something else stops the run, and the
report says where it differed first.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.messages import BaseMessage, convert_to_messages
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import RESUME
from langgraph.types import Command

from langgraph_resilient import calls
from langgraph_resilient.errors import ConfigurationError
from langgraph_resilient.journal import Journal, JournalBook, Request
from langgraph_resilient.journal.book import Match, Spot
from langgraph_resilient.journal.comparing import Difference, requests_differ, values_differ
from langgraph_resilient.journal.matching import Found
from langgraph_resilient.ledger import Book, Ledger
from langgraph_resilient.ledger.book import Entered
from langgraph_resilient.ledger.decision import Decision
from langgraph_resilient.ledger.invocation import Invocation
from langgraph_resilient.records import CallRecord, CallState, ModelCallRecord, ordinal
from langgraph_resilient.records import ModelCallState as State
from langgraph_resilient.saver import ResilientSaver

_START = "__start__"
_ANSWERED = (State.ENDED, State.RETIRED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What a replay came to.

    Attributes:
        equal: whether the replay asked what was recorded, in its order, and ended in the same state.
        divergence: the first difference; None when `equal`.
        calls: model calls that were answered from the journal.
        tool_calls: tool calls that were answered from the ledger.
    """

    equal: bool
    divergence: Difference | None
    calls: int
    tool_calls: int

    def __str__(self) -> str:
        found = f"{self.calls} model calls and {self.tool_calls} tool calls were replayed"
        return found if self.divergence is None else f"{found}, then {self.divergence}"


class Replayer:
    """Re-executes a thread from what is recorded of it.

    Args:
        graph: a compiled graph, or a function that gives one compiled with the saver it is given.
        saver: the saver that has the thread; nothing of it changes.
        thread_id: the thread.
        config: more of the config that the graph runs with.
        **arguments: for the graph's ``invoke``, for example ``context``.

    In a test: ``assert Replayer(graph, saver, "42").run().equal``.
    """

    def __init__(
        self,
        graph: Any,
        saver: ResilientSaver,
        thread_id: str,
        *,
        config: Mapping[str, Any] | None = None,
        **arguments: Any,
    ):
        self._graph = graph
        self._saver = saver
        self._thread_id = str(thread_id)
        self._arguments = {"durability": "sync", **arguments}
        given = dict(config or {})
        configurable = {**given.get("configurable", {}), "thread_id": self._thread_id}
        self._config: Any = {**given, "configurable": configurable}

    def run(self) -> ReplayReport:
        """Do it.

        Raises:
            ConfigurationError: the thread cannot be replayed: nothing is stored of it, its history
                was pruned, or its state was changed by hand.
        """
        with ResilientSaver.from_conn_string(":memory:") as memory:
            replay, script = self._prepared(memory)
            for given in script:
                with suppress(_Stopped), _errors(replay):
                    replay.graph.invoke(given, self._config, **self._arguments)
            return self._report(replay)

    async def arun(self) -> ReplayReport:
        """`run`, for graphs that have coroutines."""
        async with ResilientSaver.from_conn_string(":memory:") as memory:
            replay, script = self._prepared(memory)
            for given in script:
                with suppress(_Stopped), _errors(replay):
                    await replay.graph.ainvoke(given, self._config, **self._arguments)
            return self._report(replay)

    def _prepared(self, memory: ResilientSaver) -> tuple[_Replay, Generator[Any, None, None]]:
        history = _History(self._saver, self._thread_id)
        replay = _Replay(self._saver, self._thread_id, history)
        memory._ledger = (memory, Ledger(_ReplayedLedger(replay)))
        memory._journal = (memory, Journal(_ReplayedJournal(replay)))
        replay.graph = self._bound(memory)
        replay.recorded = self._bound(self._saver).get_state(self._config)
        return replay, self._script(replay)

    def _bound(self, saver: ResilientSaver) -> Any:
        if hasattr(self._graph, "invoke"):
            return self._graph.copy(update={"checkpointer": saver})
        return self._graph(saver)

    def _script(self, replay: _Replay) -> Generator[Any, None, None]:
        """What to give to the graph, one thing after the other, until the recorded end."""
        for turn in replay.history.turns():
            yield turn.given
            answers = list(turn.answers)
            step = None
            while not replay.stopped:
                state = replay.graph.get_state(self._config)
                now = (state.metadata or {}).get("step", -1)
                if not state.next or (now, len(answers)) == step or now >= turn.last:
                    break
                step = (now, len(answers))
                asked = [item.id for item in state.interrupts]
                if len(asked) > 1 and len(answers) >= len(asked):
                    yield Command(resume={id: answers.pop(0) for id in asked})
                else:
                    yield Command(resume=answers.pop(0)) if asked and answers else None
            if replay.stopped:
                return

    def _report(self, replay: _Replay) -> ReplayReport:
        if replay.divergence is None:
            current = replay.graph.get_state(self._config).values
            found = values_differ(replay.recorded.values, current, "", replay.made.__contains__)
            if found is not None:
                field, old, new = found
                replay.divergence = Difference(kind="state", field=field, recorded=old, current=new)
            elif replay.left():
                replay.divergence = replay.left()
        return ReplayReport(
            equal=replay.divergence is None,
            divergence=replay.divergence,
            calls=replay.calls,
            tool_calls=replay.tool_calls,
        )


# --- what was submitted -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """An input, what humans answered after it, and the last step before the next input."""

    given: Any
    answers: list[Any]
    last: int


class _History:
    """The root graph's checkpoints that lead to a thread's newest one.

    Raises:
        ConfigurationError: they cannot be replayed.
    """

    def __init__(self, saver: ResilientSaver, thread_id: str):
        where: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
        every = {_id(found): found for found in saver.list(where)}
        newest = saver.get_tuple(where)
        if newest is None:
            raise ConfigurationError(f"thread {thread_id!r} has no checkpoint to replay")
        line = [newest]
        while (parent := line[-1].parent_config) is not None:
            above = every.get(parent["configurable"]["checkpoint_id"])
            if above is None:
                break
            line.append(above)
        self.line = line[::-1]
        self.whole = len(line) == len(every)
        self._check(thread_id)

    def _check(self, thread_id: str) -> None:
        for found in self.line:
            source = found.metadata.get("source")
            if source not in ("input", "loop"):
                raise ConfigurationError(
                    f"thread {thread_id!r} cannot be replayed: checkpoint {_id(found)} was made by "
                    f"{source!r}, not by a run"
                )
        first = self.line[0]
        if first.metadata.get("source") != "input" or first.parent_config is not None:
            raise ConfigurationError(
                f"thread {thread_id!r} cannot be replayed: its beginning is not stored (pruned, or "
                'durability="exit")'
            )

    def turns(self) -> list[_Turn]:
        """What was submitted, in its order."""
        begins = [n for n, found in enumerate(self.line) if found.metadata["source"] == "input"]
        ends = [*begins[1:], len(self.line)]
        return [
            _Turn(
                given=self._input(begin),
                answers=_answers(self.line[begin:end]),
                last=self.line[end - 1].metadata.get("step", 0),
            )
            for begin, end in zip(begins, ends, strict=True)
        ]

    def _input(self, at: int) -> Any:
        """The input of a checkpoint; messages that had no id are those that the graph gave one."""
        given = self.line[at].checkpoint["channel_values"].get(_START)
        if not isinstance(given, Mapping) or at + 1 == len(self.line):
            return given
        before = self.line[at].checkpoint["channel_values"]
        after = self.line[at + 1].checkpoint["channel_values"]
        return {
            name: _with_ids(value, before.get(name) or [], after.get(name))
            for name, value in given.items()
        }


def _id(found: CheckpointTuple) -> str:
    return str(found.config["configurable"]["checkpoint_id"])


def _with_ids(value: Any, before: Any, after: Any) -> Any:
    if not isinstance(before, list) or not isinstance(after, list):
        return value
    added = after[len(before) :]
    if not added or not all(isinstance(message, BaseMessage) for message in added):
        return value
    try:
        given = convert_to_messages(value if isinstance(value, list) else [value])
    except (ValueError, TypeError, NotImplementedError):
        return value
    alike = [message.type for message in given] == [message.type for message in added]
    return added if alike else value


def _answers(line: list[CheckpointTuple]) -> list[Any]:
    """What humans answered, in the order in which it was asked."""
    found: list[Any] = []
    for checkpoint in line:
        for _, channel, value in checkpoint.pending_writes or ():
            if channel == RESUME and isinstance(value, list):
                found.extend(value)
    return found


# --- what was answered --------------------------------------------------------------------------


class _Stopped(BaseException):
    """The replay has ended before the graph did; no handler of errors is to take it for one."""


class _errors:
    """Notes an error of the graph as the divergence, unless the recorded run ended in one, too."""

    def __init__(self, replay: _Replay):
        self._replay = replay

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, Exception):
            return False
        replay = self._replay
        replay.stopped = True
        if replay.divergence is None and not replay.unfinished:
            text = f"{type(error).__name__}: {error}"
            replay.divergence = Difference(kind="error", field=type(error).__name__, current=text)
        return True


class _Replay:
    """One run of a `Replayer`. Safe to use from any thread.

    Args:
        saver: has the thread.
        thread_id: the thread.
        history: its checkpoints.
    """

    def __init__(self, saver: ResilientSaver, thread_id: str, history: _History):
        self.saver = saver
        self.thread_id = thread_id
        self.history = history
        self.graph: Any = None
        self.recorded: Any = None
        """The state that the thread was left in."""
        self.book = saver.journal.book
        self.calls = self.tool_calls = 0
        self.stopped = False
        self.divergence: Difference | None = None
        self.made: set[str] = set()
        """Ids of messages that models and tools gave; others the graph makes up each time."""
        self._lock = threading.Lock()
        """Guards what is left and what was counted."""
        with self.book.engine.reading() as session:
            self._records = list(self.book.records(session, thread_id, "journal_in"))
        self._left = [one for one in self._records if one.state in _ANSWERED]

    @property
    def unfinished(self) -> bool:
        """Whether the recorded run was cut, or failed, before the graph's end."""
        return bool(self.recorded.next)

    def stop(self, divergence: Difference | None) -> _Stopped:
        """What to raise: the run ends here."""
        with self._lock:
            if self.divergence is None and not self.stopped:
                self.divergence = divergence
            self.stopped = True
        return _Stopped()

    def match(self, spot: Spot, request: Request) -> ModelCallRecord:
        """The recorded call that a call of the replay repeats.

        Raises:
            _Stopped: there is none.
        """
        with self._lock:
            here = [one for one in self._left if one.parent == spot.parent]
            same = [one for one in here if one.request == request.identity]
            exact = sorted(
                (one for one in same if one.sampling == request.sampling),
                key=lambda one: (
                    one.place != spot.place,
                    _where(one.place) != _where(spot.place),
                ),
            )
            if exact and _where(exact[0].place) == _where(spot.place):
                self._left.remove(exact[0])
                self.calls += 1
                return exact[0]
        raise self.stop(self._difference(spot, request, here, exact or same))

    def _difference(
        self,
        spot: Spot,
        request: Request,
        here: list[ModelCallRecord],
        same: list[ModelCallRecord],
    ) -> Difference | None:
        at_place = [one for one in here if one.place == spot.place]
        expected = next(iter([*(one for one in same if one in at_place), *same, *at_place]), None)
        if expected is None and self._ends_here(spot, request):
            return None
        expected = expected or next(iter(here), None)
        if expected is None:
            return Difference(kind="order", field="model call", current=spot.place)
        number = ordinal(expected.call)
        with self.book.engine.reading() as session:
            values = self.book.values(session, expected, "sent", "messages")
        recorded = Request(
            messages=values.get("messages") or (),
            sent=values.get("sent") or {},
            provider=expected.provider,
            model=expected.model,
        )
        found = requests_differ(recorded, request, known="messages" in values)
        if found is not None and found.field == "seed" and found.current is None:
            found = None  # it was made up
        if found is None:
            differs = expected.place != spot.place
            field = "place" if differs else "messages"
            kind = "order" if differs else "prompt"
            found = Difference(kind=kind, field=field, recorded=expected.place, current=spot.place)
        return replace(found, call=number)

    def _ends_here(self, spot: Spot, request: Request) -> bool:
        """Whether the recorded run, too, has no answer to this: it was cut, or it failed."""
        return self.unfinished and any(
            one.request == request.identity and one.state not in _ANSWERED
            for one in self._records
            if one.parent == spot.parent
        )

    def answer(self, record: ModelCallRecord) -> Any:
        """A recorded answer."""
        with self.book.engine.reading() as session:
            found = self.book.values(session, record, "answer")["answer"]
        self._note(found)
        return found

    def _note(self, found: Any) -> None:
        for item in found if isinstance(found, (list, tuple)) else [found]:
            if isinstance(item, BaseMessage) and item.id is not None:
                self.made.add(item.id)

    def result(self, found: Mapping[str, Any]) -> None:
        """A tool call was answered."""
        with self._lock:
            self.tool_calls += 1
        self._note(found.get("result"))

    def left(self) -> Difference | None:
        """A call that was recorded and that the replay did not make."""
        for one in self._left if self.history.whole else ():
            if not one.parent and one.state is State.RETIRED:
                number = ordinal(one.call)
                return Difference(kind="order", field="model call", recorded=one.place, call=number)
        return None


class _ReplayedJournal(JournalBook):
    """Answers every call from the recorded thread; writes nothing."""

    def __init__(self, replay: _Replay):
        super().__init__(replay.saver.ledger.book, replay.book.reading)
        self._replay = replay

    def match(self, spot: Spot, request: Request) -> Found:
        return Found(match=Match.ANSWERED, record=self._replay.match(spot, request))

    def answer(self, spot: Spot, record: ModelCallRecord) -> Any:
        return self._replay.answer(record)


class _ReplayedLedger(Book):
    """Answers every tool call from the recorded thread; runs and writes nothing."""

    def __init__(self, replay: _Replay):
        super().__init__(replay.saver.ledger.book.engine, replay.book.reading)
        self._replay = replay

    def enter(self, call: Invocation, *, cleared: bool = False, hold: bool = False) -> Entered:
        key = calls.key_of(call.name)
        with self.engine.reading() as session:
            record = self.find(session, call.name, key)
        call.policy = replace(call.policy, still_valid=None, artifacts=None, precondition=None)
        if record is None or record.state not in (CallState.SUCCEEDED, CallState.FAILED):
            raise self._replay.stop(None if record is not None else self._unknown(call))
        if record.state is CallState.FAILED and record.value("result") is None:
            raise _error_again(self.restored(record, "error").get("error") or "")
        return Entered(decision=Decision.REPLAY, record=record)

    def _unknown(self, call: Invocation) -> Difference:
        alike = [
            entry
            for entry in self._replay.saver.ledger.entries(call.name.thread_id)
            if entry.message_id == call.name.message_id
            and entry.tool_call_id == call.name.tool_call_id
        ]
        if not alike:
            return Difference(kind="tool", field=call.name.tool, current=call.arguments)
        if alike[0].tool != call.name.tool:
            recorded = alike[0].tool
            return Difference(kind="tool", field="name", recorded=recorded, current=call.name.tool)
        return Difference(
            kind="tool",
            field=f"{call.name.tool}.arguments",
            recorded=alike[0].arguments,
            current=call.arguments,
        )

    def restored(self, record: CallRecord, *names: str) -> dict[str, Any]:
        found = super().restored(record, *(name for name in names if name != "artifacts"))
        if "result" in names:
            self._replay.result(found)
        return found

    def note_replay(self, record: CallRecord) -> None:
        """Nothing that an operator would look for."""


def _where(place: str) -> str:
    """Graph, step and task of a place, whichever of the task's calls it is."""
    return place.rpartition("#")[0]


def _error_again(text: str) -> Exception:
    """An error like the recorded one; of the same class where Python knows that."""
    name, _, message = text.partition(": ")
    known: Any = getattr(builtins, name, None)
    if isinstance(known, type) and issubclass(known, Exception):
        with suppress(TypeError):  # it takes more than a text
            return known(message)
    made: Exception = type(name, (Exception,), {})(message)
    return made


__all__ = ["ReplayReport", "Replayer"]
