"""The commands: each parses, calls the package and prints; none knows SQL."""

from __future__ import annotations

from functools import partial
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from langgraph_resilient import maintenance
from langgraph_resilient.cli import recovery
from langgraph_resilient.cli.checkpoints import (
    channel_infos,
    checkpoint_info,
    message_infos,
)
from langgraph_resilient.cli.demo import demo
from langgraph_resilient.cli.journal import journal
from langgraph_resilient.cli.ledger import ledger
from langgraph_resilient.cli.options import Json, Threads, on_database, program
from langgraph_resilient.cli.output import (
    ExitCode,
    fail,
    lifetime_text,
    note,
    plain,
    print_json,
    print_table,
    progress_bar,
    size,
    time_text,
)
from langgraph_resilient.cli.reporting import named_rows, print_report, relay
from langgraph_resilient.cli.upkeep import register
from langgraph_resilient.errors import DataCorrupt
from langgraph_resilient.saver import ResilientSaver

_HELP = """Look into, check and move what LangGraph agents left in a SQLite file; decide about tool
calls whose outcome nobody knows.

Exit codes: 0 done; 1 something was found (damage, a thread or a tool call that is not there or
was left out, a call that has changed, a demo that is not equal); 2 the command line cannot work; 3 the database could not be used, the
message says why; 130 Ctrl-C.
"""

app = typer.Typer(
    help=_HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.callback()(program)
app.command()(demo)
app.add_typer(ledger, name="ledger")
app.add_typer(journal, name="journal")


@app.command()
@on_database
def threads(
    saver: ResilientSaver,
    as_json: Json = False,
) -> None:
    """List the threads: how many checkpoints, how large, from when to when, and tool calls."""
    found = maintenance.threads(saver)
    if as_json:
        print_json({"threads": found})
        return
    columns = (
        "thread",
        "checkpoints",
        "namespaces",
        "writes",
        "size",
        "first",
        "last",
        "expires",
        "calls",
        "unknown",
        "stored by",
    )
    print_table(
        columns,
        [
            (
                info.thread_id,
                info.checkpoints,
                info.namespaces,
                info.writes,
                size(info.bytes),
                time_text(info.first_ts),
                time_text(info.last_ts),
                time_text(info.expires_at),
                info.calls,
                info.unknown_calls,
                "SqliteSaver" if info.source == "sqlite" else "resilient",
            )
            for info in found
        ],
    )


@app.command()
@on_database
def show(
    saver: ResilientSaver,
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="The thread_id.")],
    checkpoint: Annotated[
        str | None, typer.Option(help="Show what this checkpoint holds; 'latest' is the newest.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--ns", help="Only this checkpoint namespace (a subgraph's).")
    ] = None,
    content: Annotated[
        bool, typer.Option("--content", help="Also show what messages and values say.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Only the newest checkpoints.")] = 50,
    as_json: Json = False,
) -> None:
    """Show the checkpoints of a thread, newest first, or the values in one of them."""
    if checkpoint is not None or content:
        _show_checkpoint(saver, thread, checkpoint, namespace, content, as_json)
    else:
        _show_thread(saver, thread, namespace, limit, as_json)


def _config(thread: str, namespace: str | None) -> Any:
    configurable = {"thread_id": thread}
    if namespace is not None:
        configurable["checkpoint_ns"] = namespace
    return {"configurable": configurable}


def _show_thread(
    saver: ResilientSaver, thread: str, namespace: str | None, limit: int, as_json: bool
) -> None:
    listed = saver.list(_config(thread, namespace), limit=limit + 1)
    infos = [checkpoint_info(item) for item in islice(listed, limit + 1)]
    if not infos:
        fail(f"there is no checkpoint of thread {thread!r} in this database")
        raise typer.Exit(ExitCode.FINDINGS)
    shown, more = infos[:limit], len(infos) > limit
    unknown = len(saver.ledger.unknown(thread))
    ttl, end = saver.get_ttl(thread), maintenance.expires_at(saver, thread)
    if as_json:
        found = {"checkpoints": shown, "more": more, "unknown_calls": unknown}
        found |= {"ttl": ttl, "expires_at": end and end.isoformat()}
        print_json({"thread_id": thread, **found})
        return
    columns = ("checkpoint", "ns", "step", "source", "next", "writes", "messages", "state", "made")
    rows = [
        (
            info.checkpoint_id,
            info.checkpoint_ns,
            info.step,
            info.source,
            ", ".join([*info.next, *(f"({name})" for name in info.waiting)]),
            info.writes,
            info.messages,
            size(info.bytes),
            time_text(info.ts),
        )
        for info in shown
    ]
    print_table(columns, rows, title=f"Thread {thread}")
    if more:
        note(f"Older checkpoints are not shown; --limit {limit * 10} shows more.")
    if ttl is not None:
        note(lifetime_text(ttl, end))
    if unknown:
        note(
            f"Nobody knows the outcome of {unknown} of its tool calls; "
            f"`ledger list {quote(thread)} --unknown` shows which."
        )


