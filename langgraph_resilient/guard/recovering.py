"""`recover(graph, saver)`: goes on with what a crash has left, when a service starts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.types import Interrupt

from langgraph_resilient._aio import Call, Do, Flow, adrive, at_once, drive
from langgraph_resilient.codec.keys import pack_name
from langgraph_resilient.errors import ConfigurationError, EnvironmentChanged
from langgraph_resilient.guard.stopped import (
    Unfinished,
    aunfinished,
    bound_to,
    look_at,
    unfinished,
)
from langgraph_resilient.ledger import ThreadHeld
from langgraph_resilient.ledger.tenure import Tenure
from langgraph_resilient.saver import ResilientSaver

logger = logging.getLogger(__name__)

Outcome = Literal["finished", "waiting", "failed", "held", "given_up"]
Config = Mapping[str, Any] | Callable[[str], Mapping[str, Any]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What became of an unfinished thread.

    Attributes:
        thread_id: the thread.
        outcome: ``finished`` (it ran to its end), ``waiting`` (it waits for somebody: `interrupts`, or
            a stop that the graph was compiled with), ``failed`` (`error`), ``held`` (a live process has
            it, see `held_by`) or ``given_up`` (it was tried often enough from the same checkpoint).
        attempt: which attempt at its checkpoint this was; 0 when nothing was tried.
        interrupts: the questions that wait for an answer.
        error: what it failed with; None otherwise.
        held_by: the process that has it; None otherwise.
    """

    thread_id: str
    outcome: Outcome
    attempt: int = 0
    interrupts: tuple[Interrupt, ...] = ()
    error: Exception | None = None
    held_by: str | None = None


def recover(
    graph: Any,
    saver: ResilientSaver | None = None,
    *,
    attempts: int | None = 3,
    concurrency: int = 4,
    threads: Iterable[str] | None = None,
    config: Config = None,
    on_progress: Callable[[Recovery], None] | None = None,
    **arguments: Any,
) -> list[Recovery]:
    """Go on with every thread that a crash, a deploy or an error has stopped; for a service's start.

    A thread that waits for an answer is left alone. So is one that a live process has: two workers that
    start at once share the work, and none takes a thread from another one that still lives. That a
    process has a thread is known from its recorded tool and model calls and, where the graph is
    `guarded`, from its runs; one that does plain node code only, unguarded, cannot be told from a dead
    one.

    Each attempt is counted, durably, before it is made: a thread that kills its process every time is
    given up after `attempts`, and counted anew when it has got on to another checkpoint.

    Args:
        graph: the compiled graph.
        saver: has the threads; by default the graph's own.
        attempts: how often to try from one checkpoint; None: always.
        concurrency: how many threads are gone on with at a time; those that were tried before are
            gone on with one by one, at the end.
        threads: these only.
        config: more of the config to run with, or a function that gives it for a thread's name.
        on_progress: called with each result, from the thread that made it.
        **arguments: for the graph's ``invoke``, for example ``context`` or ``durability``.

    Returns:
        What became of each, in the order of `unfinished`. An error of one thread's run is its result,
        and stops no other.

    Raises:
        ConfigurationError: there is no `ResilientSaver`, or a number cannot work.
    """
    run = _Run(bound_to(graph, saver), attempts, concurrency, config, on_progress, arguments)
    found = unfinished(run.graph, threads=threads)
    ended = {one.thread_id: one for group in _groups(found) for one in _at_once(run, group)}
    return [ended[one.thread_id] for one in found]


async def arecover(
    graph: Any,
    saver: ResilientSaver | None = None,
    *,
    attempts: int | None = 3,
    concurrency: int = 4,
    threads: Iterable[str] | None = None,
    config: Config = None,
    on_progress: Callable[[Recovery], None] | None = None,
    **arguments: Any,
) -> list[Recovery]:
    """`recover`, for coroutines: runs the graph with ``ainvoke``."""
    run = _Run(bound_to(graph, saver), attempts, concurrency, config, on_progress, arguments)
    found = await aunfinished(run.graph, threads=threads)
    offload = run.graph.checkpointer._engine.offload
    ended: dict[str, Recovery] = {}
    for group in _groups(found):
        flows = [partial(adrive, run.flow(one, run.graph.ainvoke), offload) for one in group]
        ended.update({one.thread_id: one for one in await at_once(flows, concurrency)})
    return [ended[one.thread_id] for one in found]


