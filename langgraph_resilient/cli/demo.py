"""The command ``demo``: runs it and shows what came out.

What it runs is imported when it is called; the other commands start faster without it.
"""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from langgraph_resilient.cli.options import Json
from langgraph_resilient.cli.output import (
    ExitCode,
    exit_codes,
    note,
    print_json,
    print_lines,
    print_parts,
    print_table,
    progress_bar,
    size,
)

if TYPE_CHECKING:
    from langgraph_resilient.demo.conversation import ReplayReport
    from langgraph_resilient.demo.runner import DemoReport
    from langgraph_resilient.demo.screen import StreamCase


class Durability(str, Enum):
    """LangGraph's durability modes, as choices on the command line."""

    ASYNC = "async"
    SYNC = "sync"
    EXIT = "exit"


Conversation = Annotated[
    list[Path] | None,
    typer.Option(
        help="Replay recorded conversations (.jsonl or .jsonl.zst) instead of the small agent; "
        "may be given again."
    ),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Replay only that many conversations.")]
Kills = Annotated[int, typer.Option(min=0, help="Replay: kills for each conversation.")]
Seed = Annotated[int, typer.Option(help="Replay: of the moments of the kills.")]
Compare = Annotated[
    bool, typer.Option(help="Replay: also measure SqliteSaver's files, which takes longer.")
]
KillAfter = Annotated[
    int, typer.Option(min=1, max=5, help="Agent: number of the model call after which it dies.")
]
Latency = Annotated[
    float | None,
    typer.Option(min=0, help="Seconds that a call takes. [default: 0.05; replay: 0.01]"),
]
DurabilityMode = Annotated[
    Durability, typer.Option(help="LangGraph's durability mode; async is its default.")
]
Directory = Annotated[Path | None, typer.Option("--dir", help="Keep the databases in this folder.")]


def demo(
    conversation: Conversation = None,
    limit: Limit = None,
    kills: Kills = 3,
    seed: Seed = 0,
    compare: Compare = True,
    kill_after: KillAfter = 3,
    latency: Latency = None,
    durability: DurabilityMode = Durability.ASYNC,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Kill a running agent with SIGKILL, start it again and compare; needs no key.

    Without options: an agent of five model calls and three tool calls that sends an e-mail to a
    mail server on this machine. It dies after a model call, inside the e-mail tool, and in the
    middle of an answer that a user is reading.
    """
    with exit_codes():
        if conversation:
            wait = 0.01 if latency is None else latency
            equal = _replay(
                as_json,
                files=conversation,
                limit=limit,
                kills=kills,
                seed=seed,
                durability=durability.value,
                latency=wait,
                compare=compare,
                directory=directory,
            )
        else:
            wait = 0.05 if latency is None else latency
            equal = _run_agent(
                as_json,
                durability=durability.value,
                kill_after=kill_after,
                latency=wait,
                directory=directory,
            )
    if not equal:
        raise typer.Exit(ExitCode.FINDINGS)


def _run_agent(as_json: bool, **options: Any) -> bool:
    """Run the small agent and show it; whether all was equal."""
    from langgraph_resilient.demo.runner import DemoOptions, run_demo

    report = run_demo(DemoOptions(**options), note)
    if as_json:
        print_json(report)
    else:
        _show_agent(report)
    return report.equal


def _replay(as_json: bool, **options: Any) -> bool:
    """Replay conversations and show it; whether all was equal."""
    from langgraph_resilient.demo.conversation import ReplayOptions, replay

    with progress_bar() as show:
        report = replay(ReplayOptions(**options), show)
    if as_json:
        print_json(report)
    else:
        _show_replay(report)
    return report.equal


def _show_agent(report: DemoReport) -> None:
    typer.echo(
        f"\n{report.model_calls} model calls, {report.tool_calls} tool calls. "
        f"First SIGKILL:\n{report.kill_instant}.\n"
    )
    columns = ("call", "", "undisturbed", "with crash", "note")
    rows = [
        (row.kind, row.call, row.undisturbed, row.with_crash, _remark(row.with_crash))
        for row in report.calls
    ]
    print_table(columns, rows, title="How often each call ran")
    _show_mail_cases(report)
    _show_stream(report.stream)
    print_lines(
        [
            ("undisturbed run", report.final_undisturbed),
            ("resumed run", report.final_resumed),
            ("final states", _equal(report.equal, f"{report.messages} messages")),
            ("kills", _times(report.kills, "SIGKILL")),
            *_common(report),
        ]
    )


def _show_mail_cases(report: DemoReport) -> None:
    """What the ledger asked about e-mails, and how many arrived."""
    if report.question is not None:
        fields = {name: report.question[name] for name in ("kind", "message", "tool")}
        typer.echo("\nKilled inside the e-mail tool, the resumed run asks before it goes on:")
        typer.echo(f"  {json.dumps(fields)}")
        typer.echo("and is told, after a look into the mail server's log:")
        typer.echo(f"  {json.dumps(report.answer)}\n")
    columns = ("saver", "killed inside the e-mail tool", "asked", "answer", "e-mails")
    rows = [
        (
            "ResilientSaver" if case.saver == "resilient" else "SqliteSaver",
            case.kill_instant,
            "yes" if case.question else "no",
            f"{case.answer['action']}: {case.answer['reason']}" if case.answer else "",
            case.emails,
        )
        for case in report.mail_cases
    ]
    print_table(columns, rows, title="E-mails that arrived")


def _show_stream(case: StreamCase) -> None:
    """What the user saw of an answer that was cut: before the crash, and after it in two colours."""
    typer.echo(f"\nKilled {case.kill_instant}. On the screen stood:")
    print_parts([(case.seen_before, "")])
    typer.echo(
        "\nThe restarted run shows the same message again from the database and goes on with it:"
    )
    print_parts([(case.replayed, "cyan"), (case.continued, "green")])
    stored, new = len(case.replayed), len(case.continued)
    print_parts(
        [
            (f"from the database: {stored} characters", "cyan"),
            ("; ", ""),
            (f"new: {new} characters", "green"),
        ]
    )
    kept = "nothing taken back, nothing twice" if case.prefix_kept else "NOT KEPT"
    typer.echo(f"{_times(case.message_ids, 'message id')}; what had been read: {kept}\n")


def _show_replay(report: ReplayReport) -> None:
    print_lines(
        [
            (
                "replayed",
                f"{report.conversations} conversations, {report.messages:,} messages, "
                f"{report.model_calls:,} model calls, {report.tool_calls:,} tool calls "
                f"in {report.seconds:.1f} s",
            ),
            ("kills", f"{_times(report.kills, 'SIGKILL')}, at random moments (seed {report.seed})"),
            ("final states", _equal(report.equal, "as recorded")),
            *_common(report),
        ]
    )
    for difference in report.differences:
        typer.echo(f"  differs: {difference}")


def _common(report: DemoReport | ReplayReport) -> list[tuple[str, str]]:
    """What both kinds of demo measure."""
    bytes_text = size(report.bytes)
    if report.bytes_sqlitesaver:
        ratio = report.bytes_sqlitesaver / report.bytes
        bytes_text += (
            f"; SqliteSaver: {size(report.bytes_sqlitesaver)} ({ratio:.1f} times as large)"
        )
    lines = [
        (
            "calls repeated",
            f"{report.repeated_model_calls} model, {report.repeated_tool_calls} tool "
            f"(LangGraph's durability {report.durability!r})",
        ),
        (
            "tokens saved",
            f"{report.tokens_saved:,} of the {report.tokens_finished:,} that were paid for "
            f"before the kills ({report.tokens_saved_ratio:.0%})",
        ),
    ]
    if report.resume_ms is not None:
        lines.append(
            (
                "first new call",
                f"{report.resume_ms:.1f} ms after opening the saver, "
                f"{report.start_ms:.0f} ms after the start of the process",
            )
        )
    lines.append(("file", bytes_text))
    if report.directory:
        lines.append(("kept in", report.directory))
    return lines


def _remark(times: int) -> str:
    return "ran again" if times > 1 else ""


def _equal(equal: bool, what: str) -> str:
    return f"equal ({what})" if equal else "NOT EQUAL"


def _times(count: int, what: str) -> str:
    return f"{count} × {what}"