def _show_checkpoint(
    saver: ResilientSaver,
    thread: str,
    checkpoint: str | None,
    namespace: str | None,
    content: bool,
    as_json: bool,
) -> None:
    config = _config(thread, namespace or "")
    if checkpoint not in (None, "latest"):
        config["configurable"]["checkpoint_id"] = checkpoint
    found = saver.get_tuple(config)
    if found is None:
        fail(f"there is no checkpoint {checkpoint or ''} of thread {thread!r} in this database")
        raise typer.Exit(ExitCode.FINDINGS)
    info = checkpoint_info(found)
    channels = channel_infos(found, content=content)
    messages = message_infos(found, content=content)
    if as_json:
        print_json(
            {"thread_id": thread, "checkpoint": info, "channels": channels, "messages": messages}
        )
        return
    columns = ("channel", "type", "summary")
    rows = [(channel.channel, channel.type, channel.summary) for channel in channels]
    print_table(columns, rows, title=f"Checkpoint {info.checkpoint_id}")
    print_table(
        ("#", "message", "id", "characters", "tool calls"),
        [
            (item.place, item.type, item.id, item.characters, ", ".join(item.tool_calls))
            for item in messages
        ],
    )
    if content:
        for item in messages:
            typer.echo(f"\n[{item.place}] {item.type}\n{item.content}")
        for channel in channels:
            if channel.content is not None:
                typer.echo(f"\n[{channel.channel}]\n{channel.content!r}")


def _print_verification(report: maintenance.VerifyReport, as_json: bool) -> None:
    if as_json:
        print_json(report)
    else:
        if report.checked:
            print_table(("checked", "number"), list(report.checked.items()))
        if report.findings:
            columns = ("finding", "thread", "checkpoint", "channel", "message")
            rows = [
                (item.kind, item.thread_id, item.checkpoint_id, item.channel, item.message)
                for item in report.findings
            ]
            print_table(columns, rows)
        typer.echo(f"findings: {len(report.findings)}" if report.findings else "all is well")
    if not report.ok:
        raise typer.Exit(ExitCode.FINDINGS)


def _report_unreadable(error: DataCorrupt, as_json: bool) -> None:
    """A file that is too damaged to be opened: all that can be found in it."""
    finding = maintenance.Finding("file", str(error), error.thread_id)
    report = maintenance.VerifyReport(ok=False, checked={}, findings=[finding])
    _print_verification(report, as_json)


@app.command()
@partial(on_database, unreadable=_report_unreadable)
def verify(
    saver: ResilientSaver,
    as_json: Json = False,
) -> None:
    """Read and check everything; exit code 1 when something is damaged."""
    with progress_bar() as show_progress:
        report = maintenance.verify(saver, progress=relay(show_progress))
    _print_verification(report, as_json)


def _print_threads(saver: ResilientSaver, wanted: list[str], as_json: bool) -> None:
    known = {info.thread_id: info for info in maintenance.threads(saver)}
    found = [known[name] for name in dict.fromkeys(wanted) if name in known]
    if as_json:
        print_json({"threads": found})
    else:
        for info in found:
            print_table(("what", "number"), named_rows(plain(info)))
    for name in [name for name in wanted if name not in known]:
        fail(f"there is no thread {name!r} in this database")
        raise typer.Exit(ExitCode.FINDINGS)


@app.command()
@on_database
def stats(
    saver: ResilientSaver,
    thread: Threads = None,
    as_json: Json = False,
) -> None:
    """Count what the file holds and what it takes; with --thread, what these threads do."""
    if thread:
        _print_threads(saver, thread, as_json)
        return
    found = maintenance.stats(saver)
    if as_json:
        print_json(found)
        return
    print_table(("what", "number"), named_rows(plain(found)))


@app.command()
@on_database
def migrate(
    saver: ResilientSaver,
    thread: Threads = None,
    drop: Annotated[
        bool,
        typer.Option("--drop", help="Delete SqliteSaver's rows of what was moved and verified."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Move threads that SqliteSaver wrote in this file, and verify each for equality."""
    with progress_bar() as show_progress:
        report = maintenance.migrate(
            saver, thread_ids=thread, drop=drop, progress=relay(show_progress)
        )
    print_report(report, as_json)


@app.command()
@on_database
def export(
    saver: ResilientSaver,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The new SQLite file.")],
    thread: Threads = None,
    as_json: Json = False,
) -> None:
    """Write a plain SqliteSaver file, which every LangGraph program can open."""
    with progress_bar() as show_progress:
        report = maintenance.export(saver, target, thread_ids=thread, progress=relay(show_progress))
    print_report(report, as_json)


recovery.register(app)
register(app)
