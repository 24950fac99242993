"""The commands that make a file smaller: prune, expire, gc, compact; and those for one thread: ttl,
copy, repair.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

import typer

from langgraph_resilient import maintenance
from langgraph_resilient.cli.options import Json, Threads, on_database
from langgraph_resilient.cli.output import ExitCode, fail, lifetime_text, print_json, progress_bar
from langgraph_resilient.cli.reporting import print_report, relay
from langgraph_resilient.errors import ConfigurationError
from langgraph_resilient.saver import ResilientSaver

DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; say what would be done.")]
OlderThan = Annotated[
    str | None,
    typer.Option("--older-than", metavar="AGE", help="Such as 90m, 36h, 30d, 8w."),
]
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def age(text: str) -> timedelta:
    """A time as people write it: a number and s, m, h, d or w.

    Raises:
        ConfigurationError: it is none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip().lower())
    if found is None:
        raise ConfigurationError(f"{text!r} is no age; write it like 90m, 36h, 30d or 8w")
    try:
        return timedelta(**{_UNITS[found[2]]: float(found[1])})
    except OverflowError:
        raise ConfigurationError(f"{text!r} is longer than time itself") from None


@on_database
def prune(
    saver: ResilientSaver,
    thread: Threads = None,
    keep: Annotated[
        int | None,
        typer.Option(min=1, help="Keep so many of the newest; 1 unless an age is given."),
    ] = None,
    older_than: OlderThan = None,
    journal: Annotated[
        bool, typer.Option("--journal", help="Also model calls older than what is left.")
    ] = False,
    ledger: Annotated[
        bool,
        typer.Option(
            "--ledger",
            help="Also finished tool calls older than what is left; time travel may repeat them.",
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Drop old checkpoints; the newest, and what waits or is unknown, stays."""
    limit = None if older_than is None else age(older_than)
    with progress_bar() as show:
        report = maintenance.prune(
            saver,
            keep=keep,
            older_than=limit,
            threads=thread,
            dry_run=dry_run,
            journal=journal,
            ledger=ledger,
            progress=relay(show),
        )
    print_report(report, as_json)


@on_database
def gc(
    saver: ResilientSaver, thread: Threads = None, dry_run: DryRun = False, as_json: Json = False
) -> None:
    """Remove contents, templates and streams that nothing names any more."""
    with progress_bar() as show:
        report = maintenance.gc(saver, threads=thread, dry_run=dry_run, progress=relay(show))
    print_report(report, as_json)


@on_database
def compact(
    saver: ResilientSaver,
    thread: Threads = None,
    vacuum: Annotated[
        bool, typer.Option(help="Give free space back to the file system at the end.")
    ] = True,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Pack old contents into large frames and make the file smaller; nothing is lost."""
    with progress_bar() as show:
        report = maintenance.compact(
            saver, threads=thread, vacuum=vacuum, dry_run=dry_run, progress=relay(show)
        )
    print_report(report, as_json)


@on_database
def expire(
    saver: ResilientSaver,
    older_than: OlderThan = None,
    thread: Threads = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also those that wait for an answer or have an unknown tool call."
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Delete whole threads whose time to live is over; --older-than is for those that have none."""
    limit = None if older_than is None else age(older_than)
    with progress_bar() as show:
        report = maintenance.expire(
            saver,
            older_than=limit,
            threads=thread,
            force=force,
            dry_run=dry_run,
            progress=relay(show),
        )
    print_report(report, as_json)


@on_database
def ttl(
    saver: ResilientSaver,
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="The thread_id.")],
    time_to_live: Annotated[
        str | None,
        typer.Argument(metavar="AGE", help="Such as 90m, 36h, 30d, 8w; 'none' for ever."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show or set how long a thread lives after its last write, until `expire` deletes it."""
    if thread not in maintenance.all_threads(saver):
        fail(f"there is no thread {thread!r} in this database")
        raise typer.Exit(ExitCode.FINDINGS)
    if time_to_live is not None:
        saver.set_ttl(thread, None if time_to_live.lower() == "none" else age(time_to_live))
    found, end = saver.get_ttl(thread), maintenance.expires_at(saver, thread)
    if as_json:
        print_json({"thread_id": thread, "ttl": found, "expires_at": end and end.isoformat()})
    else:
        typer.echo(lifetime_text(found, end))


@on_database
def copy(
    saver: ResilientSaver,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The thread_id.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The copy's thread_id.")],
    latest: Annotated[
        bool, typer.Option("--latest", help="Only the newest state, without its history.")
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Copy a thread, or its newest state, to a new thread; exit code 1 if it is not there."""
    report = maintenance.copy_thread(saver, source, target, latest_only=latest, dry_run=dry_run)
    print_report(report, as_json)
    if not any((report.checkpoints, report.writes, report.calls, report.model_calls)):
        fail(f"there is nothing of a thread {source!r} in this database")
        raise typer.Exit(ExitCode.FINDINGS)


@on_database
def repair(
    saver: ResilientSaver,
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="The thread_id.")],
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Fall back to the newest intact checkpoint of a damaged thread; exit code 1 if none is left."""
    report = maintenance.repair(saver, thread, dry_run=dry_run)
    print_report(report, as_json)
    if report.hopeless:
        raise typer.Exit(ExitCode.FINDINGS)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (prune, expire, ttl, gc, compact, copy, repair):
        app.command()(command)
