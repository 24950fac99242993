"""The demo's parent process: starts the agent, lets it be killed, starts it again, compares.

Everything it reports it sees from outside: the calls from the log that the children append to,
the e-mails from its own SMTP server, the final states and the sizes from the files. It also plays
the human who is asked what became of an e-mail, and looks that up in the server's log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from langgraph_resilient.demo.agent import THREAD_ID
from langgraph_resilient.demo.calls import (
    CallCount,
    Event,
    Savings,
    count_calls,
    read_events,
    savings,
)
from langgraph_resilient.demo.process import (
    Durability,
    SaverKind,
    database_folder,
    file_bytes,
    open_saver,
    run_child,
    was_killed,
)
from langgraph_resilient.demo.screen import Shown, StreamCase, read_cut_answer, stream_case
from langgraph_resilient.demo.smtp import SmtpSink
from langgraph_resilient.demo.tools import receipt
from langgraph_resilient.errors import DemoFailed

_CHILD = "langgraph_resilient.demo.agent"
_TIMEOUT = 120.0
_MAIL_RUNS = ("mail-after", "mail-before", "mail-sqlitesaver")
_RUNS = ("undisturbed", "crash", "stream", "sqlitesaver", *_MAIL_RUNS)
_FILES = tuple(
    name + ending for name in _RUNS for ending in (".db", ".calls.jsonl", ".screen.jsonl")
)

#: Where exactly the process dies; the worst place, since the call is paid for and nothing but
#: this process knows the answer.
KILL_INSTANT = (
    "in the model node, when model call {number} has finished and before the node has "
    "returned its answer to LangGraph"
)


#: Where it dies in the middle of an answer, in words of it that stand on the user's screen.
WORDS_SEEN = 40
STREAM_INSTANT = "when the user has read {number} words of the summary, in the middle of a sentence"

#: Where it dies inside the e-mail tool. Nobody but the mail server knows which of them it was.
MAIL_INSTANTS = {
    "after": "when the mail server has the mail and before the tool has returned",
    "before": "when the tool has begun and before the mail is sent",
}


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
class MailCase:
    """A kill inside the e-mail tool, and what came of it.

    Attributes:
        saver: ``resilient`` or ``sqlite``.
        kill_instant: where in the tool the process died.
        kills: processes that ended by SIGKILL.
        question: what the resumed run asked; None: it asked nothing.
        answer: what it was told, after a look into the mail server's log.
        emails: e-mails that arrived.
        equal: whether the run ended as the undisturbed one.
    """

    saver: str
    kill_instant: str
    kills: int
    question: dict[str, Any] | None
    answer: dict[str, Any] | None
    emails: int
    equal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """The demo's outcome, in plain values.

    Attributes:
        equal: the resumed runs, the undisturbed one and SqliteSaver's undisturbed one ended with
            the same state, and as many e-mails arrived in each.
        kills: processes that ended by SIGKILL, in all runs.
        kill_instant: where in the agent the process of the first crash died.
        model_calls, tool_calls: calls of the undisturbed run.
        repeated_model_calls, repeated_tool_calls: calls that ran again after they had finished, in
            all our runs that crashed.
        tokens_finished: tokens of the model calls that had finished at a kill, in these runs.
        tokens_saved: those of them that were not paid for again.
        tokens_saved_ratio: ``tokens_saved / tokens_finished``.
        resume_ms: after the first crash, opening the saver to the first new model call, in
            milliseconds; to the first step, where no model call was left.
        start_ms: from the start of that process, milliseconds.
        bytes, bytes_sqlitesaver: size on disk after the undisturbed run, WAL included.
        bytes_resumed: size on disk of the file that went through the first crash.
        emails_undisturbed, emails_received: e-mails that arrived, without and with that crash.
        emails, emails_sqlitesaver: e-mails that arrived when the process died inside the e-mail
            tool, after the mail had left; ours and plain SqliteSaver's.
        question, answer: what the ledger asked about that e-mail, and what it was told.
        mail_cases: each kill inside the e-mail tool.
        stream: the kill in the middle of a streamed answer.
        final_undisturbed, final_resumed: text of the last message.
        messages: number of messages in the final state.
        calls: how often each call ran, without and with the first crash.
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
    emails: int
    emails_sqlitesaver: int
    question: dict[str, Any] | None
    answer: dict[str, Any] | None
    mail_cases: list[MailCase]
    stream: StreamCase
    final_undisturbed: str
    final_resumed: str
    messages: int
    calls: list[CallRow]
    durability: str
    directory: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What one run is to be.

    Attributes:
        name: of its files.
        saver: which saver it runs on.
        kill_after: see `DemoOptions`; 0: not there.
        death: where the first process dies inside the e-mail tool; empty: not there.
        die_after_words: where it dies in the middle of an answer that is streamed to a screen; 0:
            nothing is streamed.
    """

    name: str
    saver: SaverKind = "resilient"
    kill_after: int = 0
    death: str = ""
    die_after_words: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run of the agent, from its first process to its end."""

    events: list[Event]
    state: dict[str, Any]
    emails: int
    bytes: int
    killed: list[int]
    last_started_ns: int
    asked: list[tuple[dict[str, Any], dict[str, Any]]]
    shown: list[Shown]


