"""`guarded(graph)`: the same graph, which looks at what has changed before it goes on with a run.

Each checkpoint that it stores says in its metadata what the graph was made of. A run that goes on
compares that with what the graph is made of now, and the user's preconditions with what they were.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.errors import GraphInterrupt
from langgraph.graph import END, START, StateGraph
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt
from typing_extensions import TypedDict

from langgraph_resilient import configs
from langgraph_resilient._aio import Do, Flow, adrive, drive
from langgraph_resilient.errors import ConfigurationError, EnvironmentChanged
from langgraph_resilient.guard.comparing import Change, Waiting, compare
from langgraph_resilient.guard.environment import NESTED, Environment, environment_of, tools_of
from langgraph_resilient.guard.fitting import fitting
from langgraph_resilient.guard.preconditions import (
    Action,
    Precondition,
    captured,
    check_action,
    checked,
)
from langgraph_resilient.guard.waiting import together, waiting_in
from langgraph_resilient.ledger.tenure import Tenure
from langgraph_resilient.saver import ENVIRONMENT, ResilientSaver

logger = logging.getLogger(__name__)
G = TypeVar("G", bound=Pregel[Any, Any, Any, Any])

SERIOUS = ("node", "tool", "channel")
_THREADS = 4096
_SHOWN = ("stream_mode", "print_mode", "subgraphs", "version", "debug")
"""What a caller of ``stream`` says about how things are shown."""
ANSWERS = {
    "continue": 'go on in spite of it: {"action": "continue"}',
    "stop": 'do not: {"action": "stop"}, which raises EnvironmentChanged',
}


def guarded(
    graph: G,
    *,
    on_change: Action | Mapping[str, Action] = "interrupt",
    preconditions: Sequence[Precondition] = (),
    tools: Iterable[Any] = (),
    models: Iterable[Any] = (),
    packages: Iterable[str] = (),
) -> G:
    """The same graph, which does not go on with a stopped run as if nothing had changed.

    Before the first step of a run that goes on (``None`` or a ``Command`` is submitted), the graph,
    its tools, its models and the versions of packages are compared with those that the newest
    checkpoint was stored with. What is new or no longer needed is a line in the log. Serious are: a
    node that was to run next is gone (LangGraph would end the run without a word), a tool that was
    asked for is gone or can no longer be called like that, a channel has another type.

    Args:
        graph: a graph compiled with a `ResilientSaver`; it stays as it is.
        on_change: what a serious change does: ``"interrupt"`` asks, by an interrupt of the kind
            ``environment_changed`` that is answered with ``Command(resume={id: {"action":
            "continue"}})`` or ``"stop"``; ``"raise"`` raises `EnvironmentChanged`; ``"warn"`` says it in
            the log and goes on. Or a mapping for the kinds ``node``, ``tool`` and ``channel``.
        preconditions: what must still hold outside the agent.
        tools: those that no ``ToolNode`` of the graph shows, to be compared, too.
        models: those that no node's function refers to.
        packages: distributions whose versions are noted, besides LangGraph's and LangChain's.

    Raises:
        ConfigurationError: the graph is of another kind, has no `ResilientSaver`, or an option cannot
            work.
    """
    saver = _saver_of(graph)
    given = tuple(tools)
    guard = Guard(
        environment_of(graph, tools=given, models=models, packages=packages),
        tools_of(graph, given),
        _actions(on_change),
        _named(preconditions),
    )
    kind = type(graph)
    if issubclass(kind, _Guarded):
        kind = kind.__mro__[2]  # guarded anew: the later one counts
    subclass: Any = type(kind.__name__, (_Guarded, kind), {"resilient_guard": guard})
    made = subclass.__new__(subclass)
    made.__dict__.update(graph.__dict__)
    made.checkpointer = guard.noting(saver)
    return cast("G", made)


def _saver_of(graph: Any) -> ResilientSaver:
    if not isinstance(graph, Pregel):
        kind = f"{type(graph).__module__}.{type(graph).__qualname__}"
        raise ConfigurationError(f"guarded() takes a compiled graph, not a {kind}")
    if not isinstance(graph.checkpointer, ResilientSaver):
        raise ConfigurationError(
            f"guarded() takes a graph compiled with a ResilientSaver; this one has "
            f"{graph.checkpointer!r}. Compile it with checkpointer=ResilientSaver.from_conn_string(...)"
        )
    return graph.checkpointer


def environment_in(found: CheckpointTuple | None) -> Environment:
    """The environment that a checkpoint was stored with; empty where there is none."""
    metadata: Mapping[str, Any] = found.metadata if found is not None else {}
    return metadata.get(ENVIRONMENT) or {}


def guard_of(graph: Any) -> Guard | None:
    """The guard of a guarded graph."""
    return graph.resilient_guard if isinstance(graph, _Guarded) else None


def _actions(given: Action | Mapping[str, Action]) -> dict[str, Action]:
    if not isinstance(given, Mapping):
        check_action(given, "on_change")
        return dict.fromkeys(SERIOUS, given)
    for kind, action in given.items():
        if kind not in SERIOUS:
            raise ConfigurationError(
                f"on_change says something about {kind!r}; it takes {', '.join(SERIOUS)}"
            )
        check_action(action, f"on_change[{kind!r}]")
    return {**dict.fromkeys(SERIOUS, "interrupt"), **given}


def _named(preconditions: Sequence[Precondition]) -> tuple[Precondition, ...]:
    names = [one.name for one in preconditions]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"two preconditions have the name {name!r}")
    return tuple(preconditions)


# --- what a guard decides -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """How a run is entered: with this input, or not at all but with a question."""

    given: Any
    question: Interrupt | None = None


class Guard:
    """What a guarded graph knows of itself and of its runs. Safe to use from any thread.

    Args:
        environment: what the graph is made of.
        tools: its tools, by name.
        actions: what a serious change does, by kind.
        preconditions: the user's.
    """

    def __init__(
        self,
        environment: Environment,
        tools: Mapping[str, Any],
        actions: Mapping[str, Action],
        preconditions: tuple[Precondition, ...],
    ):
        self.environment = environment
        self._tools = tools
        self._actions = actions
        self._preconditions = preconditions
        self._captured: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._lock = threading.Lock()
        """Guards what was captured."""

    def noting(self, saver: ResilientSaver) -> ResilientSaver:
        """A saver on the same database that stores the environment with each checkpoint."""
        noting = copy.copy(saver)
        noting.environment = partial(self._noted, noting)
        return noting

    def _noted(self, saver: ResilientSaver, thread_id: str) -> dict[str, Any]:
        with self._lock:
            found = self._captured.get(thread_id)
        if found is None and self._preconditions:  # an update of a thread that was not run here
            stored = saver.get_tuple(configs.config_of(thread_id, "", None))
            kept = environment_in(stored)
            found = {"preconditions": kept.get("preconditions") or {}}
            self._note(thread_id, found)
        return {**self.environment, **(found or {})}

    def _note(self, thread_id: str, found: dict[str, Any]) -> None:
        with self._lock:
            self._captured[thread_id] = found
            self._captured.move_to_end(thread_id)
            while len(self._captured) > _THREADS:
                self._captured.popitem(last=False)

    def entering(self, graph: Any, given: Any, config: RunnableConfig) -> Flow[Entry]:
        """How to enter a run.

        Raises:
            EnvironmentChanged: it must not be entered.
        """
        saver: ResilientSaver = graph.checkpointer
        thread_id = str(config["configurable"]["thread_id"])
        goes_on = given is None or isinstance(given, Command)
        found: CheckpointTuple | None = None
        if goes_on or thread_id not in self._captured:  # else this very code has run it last
            found = yield Do(partial(saver.get_tuple, config))
        recorded = environment_in(found)
        if found is None or not recorded or not goes_on:
            for change in compare(recorded, self.environment, Waiting()) if recorded else ():
                if change.serious:  # the input is not stored yet: a question would lose it
                    logger.warning("thread %r goes on, although %s", thread_id, change)
            now = yield from captured(self._preconditions)
            self._note(thread_id, {"preconditions": now})
            return Entry(given=given)
        waiting = yield Do(partial(self._waiting, graph, found, recorded, config))
        if given is None and not waiting.nodes:
            return Entry(given=given)  # there is nothing to do
        failed, now = yield from checked(self._preconditions, recorded.get("preconditions") or {})
        changes = [*failed, *self._compared(recorded, waiting)]
        noted = {"preconditions": now}
        entry = self._verdict(changes, found, given, noted)
        if entry.question is None:
            self._note(thread_id, noted)
        return entry

    def changes(self, graph: Any, found: CheckpointTuple, config: RunnableConfig) -> list[Change]:
        """What has changed since a checkpoint was stored; nothing where it says nothing."""
        recorded = environment_in(found)
        if not recorded:
            return []
        return self._compared(recorded, self._waiting(graph, found, recorded, config))

    def _compared(self, recorded: Environment, waiting: Waiting) -> list[Change]:
        fits = {
            name: all(
                fitting(self._tools[name], c.arguments) for c in waiting.calls if c.name == name
            )
            for name in self._tools
        }
        return compare(recorded, self.environment, waiting, fits)

    def _waiting(
        self, graph: Any, found: CheckpointTuple, recorded: Environment, config: RunnableConfig
    ) -> Waiting:
        """What the stopped run was about to do, in subgraphs, too."""
        if any(
            c.kind == "channel" and c.serious
            for c in compare(recorded, self.environment, Waiting())
        ):
            return waiting_in(found, recorded)  # today's graph may not be able to read the state
        return together(_everywhere(graph, found, recorded, config, ""))

    def _verdict(
        self, changes: list[Change], found: CheckpointTuple, given: Any, noted: dict[str, Any]
    ) -> Entry:
        """What follows from the changes, and from what a human has said to them."""
        thread_id = found.config["configurable"]["thread_id"]
        by_action: dict[str, list[Change]] = {"warn": [], "raise": [], "interrupt": []}
        for change in changes:
            if change.serious:
                by_action[self._action(change)].append(change)
        told = "; ".join(str(change) for change in changes if not change.serious)
        if told:
            logger.info("thread %r: since it stopped, %s", thread_id, told)
        for change in by_action["warn"]:
            logger.warning("thread %r goes on, although %s", thread_id, _named_only(change))
        if by_action["raise"]:
            raise _refused(thread_id, by_action["raise"])
        if not by_action["interrupt"]:
            return Entry(given=given)
        question = _question(found, by_action["interrupt"])
        answer, rest = _answered(given, question.id, found)
        if answer is None:
            return Entry(given=None, question=question)
        if answer["action"] == "stop":
            raise _refused(thread_id, by_action["interrupt"], " and it was answered with stop")
        accepted = [str(change) for change in by_action["interrupt"]]
        noted["accepted"] = {**answer, "changes": accepted}
        logger.warning("thread %r goes on, as was answered, in spite of changes", thread_id)
        return Entry(given=rest)

    def _action(self, change: Change) -> Action:
        if change.kind == "precondition":
            return next(one.on_fail for one in self._preconditions if one.name == change.name)
        return self._actions[change.kind]


def _everywhere(
    graph: Any, found: CheckpointTuple, recorded: Environment, config: RunnableConfig, prefix: str
) -> Iterator[Waiting]:
    state = graph.get_state(config)
    yield waiting_in(found, recorded, state.values, prefix)
    for task in state.tasks:
        if isinstance(task.state, dict):  # the config of a subgraph's own checkpoints
            inner = cast("RunnableConfig", task.state)
            inside = graph.checkpointer.get_tuple(inner)
            if inside is not None:
                deeper = f"{prefix}{task.name}{NESTED}"
                yield from _everywhere(graph, inside, recorded, inner, deeper)


def _named_only(change: Change) -> str:
    """A change without the values of the user's preconditions, which are not for the log."""
    if change.kind == "precondition":
        return f"precondition {change.name!r} does not hold"
    return str(change)


