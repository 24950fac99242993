"""Recorded conversations, replayed by a process that is killed at random moments.

The parent watches what the child does, sends SIGKILL where the plan says, starts it again until
every conversation has come to its end, and then compares what the file holds with the record.
"""

from __future__ import annotations

import queue
import random
import statistics
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from langchain_core.messages import BaseMessage

from langgraph_resilient.demo.calls import Event, count_calls, parse_event, savings
from langgraph_resilient.demo.process import (
    Durability,
    SaverKind,
    database_folder,
    ended_well,
    failure,
    file_bytes,
    open_saver,
    reap,
    start_child,
    was_killed,
)
from langgraph_resilient.demo.replay import answerer
from langgraph_resilient.demo.trajectory import Conversation, read_conversations
from langgraph_resilient.errors import ConfigurationError, DemoFailed

_DATABASE = "conversations.db"
_CHILD = "langgraph_resilient.demo.replay"
_SILENCE = 120.0  # seconds without an event until a child counts as hanging
_DELAY = 0.03  # seconds at most from the planned call to the kill: a call, its put, the next one

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What the user can choose.

    Attributes:
        files: recorded conversations, JSON lines, plain or ``.zst``.
        limit: only the first conversations, that many; None: all.
        kills: kills for each conversation.
        seed: of the moments at which the child is killed.
        durability: LangGraph's own option.
        latency: seconds that an answer of the model or the tools takes; 0 is faster than any
            real one and lets LangGraph run ahead of the database.
        compare: also replay on SqliteSaver, undisturbed, for the size of its files.
        directory: where the database is kept; None: a temporary folder, removed at the end.
    """

    files: Sequence[Path]
    limit: int | None = None
    kills: int = 3
    seed: int = 0
    durability: Durability = "async"
    latency: float = 0.01
    compare: bool = True
    directory: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """The replay's outcome, in plain values.

    Attributes:
        equal: every conversation's final state equals its record.
        differences: for each that does not, its thread and the first difference, no content.
        conversations, messages: how many were replayed.
        kills: processes that ended by SIGKILL.
        model_calls, tool_calls: calls in the records.
        repeated_model_calls, repeated_tool_calls: runs of a call after it had finished.
        tokens_finished: tokens of the model calls that had finished in the conversation under
            way, summed over the kills.
        tokens_saved: those of them that were not paid for again.
        tokens_saved_ratio: ``tokens_saved / tokens_finished``.
        resume_ms: median over the restarts, opening the saver to the first new step.
        start_ms: median over the restarts, start of the process to the first new step.
        bytes: size of the one file that holds all conversations, WAL included.
        bytes_sqlitesaver: sum of the sizes on SqliteSaver; None when it was not compared.
        durability, seed: as chosen.
        seconds: how long all of it took.
        directory: where the file is, when it was kept.
    """

    equal: bool
    differences: list[str]
    conversations: int
    messages: int
    kills: int
    model_calls: int
    tool_calls: int
    repeated_model_calls: int
    repeated_tool_calls: int
    tokens_finished: int
    tokens_saved: int
    tokens_saved_ratio: float
    resume_ms: float | None
    start_ms: float | None
    bytes: int
    bytes_sqlitesaver: int | None
    durability: str
    seed: int
    seconds: float
    directory: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One planned kill: ``delay`` seconds after a call at message ``place`` or later began."""

    place: int
    delay: float


Plan = dict[int, deque[Kill]]


@dataclass(slots=True, kw_only=True)
class _Course:
    """What happened so far, over all processes."""

    plan: Plan = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    started_ns: list[int] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)
    ended: int = 0


def plan_kills(conversations: Sequence[Conversation], kills: int, seed: int) -> Plan:
    """Where to kill: the same for the same seed; the exact instant is the machine's."""
    plan: Plan = {}
    for conversation in conversations:
        source = random.Random(f"{seed}/{conversation.number}")
        messages = conversation.messages
        places = [place for place in range(len(messages)) if answerer(messages, place) != "input"]
        chosen = sorted(source.choices(places, k=kills)) if places else []
        plan[conversation.number] = deque(
            Kill(place=place, delay=source.uniform(0, _DELAY)) for place in chosen
        )
    return plan


def replay(
    options: ReplayOptions, on_progress: OnProgress = lambda _what, _done, _total: None
) -> ReplayReport:
    """Replay the conversations and compare.

    Args:
        options: what the user chose.
        on_progress: is told what is being done and how far it is: done, total.

    Raises:
        ConfigurationError: a file cannot be read, or holds no conversation.
        DemoFailed: a child failed by itself.
    """
    begun = time.monotonic()
    conversations = list(read_conversations(options.files, limit=options.limit))
    if not conversations:
        raise ConfigurationError(f"no conversation in {', '.join(map(str, options.files))}")
    with database_folder(options.directory, [_DATABASE]) as directory:
        database = directory / _DATABASE
        course = _Course(plan=plan_kills(conversations, options.kills, options.seed))
        while course.ended < len(conversations):
            _one_process(database, "resilient", options, course, len(conversations), on_progress)
        differences = _compare(database, conversations, on_progress)
        plain = None
        if options.compare:
            plain = _sqlitesaver_bytes(directory, options, len(conversations), on_progress)
        size = file_bytes(database)
    return _report(options, conversations, course, differences, size, plain, begun)


