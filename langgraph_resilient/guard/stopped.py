"""`unfinished(graph, saver)`: the threads of a graph that were stopped before their end."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.types import Interrupt, StateSnapshot

from langgraph_resilient import configs, listing
from langgraph_resilient.codec.keys import pack_name
from langgraph_resilient.errors import ConfigurationError, DataCorrupt
from langgraph_resilient.guard.comparing import Change, Waiting
from langgraph_resilient.guard.guarding import Guard, environment_in, guard_of
from langgraph_resilient.guard.waiting import BRANCH, JOIN, TASKS, next_nodes, waiting_in
from langgraph_resilient.ledger.tenure import standing_of
from langgraph_resilient.maintenance.given import engine_of
from langgraph_resilient.maintenance.inventory import old_threads
from langgraph_resilient.saver import ResilientSaver

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """A thread that has something left to do.

    Attributes:
        thread_id: the thread.
        checkpoint_id: its newest checkpoint, from which it goes on.
        next: the nodes that are to run.
        interrupts: the questions that wait for an answer.
        waits: whether it waits for somebody: every node to run has a question open, or the graph was
            compiled to stop there (``interrupt_before``, ``interrupt_after``).
        error: what the last run ended in, where LangGraph has recorded that.
        changes: the serious changes since it stopped, for a guarded graph.
        held_by: the live process that has the thread; None when nobody has, as far as is known.
        attempts: how often `recover` has gone on from this checkpoint.
        written_at: when its newest checkpoint was made, as ISO 8601.
    """

    thread_id: str
    checkpoint_id: str
    next: tuple[str, ...]
    interrupts: tuple[Interrupt, ...] = ()
    waits: bool = False
    error: str = ""
    changes: tuple[Change, ...] = ()
    held_by: str | None = None
    attempts: int = 0
    written_at: str = ""


def unfinished(
    graph: Any, saver: ResilientSaver | None = None, *, threads: Iterable[str] | None = None
) -> list[Unfinished]:
    """The threads of a graph that have something left to do, the one written last at the end.

    Looks at each thread, a fraction of a millisecond for one that has come to its end, and at the state of
    the others. A thread of another graph (none
    of its nodes is in this one) is not among them, nor is one that is damaged: the log names it.

    Args:
        graph: the compiled graph that would go on with them.
        saver: has the threads; by default the graph's own.
        threads: look at these only.

    Raises:
        ConfigurationError: there is no `ResilientSaver`.
    """
    bound = bound_to(graph, saver)
    bound.checkpointer._keep()
    names = thread_ids(bound.checkpointer) if threads is None else map(str, threads)
    found = [one for name in names for one in _look(bound, name)]
    return sorted(found, key=lambda one: one.written_at)


async def aunfinished(
    graph: Any, saver: ResilientSaver | None = None, *, threads: Iterable[str] | None = None
) -> list[Unfinished]:
    """`unfinished`, for coroutines."""
    bound = bound_to(graph, saver)
    listed = None if threads is None else list(threads)
    hop = bound.checkpointer._hop
    return await hop(lambda: unfinished(bound, threads=listed))  # type: ignore[no-any-return]


def bound_to(graph: Any, saver: ResilientSaver | None) -> Any:
    """The graph on a saver.

    Raises:
        ConfigurationError: there is no `ResilientSaver`, or it is no graph.
    """
    if not hasattr(graph, "get_state"):
        raise ConfigurationError(f"a compiled graph is needed, not {type(graph).__qualname__}")
    if saver is not None and saver is not getattr(graph, "checkpointer", None):
        graph = graph.copy(update={"checkpointer": saver})
    if not isinstance(graph.checkpointer, ResilientSaver):
        raise ConfigurationError(
            f"the graph has {graph.checkpointer!r} for a checkpointer; give a ResilientSaver"
        )
    return graph


def thread_ids(saver: ResilientSaver) -> list[str]:
    """The names of all threads, those in ``SqliteSaver``'s tables included."""
    engine = engine_of(saver)
    with engine.reading() as session:
        own = [str(row[1]) for row in session.all("threads_all")]
        old = old_threads(engine, session)
    return list(dict.fromkeys([*own, *old]))