def _refused(thread_id: str, changes: list[Change], why: str = "") -> EnvironmentChanged:
    return EnvironmentChanged(
        f"thread {thread_id!r} does not go on: {'; '.join(map(str, changes))}{why}. Nothing was run; "
        "bring back what it relied on, or let it go on with guarded(..., on_change='warn')",
        changes=changes,
    )


# --- the question -------------------------------------------------------------------------------


def _question(found: CheckpointTuple, changes: list[Change]) -> Interrupt:
    """The same question has the same id in every process."""
    where = found.config["configurable"]
    told = "; ".join(map(str, changes))
    text = "\0".join((str(where["thread_id"]), str(found.checkpoint["id"]), told))
    return Interrupt(
        value={
            "kind": "environment_changed",
            "message": f"Since this run stopped, something has changed that it relied on: {told}. Nothing "
            "was run.",
            "changes": [asdict(change) for change in changes],
            "answers": ANSWERS,
        },
        id=hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest(),
    )


def _answered(
    given: Any, id: str, found: CheckpointTuple
) -> tuple[dict[str, Any] | None, Command[Any] | None]:
    """What a command says to a question, and what is left of the command.

    Raises:
        ConfigurationError: the answer cannot be understood.
    """
    if not isinstance(given, Command) or given.resume is None:
        return None, given
    said, rest = given.resume, None
    if isinstance(said, Mapping) and id in said:
        rest = {key: value for key, value in said.items() if key != id} or None
        said = said[id]
    elif any(channel == "__interrupt__" for _, channel, _ in found.pending_writes or ()):
        return None, given  # it answers a question of the graph's own
    fields = said if isinstance(said, Mapping) else {"action": said}
    if "action" not in fields:
        return (
            None,
            given,
        )  # by ids, and it was another question: the change is not the same any more
    if fields.get("action") not in ANSWERS:
        raise ConfigurationError(
            f"{fields.get('action')!r} is no answer to the question whether to go on after a change; "
            'answer with {"action": "continue"} or {"action": "stop"}'
        )
    command = replace(given, resume=rest)
    left = command if rest is not None or given.update is not None or given.goto else None
    return {key: str(fields[key]) for key in ("action", "by", "reason") if fields.get(key)}, left