def _one_process(
    database: Path,
    saver: SaverKind,
    options: ReplayOptions,
    course: _Course,
    total: int,
    on_progress: OnProgress,
    *,
    separate: bool = False,
) -> None:
    """Run one child until it ends or is killed, and note what it did."""
    attempt = len(course.started_ns)
    arguments = [str(path) for path in options.files]
    arguments += ["--db", str(database), "--saver", saver, "--attempt", str(attempt)]
    arguments += ["--durability", options.durability, "--skip", str(course.ended)]
    arguments += ["--latency", str(0.0 if separate else options.latency)]
    arguments += ["--limit", str(total), *(["--separate"] if separate else [])]
    what = "replaying on SqliteSaver" if separate else "replaying"
    with ExitStack() as stack:
        errors = stack.enter_context(tempfile.TemporaryFile())
        course.started_ns.append(time.time_ns())
        child = start_child(_CHILD, arguments, stdout=subprocess.PIPE, stderr=errors)
        stack.callback(reap, child)
        for event in _events(child):
            course.events.append(event)
            if event.kind == "conversation":
                course.ended += 1
                on_progress(f"{what}, {len(course.killed)} kills", course.ended, total)
            _kill_if_planned(child, event, course.plan)
        returncode = child.wait()
        if not ended_well(returncode):
            errors.seek(0)
            raise failure(returncode, errors.read())
        if was_killed(returncode):
            course.killed.append(attempt)


def _kill_if_planned(child: subprocess.Popen[bytes], event: Event, plan: Plan) -> None:
    kills = plan.get(event.conversation)
    if kills and event.kind in ("model", "tool") and int(event.call) >= kills[0].place:
        # What the child does during the delay is up to the machine: a node, a put, a commit.
        time.sleep(kills.popleft().delay)
        child.kill()


def _events(child: subprocess.Popen[bytes]) -> Iterator[Event]:
    """The child's events as they come, until its end.

    Raises:
        DemoFailed: none came for a long time.
    """
    assert child.stdout is not None
    lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read_lines, args=(child.stdout, lines), daemon=True)
    reader.start()
    while True:
        try:
            line = lines.get(timeout=_SILENCE)
        except queue.Empty:
            raise DemoFailed(f"the replaying process was silent for {_SILENCE:.0f} s") from None
        if line is None:
            reader.join()
            return
        yield parse_event(line)


def _read_lines(stream: IO[bytes], lines: queue.SimpleQueue[bytes | None]) -> None:
    with stream:
        for line in stream:
            if line.endswith(b"\n"):
                lines.put(line)
    lines.put(None)


def _compare(
    database: Path, conversations: Sequence[Conversation], on_progress: OnProgress
) -> list[str]:
    """What differs between the file and the record: one line for each conversation that does."""
    differences = []
    with open_saver("resilient", str(database)) as saver:
        for done, conversation in enumerate(conversations, start=1):
            found = saver.get_tuple({"configurable": {"thread_id": conversation.thread_id}})
            values = found.checkpoint["channel_values"] if found else {}
            difference = first_difference(values.get("messages", []), conversation.messages)
            if difference:
                differences.append(f"{conversation.thread_id}: {difference}")
            on_progress("comparing with the record", done, len(conversations))
    return differences


def first_difference(stored: Sequence[BaseMessage], recorded: Sequence[BaseMessage]) -> str:
    """Where two conversations differ first, and in what; empty when they are equal.

    Compared is everything a message has: type, content, tool calls, ids, metadata, order.
    """
    for place, (left, right) in enumerate(zip(stored, recorded, strict=False)):
        if type(left) is not type(right):
            return f"message {place} is {type(left).__name__}, recorded {type(right).__name__}"
        here, there = left.model_dump(), right.model_dump()
        names = [name for name in there if here.get(name) != there[name]]
        if names or left != right:
            return f"message {place} differs in {', '.join(names) or 'its hidden parts'}"
    if len(stored) != len(recorded):
        return f"{len(stored)} messages are stored, {len(recorded)} were recorded"
    return ""


def _sqlitesaver_bytes(
    directory: Path, options: ReplayOptions, total: int, on_progress: OnProgress
) -> int:
    """Size of the same conversations on SqliteSaver, undisturbed.

    Each has a file of its own that is removed at once: all together can take many gigabytes.
    """
    course = _Course()
    database = directory / "sqlitesaver.db"
    _one_process(database, "sqlite", options, course, total, on_progress, separate=True)
    return sum(event.amount for event in course.events if event.kind == "conversation")


def _report(
    options: ReplayOptions,
    conversations: Sequence[Conversation],
    course: _Course,
    differences: list[str],
    size: int,
    plain: int | None,
    begun: float,
) -> ReplayReport:
    counts = count_calls(course.events)
    saved = savings(course.events, course.killed)
    steps = [event for event in course.events if event.kind == "step" and event.attempt]
    return ReplayReport(
        equal=not differences,
        differences=differences,
        conversations=len(conversations),
        messages=sum(len(conversation.messages) for conversation in conversations),
        kills=len(course.killed),
        model_calls=sum(count.kind == "model" for count in counts),
        tool_calls=sum(count.kind == "tool" for count in counts),
        repeated_model_calls=sum(count.repeated for count in counts if count.kind == "model"),
        repeated_tool_calls=sum(count.repeated for count in counts if count.kind == "tool"),
        tokens_finished=saved.finished,
        tokens_saved=saved.kept,
        tokens_saved_ratio=round(saved.ratio, 4),
        resume_ms=_median([step.at_ns - step.opened_ns for step in steps]),
        start_ms=_median([step.at_ns - course.started_ns[step.attempt] for step in steps]),
        bytes=size,
        bytes_sqlitesaver=plain,
        durability=options.durability,
        seed=options.seed,
        seconds=round(time.monotonic() - begun, 3),
        directory=str(options.directory) if options.directory else None,
    )


def _median(nanoseconds: Sequence[int]) -> float | None:
    """In milliseconds; None when there is nothing to take it of."""
    return round(statistics.median(nanoseconds) / 1e6, 3) if nanoseconds else None
