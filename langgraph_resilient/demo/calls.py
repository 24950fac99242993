"""Which model and tool calls ran, counted outside the process that ran them.

A child writes one JSON line for each event; the parent reads the lines after the child's death.
The counting is a pure function of the events and knows neither graphs nor savers.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

STARTED = "started"
FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing a child did.

    Attributes:
        kind: ``model``, ``tool``, ``step`` (the first graph node of a process) or
            ``conversation`` (a whole one came to its end).
        call: what identifies the call inside its conversation.
        phase: ``started`` or ``finished``.
        attempt: number of the process that did it; every start of a child has the next one.
        conversation: position of the conversation in the replay, 0 in the small demo.
        amount: of a finished model call: input and output tokens together; of a finished
            conversation: bytes of its file, where it has one of its own.
        at_ns: wall clock, nanoseconds.
        opened_ns: of a step: wall clock just before the saver was opened.
    """

    kind: str
    call: str
    phase: str
    attempt: int
    conversation: int = 0
    amount: int = 0
    at_ns: int = 0
    opened_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCount:
    """How often one call ran: ``started`` times, of which ``repeated`` after it had finished."""

    kind: str
    call: str
    started: int
    repeated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """Tokens of the model calls that had finished when a process was killed.

    Attributes:
        finished: tokens already paid for at the kills; without a checkpointer all are paid again.
        kept: the part of ``finished`` that the next process did not pay for again.
    """

    finished: int
    kept: int

    @property
    def ratio(self) -> float:
        """``kept / finished``; 1.0 when nothing had finished and so nothing could be lost."""
        return self.kept / self.finished if self.finished else 1.0


class CallLog:
    """Writes events so that they outlive the process.

    Each event is one ``write`` on a file descriptor in append mode, without a buffer in this
    process: a SIGKILL right afterwards loses nothing. A file is also synced, so that the record
    is never weaker than what the database promises.
    """

    def __init__(self, descriptor: int, *, attempt: int, sync: bool = True):
        self._descriptor = descriptor
        self._attempt = attempt
        self._opened_ns = 0
        self._sync = sync
        self._stepped = False

    @classmethod
    def at_path(cls, path: str, *, attempt: int) -> CallLog:
        """A log that appends to the file ``path``, made if it is not there."""
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        return cls(descriptor, attempt=attempt)

    def close(self) -> None:
        """Give the descriptor back; a process that ends does so without it."""
        os.close(self._descriptor)

    def opening(self) -> None:
        """Note the time: the saver is opened next."""
        self._opened_ns = time.time_ns()

    def step(self) -> None:
        """Note that a graph node begins to run; only the first of a process is written."""
        if not self._stepped:
            self._stepped = True
            self.write("step", "", STARTED)

    def write(
        self, kind: str, call: str, phase: str, *, conversation: int = 0, amount: int = 0
    ) -> None:
        """Record one event, durably."""
        fields = {
            "kind": kind,
            "call": call,
            "phase": phase,
            "attempt": self._attempt,
            "conversation": conversation,
            "amount": amount,
            "at_ns": time.time_ns(),
            "opened_ns": self._opened_ns,
        }
        os.write(self._descriptor, json.dumps(fields).encode() + b"\n")
        if self._sync:
            os.fsync(self._descriptor)


def parse_event(line: bytes | str) -> Event:
    """The event of one log line."""
    return Event(**json.loads(line))


def read_events(path: str) -> list[Event]:
    """All events of a log file, oldest first; none when the file was never made."""
    if not os.path.exists(path):
        return []
    with open(path, "rb") as lines:
        return [parse_event(line) for line in lines]


def count_calls(events: Iterable[Event]) -> list[CallCount]:
    """How often each call ran, in the order of its first start."""
    started: dict[tuple[int, str, str], int] = {}
    repeated: dict[tuple[int, str, str], int] = {}
    finished: set[tuple[int, str, str]] = set()
    for event in events:
        if event.kind not in ("model", "tool"):
            continue
        key = (event.conversation, event.kind, event.call)
        if event.phase == FINISHED:
            finished.add(key)
            continue
        started[key] = started.get(key, 0) + 1
        repeated[key] = repeated.get(key, 0) + (key in finished)
    return [
        CallCount(kind=key[1], call=key[2], started=times, repeated=repeated[key])
        for key, times in started.items()
    ]


def savings(events: Iterable[Event], killed: Iterable[int]) -> Savings:
    """What resuming saved, summed over the killed processes.

    At a kill only the conversation under way counts: earlier ones have ended.

    Args:
        events: of all processes.
        killed: the numbers of the processes that were killed.
    """
    by_attempt: dict[int, list[Event]] = {}
    for event in events:
        by_attempt.setdefault(event.attempt, []).append(event)
    deaths = set(killed)
    paid: dict[int, dict[str, int]] = {}
    finished = kept = conversation = 0
    for attempt in range(max(deaths, default=-1) + 1):
        for event in by_attempt.get(attempt, ()):
            conversation = event.conversation
            if event.kind == "model" and event.phase == FINISHED:
                paid.setdefault(conversation, {})[event.call] = event.amount
        if attempt in deaths:
            again = _models_started(by_attempt.get(attempt + 1, ()), conversation)
            for call, tokens in paid.get(conversation, {}).items():
                finished += tokens
                kept += tokens * (call not in again)
    return Savings(finished=finished, kept=kept)


def _models_started(events: Iterable[Event], conversation: int) -> set[str]:
    return {
        event.call
        for event in events
        if event.kind == "model" and event.phase == STARTED and event.conversation == conversation
    }