class _Asked(TypedDict, total=False):
    asked: str
    nothing: str


_INPUT: _Asked = {"asked": ""}


def _asking(question: Interrupt) -> Any:
    """A graph that only asks: LangGraph itself then shows the question in every stream mode."""

    def ask(state: _Asked) -> _Asked:
        raise GraphInterrupt((question,))

    builder = StateGraph(_Asked)
    builder.add_node("resume_guard", ask)
    builder.add_edge(START, "resume_guard")
    builder.add_edge("resume_guard", END)
    return builder.compile()


# --- the graph ----------------------------------------------------------------------------------


class _Guarded:
    """What is put before a compiled graph's own methods; ``invoke`` and the rest call ``stream``."""

    resilient_guard: ClassVar[Guard]

    def copy(self, update: dict[str, Any] | None = None) -> Any:
        copied = super().copy(update)  # type: ignore[misc]
        if isinstance(copied.checkpointer, ResilientSaver):
            copied.checkpointer = self.resilient_guard.noting(copied.checkpointer)
        return copied

    def stream(
        self, input: Any, config: RunnableConfig | None = None, **options: Any
    ) -> Iterator[Any]:
        own = super().stream  # type: ignore[misc]
        where = _root(self, config)
        if where is None:
            yield from own(input, config, **options)
            return
        entry = drive(self.resilient_guard.entering(self, input, where))
        if entry.question is not None:
            yield from _asking(entry.question).stream(_INPUT, config, **_shown(options))
            return
        tenure = _tenure(self, where)
        try:
            tenure.begin()
            yield from own(entry.given, config, **options)
        finally:
            tenure.end()

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **options: Any
    ) -> AsyncIterator[Any]:
        own = super().astream  # type: ignore[misc]
        where = _root(self, config)
        if where is None:
            async with aclosing(own(input, config, **options)) as parts:
                async for part in parts:
                    yield part
            return
        saver = cast("ResilientSaver", self.checkpointer)  # type: ignore[attr-defined]
        entry = await adrive(
            self.resilient_guard.entering(self, input, where), saver._engine.offload
        )
        if entry.question is not None:
            async with aclosing(
                _asking(entry.question).astream(_INPUT, config, **_shown(options))
            ) as parts:
                async for part in parts:
                    yield part
            return
        tenure = _tenure(self, where)
        try:
            await adrive(_begun(tenure), saver._engine.offload)
            async with aclosing(own(entry.given, config, **options)) as parts:
                async for part in parts:
                    yield part
        finally:
            tenure.end()


def _root(graph: Any, config: RunnableConfig | None) -> RunnableConfig | None:
    """The config of a run that is nobody's part; None of another one, or without a thread."""
    whole = merge_configs(graph.config, ensure_config(config))
    if not isinstance(graph.checkpointer, ResilientSaver) or not configs.is_root(whole):
        return None
    return whole


def _begun(tenure: Tenure) -> Flow[None]:
    yield Do(tenure.begin)  # a flow's work is finished also when its coroutine is cancelled


def _tenure(graph: Any, config: RunnableConfig) -> Tenure:
    return Tenure(graph.checkpointer.ledger.book, str(config["configurable"]["thread_id"]))


def _shown(options: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: options[name] for name in _SHOWN if options.get(name) is not None}
    return {**given, "output_keys": ["nothing"]}
