"""Frozen values that cross layers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

BLOB_BITS = 24
"""A blob's number is ``thread << BLOB_BITS | ordinal``."""
ORDINALS = 1 << BLOB_BITS
CALL_BITS = 32
"""A tool call's or model call's number is ``thread << CALL_BITS | place``."""


def ordinal(call: int) -> int:
    """Which of its thread's model calls a number means, as people count: from 1."""
    return call & ((1 << CALL_BITS) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """How long a thread lives.

    Attributes:
        ttl: milliseconds it lives after it was last written to.
        since: milliseconds since 1970 at which this was said, or the thread was copied or read with
            `refresh_on_read`; it counts as written to then.
    """

    ttl: int
    since: int

    def end(self, written: float | None) -> float:
        """When it is over, in seconds since 1970.

        Args:
            written: when the thread was last written to, in seconds since 1970.
        """
        since = self.since if written is None else max(self.since, int(written * 1000))
        return (since + self.ttl) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadRow:
    """A thread as stored."""

    number: int
    thread_id: str
    spent: int
    lifetime: Lifetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceRow:
    """A namespace as stored: where its newest checkpoint is, and how many there are."""

    ns: int
    thread: int
    checkpoint_ns: str
    head: int
    checkpoints: int
    tally: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCounts:
    """What became of a namespace's checkpoints besides those that are there.

    Attributes:
        skipped: a policy skipped them.
        bridged: stored ones whose parent link leads over skipped ones.
        removed: stored ones that were pruned, deleted with their run, or lost in a repair.
    """

    skipped: int = 0
    bridged: int = 0
    removed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """A checkpoint as stored, its seal opened."""

    seq: int
    ns: int
    id: bytes
    parent: bytes | None
    frame: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WritesRow:
    """What one task wrote, as stored, its seal opened."""

    ns: int
    checkpoint: bytes
    task: bytes
    frame: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One pending write."""

    task_id: str
    task_path: str
    index: int
    channel: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One checkpoint with everything that belongs to it, restored."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    parent_id: str | None
    seq: int
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    writes: list[Write]


# --- the tool ledger --------------------------------------------------------------------------


class CallState(IntEnum):
    """Where a tool call stands. Numbers are stored; those below 4 have not come to an end."""

    STARTED = 1
    UNKNOWN = 2
    SUSPENDED = 3
    FAILED = 4
    SUCCEEDED = 5


class Effect(str, Enum):
    """What running a tool once more would do.

    `PURE` changes nothing outside, `IDEMPOTENT` changes the same once however often it runs with
    one idempotency key, `EXTERNAL` may do something twice.
    """

    PURE = "pure"
    IDEMPOTENT = "idempotent"
    EXTERNAL = "external"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process, so that others can tell whether it still lives.

    `started` is its start time in the host's own ticks; `host` includes the name space of process
    numbers, because containers number their processes by themselves.
    """

    boot: str
    host: str
    pid: int
    started: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host.split('/')[0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallName:
    """What a call is: everything that its key is made of.

    Attributes:
        thread_id: the thread it was asked for in.
        parent: key of the call inside which it was asked for, or empty.
        message_id: id of the AI message that asked; empty when there is none.
        tool_call_id: the id that the model gave the call; empty when there is none.
        tool: name of the tool or function.
        arguments: digest of the canonical arguments.
        path: what tells apart equal calls of one message, or where a call without a message
            stands in its graph.
        business: the user's own key; then none of the above but `tool` (and, unless it is global,
            `thread_id`) counts.
        everywhere: whether the business key holds for all threads.
    """

    thread_id: str
    parent: bytes = b""
    message_id: str = ""
    tool_call_id: str = ""
    tool: str
    arguments: bytes
    path: str = ""
    business: str | None = None
    everywhere: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A line of a call's history: when (seconds since 1970), what happened, by whom and why."""

    at: float
    what: str
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """A call as stored. Values stay packed until somebody asks for them.

    Attributes:
        call: its number; 0 before it is stored.
        home: number of the thread whose lease it needs; `call` names another one (0) only when a
            business key holds for all threads.
        first_at: seconds since 1970 of the first attempt; `started_at` is that of the last.
        attempt: how often its body was begun.
        epoch: the thread's epoch at the last beginning.
        ended_at: seconds since 1970, or None while it runs.
        flags: ``weak`` (no AI message to tell it by), ``degraded`` (the result could not be stored
            whole), ``error`` (the result is an error message), ``parent`` (the result is a command
            to the parent graph).
        position: where among the calls of its message it stands.
        values: packed values by name: ``arguments``, ``result``, ``error``, ``answers``,
            ``artifacts``.
    """

    call: int = 0
    home: int = 0
    key: bytes
    name: CallName
    state: CallState
    version: int
    attempt: int
    epoch: int
    owner: Owner
    effect: Effect
    first_at: float
    started_at: float
    ended_at: float | None = None
    flags: frozenset[str] = frozenset()
    position: int = 0
    history: tuple[Event, ...] = ()
    values: tuple[tuple[str, bytes], ...] = ()

    def value(self, name: str) -> bytes | None:
        """A packed value, or None."""
        return dict(self.values).get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who runs the calls of a thread, since which change of owner, until when (ms since 1970).

    `attempts` counts how often `recover` has gone on from the checkpoint `attempted`.
    """

    epoch: int
    expires: int
    owner: Owner
    attempted: bytes = b""
    attempts: int = 0


# --- the journal of model calls -----------------------------------------------------------------


class ModelCallState(IntEnum):
    """Where a model call stands. Numbers are stored; those below 4 are not retired."""

    STARTED = 1
    ENDED = 2
    INTERRUPTED = 3
    RETIRED = 4
    FAILED = 5
    DISCARDED = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCallRecord:
    """A model call as stored. Values stay packed until somebody asks for them.

    Attributes:
        call: its number; 0 before it is stored.
        request: digest of what was asked, without what may differ in a repetition.
        sampling: digest of the parameters.
        parent: key of the tool call inside which it was made, or empty.
        task: the root graph's task it was made under.
        root: the root graph's checkpoint it was made from.
        place: where in the graph it was made, and which call of its task's run it is.
        message_id: the id its answer has or will have.
        ended_at: seconds since 1970, or None while it runs.
        attempt: how often the model was called for it.
        flags: ``streamed``.
        values: packed values by name: ``sent`` (what was sent, besides messages), ``messages``,
            ``answer``, ``error``, ``drift``.
    """

    call: int = 0
    thread_id: str
    state: ModelCallState
    request: bytes
    sampling: bytes
    parent: bytes
    task: bytes
    root: bytes
    place: str
    provider: str
    model: str
    message_id: str
    started_at: float
    ended_at: float | None = None
    attempt: int = 1
    flags: frozenset[str] = frozenset()
    values: tuple[tuple[str, bytes], ...] = ()

    def value(self, name: str) -> bytes | None:
        """A packed value, or None."""
        return dict(self.values).get(name)

    @property
    def answerless(self) -> bool:
        """Whether it was begun and has no answer: a repetition has the same message id."""
        return self.state in (ModelCallState.STARTED, ModelCallState.INTERRUPTED)
