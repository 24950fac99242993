"""The demo's parent process: starts the agent, lets it be killed, starts it again, compares.

Everything it reports it sees from outside: the calls from the log that the children append to,
the e-mails from its own SMTP server, the final states and the sizes from the files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph_resilient.demo.agent import THREAD_ID
from langgraph_resilient.demo.calls import CallCount, Event, count_calls, read_events, savings
from langgraph_resilient.demo.process import (
    Durability,
    SaverKind,
    database_folder,
    file_bytes,
    open_saver,
    run_child,
    was_killed,
)
from langgraph_resilient.demo.smtp import SmtpSink
from langgraph_resilient.errors import DemoFailed

_CHILD = "langgraph_resilient.demo.agent"
_TIMEOUT = 120.0
_FILES = tuple(
    name + ending
    for name in ("undisturbed", "crash", "sqlitesaver")
    for ending in (".db", ".calls.jsonl")
)

#: Where exactly the process dies; the worst place, since the call is paid for and nothing but
#: this process knows the answer.
KILL_INSTANT = (
    "in the model node, when model call {number} has finished and before the node has "
    "returned its answer to LangGraph"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What the user can choose.

    Attributes:
        durability: LangGraph's own option; ``async`` is its default.
        kill_after: number of the model call after which the agent dies, 1 to 5.
        latency: seconds that a model call takes.
        directory: where the databases are kept; None: a temporary folder, removed at the end.
    """

    durability: Durability = "async"
    kill_after: int = 3
    latency: float = 0.05
    directory: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    """How often one call ran in both runs."""

    kind: str
    call: str
    undisturbed: int
    with_crash: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """The demo's outcome, in plain values.

    Attributes:
        equal: the resumed run, the undisturbed one and SqliteSaver's ended with the same state,
            and as many e-mails arrived in both.
        kills: processes that ended by SIGKILL.
        kill_instant: where in the agent the process died.
        model_calls, tool_calls: calls of the undisturbed run.
        repeated_model_calls, repeated_tool_calls: calls that ran again after they had finished.
        tokens_finished: tokens of the model calls that had finished at the kill.
        tokens_saved: those of them that were not paid for again.
        tokens_saved_ratio: ``tokens_saved / tokens_finished``.
        resume_ms: opening the saver to the first new step, milliseconds.
        start_ms: start of the process to the first new step, milliseconds.
        bytes, bytes_sqlitesaver: size on disk after the undisturbed run, WAL included.
        bytes_resumed: size on disk of the file that went through the crash.
        emails_undisturbed, emails_received: e-mails that arrived, without and with the crash.
        final_undisturbed, final_resumed: text of the last message.
        messages: number of messages in the final state.
        calls: how often each call ran.
        durability: LangGraph's durability mode of all runs.
        directory: where the files are, when they were kept.
    """

    equal: bool
    kills: int
    kill_instant: str
    model_calls: int
    tool_calls: int
    repeated_model_calls: int
    repeated_tool_calls: int
    tokens_finished: int
    tokens_saved: int
    tokens_saved_ratio: float
    resume_ms: float
    start_ms: float
    bytes: int
    bytes_sqlitesaver: int
    bytes_resumed: int
    emails_undisturbed: int
    emails_received: int
    final_undisturbed: str
    final_resumed: str
    messages: int
    calls: list[CallRow]
    durability: str
    directory: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run of the agent, from its first process to its end."""

    events: list[Event]
    state: dict[str, Any]
    emails: int
    bytes: int
    killed: list[int]
    last_started_ns: int


def run_demo(options: DemoOptions, on_stage: Callable[[str], None] = lambda _: None) -> DemoReport:
    """Run the whole demo.

    Args:
        options: what the user chose.
        on_stage: is told what is being done, before it is.

    Raises:
        DemoFailed: a process failed by itself.
    """
    with database_folder(options.directory, _FILES) as directory, SmtpSink() as sink:
        on_stage("the agent runs undisturbed")
        undisturbed = _run(directory, "undisturbed", "resilient", options, sink, kill=False)
        on_stage(f"the agent runs and dies after model call {options.kill_after}, then resumes")
        resumed = _run(directory, "crash", "resilient", options, sink, kill=True)
        on_stage("the same run on SqliteSaver, for the size of its file")
        plain = _run(directory, "sqlitesaver", "sqlite", options, sink, kill=False)
        return _report(options, undisturbed, resumed, plain)


def _run(
    directory: Path,
    name: str,
    saver: SaverKind,
    options: DemoOptions,
    sink: SmtpSink,
    *,
    kill: bool,
) -> _Run:
    """Run the agent once, starting it again for as long as it dies."""
    database, log = directory / f"{name}.db", directory / f"{name}.calls.jsonl"
    before = sink.received
    fixed = ["--db", str(database), "--log", str(log), "--smtp-port", str(sink.port)]
    fixed += ["--saver", saver, "--durability", options.durability]
    fixed += ["--latency", str(options.latency)]
    killed: list[int] = []
    attempt = 0
    while True:
        mine = ["--attempt", str(attempt), "--mode", "resume" if attempt else "run"]
        mine += ["--kill-after", str(options.kill_after if kill and not attempt else 0)]
        returncode, started_ns = run_child(_CHILD, fixed + mine, timeout=_TIMEOUT)
        if not was_killed(returncode):
            break
        killed.append(attempt)
        attempt += 1
    return _Run(
        events=read_events(str(log)),
        state=_final_state(saver, database),
        emails=sink.received - before,
        bytes=file_bytes(database),
        killed=killed,
        last_started_ns=started_ns,
    )


def _final_state(saver: SaverKind, database: Path) -> dict[str, Any]:
    """What the file holds for the thread at the end: every channel, the messages among them."""
    with open_saver(saver, str(database)) as opened:
        found = opened.get_tuple({"configurable": {"thread_id": THREAD_ID}})
    if found is None:
        raise DemoFailed(f"the run left no checkpoint in {database}")
    return dict(found.checkpoint["channel_values"])


def _report(options: DemoOptions, undisturbed: _Run, resumed: _Run, plain: _Run) -> DemoReport:
    saved = savings(resumed.events, resumed.killed)
    with_crash = count_calls(resumed.events)
    without = count_calls(undisturbed.events)
    first_step = [event for event in resumed.events if event.kind == "step"][-1]
    same_state = undisturbed.state == resumed.state == plain.state
    return DemoReport(
        equal=same_state and undisturbed.emails == resumed.emails,
        kills=len(resumed.killed),
        kill_instant=KILL_INSTANT.format(number=options.kill_after),
        model_calls=_total(without, "model"),
        tool_calls=_total(without, "tool"),
        repeated_model_calls=_repeated(with_crash, "model"),
        repeated_tool_calls=_repeated(with_crash, "tool"),
        tokens_finished=saved.finished,
        tokens_saved=saved.kept,
        tokens_saved_ratio=round(saved.ratio, 4),
        resume_ms=_milliseconds(first_step.at_ns - first_step.opened_ns),
        start_ms=_milliseconds(first_step.at_ns - resumed.last_started_ns),
        bytes=undisturbed.bytes,
        bytes_sqlitesaver=plain.bytes,
        bytes_resumed=resumed.bytes,
        emails_undisturbed=undisturbed.emails,
        emails_received=resumed.emails,
        final_undisturbed=_last_text(undisturbed.state),
        final_resumed=_last_text(resumed.state),
        messages=len(resumed.state.get("messages", [])),
        calls=_rows(without, with_crash),
        durability=options.durability,
        directory=str(options.directory) if options.directory else None,
    )


def _rows(without: Sequence[CallCount], with_crash: Sequence[CallCount]) -> list[CallRow]:
    """Both counts side by side, in the order of the undisturbed run."""
    left = {(count.kind, count.call): count.started for count in without}
    right = {(count.kind, count.call): count.started for count in with_crash}
    return [
        CallRow(
            kind=kind,
            call=call,
            undisturbed=left.get((kind, call), 0),
            with_crash=right.get((kind, call), 0),
        )
        for kind, call in dict.fromkeys([*left, *right])
    ]


def _total(counts: Sequence[CallCount], kind: str) -> int:
    return sum(count.started for count in counts if count.kind == kind)


def _repeated(counts: Sequence[CallCount], kind: str) -> int:
    return sum(count.repeated for count in counts if count.kind == kind)


def _last_text(state: dict[str, Any]) -> str:
    messages = state.get("messages", [])
    return str(messages[-1].content) if messages else ""


def _milliseconds(nanoseconds: int) -> float:
    return round(nanoseconds / 1e6, 3)