def _at_once(run: _Run, group: list[Unfinished]) -> list[Recovery]:
    pool = ThreadPoolExecutor(run.concurrency, thread_name_prefix="resilient-recover")
    try:
        flows = [run.flow(one, run.graph.invoke) for one in group]
        work = [pool.submit(copy_context().run, drive, flow) for flow in flows]
        return [each.result() for each in work]
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C: what runs ends, and no more is begun


def _groups(found: list[Unfinished]) -> list[list[Unfinished]]:
    """What is gone on with at the same time: all that have not been tried, then each other one alone.

    The death of a process counts as an attempt for every thread that it was running. So one that kills it
    every time would, in the end, have the others given up, too.
    """
    fresh = [one for one in found if not one.attempts]
    return [fresh, *([one] for one in found if one.attempts)]


@dataclass(frozen=True, slots=True)
class _Run:
    """One call of `recover`."""

    graph: Any
    attempts: int | None
    concurrency: int
    config: Config
    on_progress: Callable[[Recovery], None] | None
    arguments: Mapping[str, Any]

    def __post_init__(self) -> None:
        attempts = 1 if self.attempts is None else self.attempts
        for name, value in (("attempts", attempts), ("concurrency", self.concurrency)):
            if not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"{name} is {value!r}; it is a number from 1 on")

    def flow(self, one: Unfinished, invoke: Callable[..., Any]) -> Flow[Recovery]:
        """Go on with a thread, or leave it."""
        found = yield from self._gone_on(one, invoke)
        self._tell(found)
        return found

    def _gone_on(self, one: Unfinished, invoke: Callable[..., Any]) -> Flow[Recovery]:
        if one.waits:
            return Recovery(thread_id=one.thread_id, outcome="waiting", interrupts=one.interrupts)
        if one.held_by is not None:
            return Recovery(thread_id=one.thread_id, outcome="held", held_by=one.held_by)
        if self.attempts is not None and one.attempts >= self.attempts:
            return Recovery(thread_id=one.thread_id, outcome="given_up", attempt=one.attempts)
        head = pack_name(one.checkpoint_id)
        tenure = Tenure(self.graph.checkpointer.ledger.book, one.thread_id)
        try:
            attempt = yield Do(partial(tenure.recover, head))
        except ThreadHeld as held:
            return Recovery(thread_id=one.thread_id, outcome="held", held_by=str(held.owner))
        tried = partial(Recovery, thread_id=one.thread_id, attempt=attempt)
        try:
            said = yield Call(partial(invoke, None, self._config(one.thread_id), **self.arguments))
            found: Recovery = yield Do(partial(self._left, one.thread_id, said, tried))
            if found.outcome == "waiting":  # it ended in order, so it does not count
                yield Do(partial(tenure.take_back, head))
        except EnvironmentChanged as error:  # nothing was run
            yield Do(partial(tenure.take_back, head))
            return tried(outcome="failed", error=error)
        except Exception as error:  # noqa: BLE001 - it is the thread's result
            return tried(outcome="failed", error=error)
        finally:
            tenure.end()
        return found

    def _left(self, thread_id: str, said: Any, tried: Callable[..., Recovery]) -> Recovery:
        """Where a run that ended without an error has left its thread."""
        asked = said.get("__interrupt__") if isinstance(said, dict) else None
        asked = asked or getattr(said, "interrupts", None) or ()
        looked = look_at(self.graph, thread_id)
        if not asked and (looked is None or not looked[1].next):
            return tried(outcome="finished")
        return tried(outcome="waiting", interrupts=tuple(asked))

    def _config(self, thread_id: str) -> RunnableConfig:
        given = self.config(thread_id) if callable(self.config) else self.config
        whole: dict[str, Any] = dict(given or {})
        whole["configurable"] = {**(whole.get("configurable") or {}), "thread_id": thread_id}
        return whole  # type: ignore[return-value]

    def _tell(self, found: Recovery) -> None:
        what = type(found.error).__name__ if found.error is not None else found.held_by or ""
        logger.info("thread %r: %s %s", found.thread_id, found.outcome, what)
        if self.on_progress is not None:
            self.on_progress(found)