def run_demo(options: DemoOptions, on_stage: Callable[[str], None] = lambda _: None) -> DemoReport:
    """Run the whole demo.

    Args:
        options: what the user chose.
        on_stage: is told what is being done, before it is.

    Raises:
        DemoFailed: a process failed by itself.
    """
    with database_folder(options.directory, _FILES) as directory:
        on_stage(f"the agent runs and dies after model call {options.kill_after}, then resumes")
        crash = _Plan(name="crash", kill_after=options.kill_after)
        resumed = _run(directory, options, crash)  # alone, since it is timed
        on_stage(
            "the agent runs undisturbed, dies inside the e-mail tool and in the middle of an "
            "answer; on SqliteSaver, too"
        )
        plans = [
            _Plan(name="undisturbed"),
            _Plan(name="sqlitesaver", saver="sqlite"),
            _Plan(name="stream", die_after_words=WORDS_SEEN),
            _Plan(name="mail-after", death="after"),
            _Plan(name="mail-before", death="before"),
            _Plan(name="mail-sqlitesaver", saver="sqlite", death="after"),
        ]
        with ThreadPoolExecutor(max_workers=len(plans)) as pool:
            runs = list(pool.map(lambda plan: _run(directory, options, plan), plans))
    undisturbed, plain, streamed, *mails = runs
    return _report(
        options,
        undisturbed=undisturbed,
        resumed=resumed,
        plain=plain,
        streamed=streamed,
        mails=list(zip(plans[3:], mails, strict=True)),
    )


def _run(directory: Path, options: DemoOptions, plan: _Plan) -> _Run:
    """Run the agent once, starting it again for as long as it dies."""
    database, log = directory / f"{plan.name}.db", directory / f"{plan.name}.calls.jsonl"
    screen = directory / f"{plan.name}.screen.jsonl"
    asked: list[tuple[dict[str, Any], dict[str, Any]]] = []
    killed: list[int] = []
    with SmtpSink() as sink:

        def answer(question: dict[str, Any]) -> dict[str, Any]:
            asked.append((question, look_up(question, sink)))
            return asked[-1][1]

        fixed = ["--db", str(database), "--log", str(log), "--smtp-port", str(sink.port)]
        fixed += ["--saver", plan.saver, "--durability", options.durability]
        fixed += ["--latency", str(options.latency)]
        fixed += ["--screen", str(screen)] if plan.die_after_words else []
        while True:
            arguments = [*fixed, *_arguments(plan, attempt=len(killed))]
            returncode, started_ns = run_child(_CHILD, arguments, timeout=_TIMEOUT, answer=answer)
            if not was_killed(returncode):
                break
            killed.append(len(killed))
        emails = sink.received
    return _Run(
        events=read_events(str(log)),
        state=_final_state(plan.saver, database),
        emails=emails,
        bytes=file_bytes(database),
        killed=killed,
        last_started_ns=started_ns,
        asked=asked,
        shown=read_cut_answer(str(screen)) if plan.die_after_words else [],
    )


def _arguments(plan: _Plan, *, attempt: int) -> list[str]:
    """What differs from process to process: only the first one dies."""
    if attempt:
        return ["--attempt", str(attempt), "--mode", "resume"]
    first = ["--attempt", "0", "--mode", "run", "--kill-after", str(plan.kill_after)]
    first += ["--death", plan.death] if plan.death else []
    return [*first, "--die-after-words", str(plan.die_after_words)]


def look_up(question: dict[str, Any], sink: SmtpSink) -> dict[str, Any]:
    """What somebody who is asked about an e-mail does: look whether the mail server has it."""
    wanted = question["arguments"]
    for mail in sink.mails:
        if (mail.to, mail.subject) == (wanted["to"], wanted["subject"]):
            return {
                "action": "succeeded",
                "result": receipt(mail.to, mail.subject, mail.message_id),
                "by": "the demo",
                "reason": "the mail server has it",
            }
    return {"action": "retry", "by": "the demo", "reason": "the mail server has no such mail"}


def _final_state(saver: SaverKind, database: Path) -> dict[str, Any]:
    """What the file holds for the thread at the end: every channel, the messages among them."""
    with open_saver(saver, str(database)) as opened:
        found = opened.get_tuple({"configurable": {"thread_id": THREAD_ID}})
    if found is None:
        raise DemoFailed(f"the run left no checkpoint in {database}")
    return dict(found.checkpoint["channel_values"])


