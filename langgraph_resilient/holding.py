"""Checkpoints that a policy skips: held in memory until the next one of their namespace.

A held checkpoint is visible in this process, with the writes of its tasks. It is stored after all
when something must not be lost: an interrupt, an error, an external call that it asked for, the end
of the saver. The one that is stored next hangs on the last stored one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME

from langgraph_resilient import configs
from langgraph_resilient.policy import Snapshot, kind_of_last, must_store, uses_delta

_AHEAD = 4096
_KEEPING = frozenset((ERROR, INTERRUPT, RESUME))
Writes = tuple[Sequence[tuple[str, Any]], str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed:
    """What `put` is given.

    Attributes:
        parent: id of the checkpoint it hangs on; of a stored one once it is stored.
        skipped: how many were skipped for good between the two when it is stored.
        in_run: whether a run of the graph made it.
    """

    thread_id: str
    checkpoint_ns: str
    checkpoint: Mapping[str, Any]
    metadata: Mapping[str, Any]
    parent: str | None
    skipped: int = 0
    in_run: bool = True


@dataclass(slots=True, kw_only=True)
class Held:
    """A checkpoint in memory."""

    given: Checkpointed
    skipped: int
    rounds: int
    writes: list[Writes] = field(default_factory=list)


@dataclass(slots=True)
class Counts:
    """How many checkpoints were stored, skipped, and stored with a bridged parent link."""

    stored: int = 0
    skipped: int = 0
    bridged: int = 0


class Holder:
    """The held checkpoints of one saver. Safe to use from any thread.

    Args:
        policy: says what is stored.
        store: stores a checkpoint.
        store_writes: stores a task's writes: thread, namespace, checkpoint id, writes.
    """

    def __init__(
        self,
        policy: Callable[[Snapshot], bool],
        store: Callable[[Checkpointed], None],
        store_writes: Callable[[str, str, str, Writes], None],
    ):
        self._policy = policy
        self._store = store
        self._store_writes = store_writes
        self._lock = threading.RLock()
        """Guards what is held: a checkpoint is stored before what hangs on it."""
        self._held: dict[tuple[str, str], Held] = {}
        self._ahead: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        """Checkpoints whose writes were stored while they were not held: thread, namespace, id."""
        self.counts = Counts()

    def put(self, given: Checkpointed) -> None:
        """Store a checkpoint, or hold it."""
        place = (given.thread_id, given.checkpoint_ns)
        with self._lock:
            before = self._held.get(place)
            follows = before is not None and given.parent == before.given.checkpoint["id"]
            if before is not None and follows and not uses_delta(given.checkpoint, given.metadata):
                given = replace(given, parent=before.given.parent)
            elif before is not None:
                # Somebody goes on from elsewhere, or a delta channel is written for the first time:
                # its value is rebuilt from the writes of what is held.
                self._keep(place)
                before = None
            kind = kind_of_last(given.checkpoint)
            skipped = 0 if before is None else before.skipped
            rounds = (0 if before is None else before.rounds) + (kind == "ai")
            snapshot = Snapshot(
                thread_id=given.thread_id,
                checkpoint_ns=given.checkpoint_ns,
                checkpoint=given.checkpoint,
                metadata=given.metadata,
                skipped=skipped,
                rounds=rounds,
                tools_ran=kind == "tool",
            )
            # LangGraph saves in the background: writes may come before their own checkpoint. They
            # are stored, so it must be, too, or an interrupt among them would hang on nothing.
            own = (*place, given.checkpoint["id"])
            ahead = own in self._ahead
            self._ahead.pop(own, None)
            needed = ahead or must_store(given.checkpoint, given.metadata)
            if not needed and not self._policy(snapshot):
                self._held[place] = Held(given=given, skipped=skipped + 1, rounds=rounds)
                self.counts.skipped += 1
                return
            self._store(replace(given, skipped=skipped))
            self._held.pop(place, None)
            self.counts.stored += 1
            self.counts.bridged += before is not None

    def put_writes(self, thread_id: str, checkpoint_ns: str, id: str, writes: Writes) -> bool:
        """Keep a task's writes with a held checkpoint; False when it is not held."""
        with self._lock:
            held = self._held.get((thread_id, checkpoint_ns))
            if held is None or held.given.checkpoint["id"] != id:
                own = (thread_id, checkpoint_ns, id)
                self._ahead[own] = None
                self._ahead.move_to_end(own)
                while len(self._ahead) > _AHEAD:
                    self._ahead.popitem(last=False)
                return False
            if any(channel in _KEEPING for channel, _ in writes[0]):
                self._keep((thread_id, checkpoint_ns))
                return False
            held.writes = [one for one in held.writes if one[1] != writes[1]] + [writes]
            return True

    def find(self, thread_id: str, checkpoint_ns: str, id: str | None) -> Held | None:
        """The held checkpoint that is asked for: by its id, or as the newest."""
        with self._lock:
            held = self._held.get((thread_id, checkpoint_ns))
            if held is None or id not in (None, held.given.checkpoint["id"]):
                return None
            return held

    def keep(self, thread_id: str | None = None, id: str | None = None) -> None:
        """Store what is held: of a thread or of all, one checkpoint or any."""
        with self._lock:
            for place, held in list(self._held.items()):
                if thread_id in (None, place[0]) and id in (None, held.given.checkpoint["id"]):
                    self._keep(place)

    def forget(self, thread_id: str) -> None:
        """The thread is deleted."""
        with self._lock:
            for place in [place for place in self._held if place[0] == thread_id]:
                del self._held[place]

    def _keep(self, place: tuple[str, str]) -> None:
        held = self._held[place]
        self._store(replace(held.given, skipped=held.skipped - 1))
        for writes in held.writes:
            self._store_writes(*place, held.given.checkpoint["id"], writes)
        del self._held[place]
        self.counts.stored += 1
        self.counts.skipped -= 1
        self.counts.bridged += held.skipped > 1


def held_tuple(
    serde: SerializerProtocol, held: Held, config: RunnableConfig | None
) -> CheckpointTuple:
    """A checkpoint that a policy holds back; the caller's own copy."""
    given = held.given
    writes = sorted(held.writes, key=lambda one: (one[2], one[1]))
    pending = [(task_id, channel, value) for ws, task_id, _ in writes for channel, value in ws]
    checkpoint, metadata, pending = serde.loads_typed(
        serde.dumps_typed([given.checkpoint, given.metadata, [list(one) for one in pending]])
    )

    named = partial(configs.config_of, given.thread_id, given.checkpoint_ns)
    return CheckpointTuple(
        config=config or named(checkpoint["id"]),
        checkpoint=checkpoint,
        metadata=metadata,
        parent_config=named(given.parent) if given.parent else None,
        pending_writes=[tuple(one) for one in pending],
    )