def look_at(graph: Any, thread_id: str) -> tuple[CheckpointTuple, StateSnapshot] | None:
    """The newest checkpoint and state of a thread's root graph; None where there is none."""
    config = configs.config_of(thread_id, "", None)
    config["configurable"].pop("checkpoint_id", None)
    found = graph.checkpointer.get_tuple(config)
    return None if found is None else (found, graph.get_state(config))


def _look(graph: Any, thread_id: str) -> Iterator[Unfinished]:
    try:
        looked = None if _is_done(graph, thread_id) else look_at(graph, thread_id)
    except DataCorrupt as error:
        logger.warning("thread %r is left out: %s", thread_id, error)
        return
    if looked is None:
        return
    found, state = looked
    to_run = _next(graph, found, state)
    if not to_run:
        return
    head = str(found.checkpoint["id"])
    holder, attempts = standing_of(graph.checkpointer.ledger.book, thread_id, pack_name(head))
    guard = guard_of(graph)
    yield Unfinished(
        thread_id=thread_id,
        checkpoint_id=head,
        next=to_run,
        interrupts=tuple(state.interrupts),
        waits=_waits(graph, found, state),
        error="; ".join(str(task.error) for task in state.tasks if task.error),
        changes=_changes(guard, graph, found),
        held_by=None if holder is None else str(holder),
        attempts=attempts,
        written_at=str(found.checkpoint.get("ts", "")),
    )


def _is_done(graph: Any, thread_id: str) -> bool:
    """Whether it is plain, without the state, that nothing is left to do: no node's trigger is new."""
    saver: ResilientSaver = graph.checkpointer
    found = listing.outline(saver._engine, saver._reader(), thread_id, whole=(TASKS,))
    if found is None or not any(name.startswith(BRANCH) for name in found.versions):
        return False  # of a graph with triggers of another kind
    if any(name.startswith(JOIN) for name in found.channels):
        return False
    values = {**dict.fromkeys(found.channels), **found.values}
    return not next_nodes(
        {
            "channel_versions": found.versions,
            "versions_seen": found.seen,
            "channel_values": values,
        }
    )


def _next(graph: Any, found: CheckpointTuple, state: StateSnapshot) -> tuple[str, ...]:
    """The nodes to run, those that the graph of today has not any more included."""
    recorded = environment_in(found)
    nodes = set((recorded.get("graph") or {}).get("nodes") or ()) - {"__start__"}
    if recorded and not nodes & set(graph.nodes):
        return ()  # a thread of another graph
    waiting = waiting_in(found, recorded) if recorded else Waiting()
    triggers = {name: node.triggers for name, node in graph.nodes.items()}
    gone = {name for name in waiting.nodes if waiting.lost(name, triggers.get(name))}
    return (*state.next, *sorted(gone - set(state.next)))


def _waits(graph: Any, found: CheckpointTuple, state: StateSnapshot) -> bool:
    """Whether there is nothing to do before somebody says something."""
    open_tasks = [task for task in state.tasks if task.result is None]
    if open_tasks and all(task.interrupts for task in open_tasks):
        return True
    before, after = graph.interrupt_before_nodes, graph.interrupt_after_nodes
    if before == "*" or any(name in before for name in state.next):
        return bool(state.next)
    return bool(after) and (after == "*" or not set(after).isdisjoint(_last_run(graph, found)))


def _last_run(graph: Any, found: CheckpointTuple) -> set[str]:
    """The nodes that ran in the step that the newest checkpoint ends."""
    before: Mapping[str, Any] = {}
    if found.parent_config is not None:
        parent = graph.checkpointer.get_tuple(found.parent_config)
        before = parent.checkpoint["versions_seen"] if parent is not None else {}
    seen = found.checkpoint["versions_seen"]
    return {name for name, versions in seen.items() if before.get(name) != versions}


def _changes(guard: Guard | None, graph: Any, found: CheckpointTuple) -> tuple[Change, ...]:
    if guard is None:
        return ()
    changes = guard.changes(graph, found, found.config)
    return tuple(change for change in changes if change.serious)