def _report(
    options: DemoOptions,
    *,
    undisturbed: _Run,
    resumed: _Run,
    plain: _Run,
    streamed: _Run,
    mails: Sequence[tuple[_Plan, _Run]],
) -> DemoReport:
    crashed = [resumed, *(run for plan, run in mails if plan.saver == "resilient")]
    saved = [savings(run.events, run.killed) for run in [*crashed, streamed]]
    finished, kept = sum(one.finished for one in saved), sum(one.kept for one in saved)
    resumption = _first_new_call(resumed)
    cases = [_mail_case(plan, run, undisturbed) for plan, run in mails]
    stream = _stream_case(streamed, undisturbed)
    sent, theirs = cases[0], cases[-1]
    return DemoReport(
        equal=all(_same(run, undisturbed) for run in [plain, *crashed]) and stream.equal,
        kills=len(resumed.killed) + stream.kills + sum(case.kills for case in cases),
        kill_instant=KILL_INSTANT.format(number=options.kill_after),
        model_calls=_total(undisturbed, "model"),
        tool_calls=_total(undisturbed, "tool"),
        repeated_model_calls=sum(_repeated(run, "model") for run in [*crashed, streamed]),
        repeated_tool_calls=sum(_repeated(run, "tool") for run in [*crashed, streamed]),
        tokens_finished=finished,
        tokens_saved=kept,
        tokens_saved_ratio=round(Savings(finished=finished, kept=kept).ratio, 4),
        resume_ms=_milliseconds(resumption.at_ns - resumption.opened_ns),
        start_ms=_milliseconds(resumption.at_ns - resumed.last_started_ns),
        bytes=undisturbed.bytes,
        bytes_sqlitesaver=plain.bytes,
        bytes_resumed=resumed.bytes,
        emails_undisturbed=undisturbed.emails,
        emails_received=resumed.emails,
        emails=sent.emails,
        emails_sqlitesaver=theirs.emails,
        question=sent.question,
        answer=sent.answer,
        mail_cases=cases,
        stream=stream,
        final_undisturbed=_last_text(undisturbed.state),
        final_resumed=_last_text(resumed.state),
        messages=len(resumed.state.get("messages", [])),
        calls=_rows(count_calls(undisturbed.events), count_calls(resumed.events)),
        durability=options.durability,
        directory=str(options.directory) if options.directory else None,
    )


def _mail_case(plan: _Plan, run: _Run, undisturbed: _Run) -> MailCase:
    question, answer = run.asked[0] if run.asked else (None, None)
    return MailCase(
        saver=plan.saver,
        kill_instant=MAIL_INSTANTS[plan.death],
        kills=len(run.killed),
        question=question,
        answer=answer,
        emails=run.emails,
        equal=_same(run, undisturbed),
    )


def _first_new_call(run: _Run) -> Event:
    """The first model call of the last process; its first step, where no call was left."""
    last = [event for event in run.events if event.attempt == len(run.killed)]
    calls = [event for event in last if event.kind == "model"]
    return (calls or last)[0]


def _stream_case(run: _Run, undisturbed: _Run) -> StreamCase:
    """What came of the kill in mid-answer; the answer is found by where it stands in the state."""
    place = next(
        place
        for place, message in enumerate(undisturbed.state["messages"])
        if isinstance(message, AIMessage) and not message.tool_calls
    )
    return stream_case(
        run.shown,
        final=str(run.state["messages"][place].content),
        kill_instant=STREAM_INSTANT.format(number=WORDS_SEEN),
        kills=len(run.killed),
        equal=_same(_without_usage(run), _without_usage(undisturbed)),
    )


def _without_usage(run: _Run) -> _Run:
    """The run with messages as far as they are the same streamed, whole and in two parts."""
    messages = [
        message.model_copy(update={"usage_metadata": None, "response_metadata": {}})
        if isinstance(message, AIMessage)
        else message
        for message in run.state["messages"]
    ]
    return replace(run, state={**run.state, "messages": messages})


def _same(run: _Run, other: _Run) -> bool:
    """Whether two runs ended alike: the state, and the e-mails in the world."""
    return comparable(run.state) == comparable(other.state) and run.emails == other.emails


def comparable(state: dict[str, Any]) -> dict[str, Any]:
    """A state without the ids of tool messages, which are drawn at random in every run."""
    messages: list[BaseMessage] = [
        message.model_copy(update={"id": None}) if isinstance(message, ToolMessage) else message
        for message in state.get("messages", [])
    ]
    return {**state, "messages": messages}


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


def _total(run: _Run, kind: str) -> int:
    return sum(count.started for count in count_calls(run.events) if count.kind == kind)


def _repeated(run: _Run, kind: str) -> int:
    return sum(count.repeated for count in count_calls(run.events) if count.kind == kind)


def _last_text(state: dict[str, Any]) -> str:
    messages = state.get("messages", [])
    return str(messages[-1].content) if messages else ""


def _milliseconds(nanoseconds: int) -> float:
    return round(nanoseconds / 1e6, 3)
