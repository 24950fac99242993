"""``unfinished`` and ``recover``: the threads that a crash has left, and going on with them."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from langgraph_resilient.cli.options import Json, Threads, on_database
from langgraph_resilient.cli.output import (
    ExitCode,
    note,
    print_json,
    print_table,
    progress_bar,
    time_text,
)
from langgraph_resilient.errors import ConfigurationError
from langgraph_resilient.guard import Recovery, Unfinished, recover, unfinished
from langgraph_resilient.saver import ResilientSaver

Graph = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:NAME",
        help="The compiled graph, or a function that makes it from a saver; imported from this folder.",
    ),
]
Attempts = Annotated[
    int,
    typer.Option("--attempts", min=1, help="Give a thread up after so many from one checkpoint."),
]
Concurrency = Annotated[
    int, typer.Option("--concurrency", min=1, help="How many threads at a time.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("unfinished")(list_unfinished)
    app.command("recover")(recover_threads)


@on_database
def list_unfinished(
    saver: ResilientSaver, graph: Graph, threads: Threads = None, as_json: Json = False
) -> None:
    """List the threads that were stopped before their end, by a crash or for a question."""
    found = unfinished(_loaded(graph, saver), saver, threads=threads)
    if as_json:
        print_json({"unfinished": [_unfinished(one) for one in found]})
        return
    columns = ("thread", "next", "waits", "attempts", "held by", "written", "changes", "error")
    print_table(
        columns,
        [
            (
                one.thread_id,
                ", ".join(one.next),
                "yes" if one.waits else "",
                str(one.attempts),
                one.held_by or "",
                time_text(one.written_at),
                "; ".join(map(str, one.changes)),
                one.error,
            )
            for one in found
        ],
    )


@on_database
def recover_threads(
    saver: ResilientSaver,
    graph: Graph,
    threads: Threads = None,
    attempts: Attempts = 3,
    concurrency: Concurrency = 4,
    as_json: Json = False,
) -> None:
    """Go on with the threads that a crash has stopped; those that wait for an answer stay."""
    made = _loaded(graph, saver)
    names = [one.thread_id for one in unfinished(made, saver, threads=threads)]
    with progress_bar() as show:
        ended = 0

        def told(_: Recovery) -> None:
            nonlocal ended
            ended += 1
            show("recover", ended, len(names))

        found = recover(
            made,
            saver,
            threads=names,
            attempts=attempts,
            concurrency=concurrency,
            on_progress=told,
        )
    if as_json:
        print_json({"recovered": [_recovery(one) for one in found]})
    else:
        rows = [(one.thread_id, one.outcome, str(one.attempt), _why(one)) for one in found]
        print_table(("thread", "outcome", "attempt", "why"), rows)
    if any(one.outcome in ("failed", "given_up") for one in found):
        note("some threads did not come to their end; see the column why")
        raise typer.Exit(ExitCode.FINDINGS)


def _loaded(text: str, saver: ResilientSaver) -> Any:
    """The graph that a text names.

    Raises:
        ConfigurationError: there is no such thing.
    """
    module, _, name = text.partition(":")
    if not module or not name:
        raise ConfigurationError(
            f"{text!r} names no graph; give MODULE:NAME, such as app.agents:graph"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{text!r} cannot be imported: {error}") from error
    made = found if hasattr(found, "get_state") or not callable(found) else found(saver)
    return made


def _unfinished(one: Unfinished) -> dict[str, Any]:
    return {
        "thread": one.thread_id,
        "checkpoint": one.checkpoint_id,
        "next": list(one.next),
        "waits": one.waits,
        "questions": [asked.id for asked in one.interrupts],
        "attempts": one.attempts,
        "held_by": one.held_by,
        "written_at": one.written_at,
        "changes": [str(change) for change in one.changes],
        "error": one.error,
    }


def _recovery(one: Recovery) -> dict[str, Any]:
    return {
        "thread": one.thread_id,
        "outcome": one.outcome,
        "attempt": one.attempt,
        "why": _why(one),
        "questions": [asked.id for asked in one.interrupts],
    }


def _why(one: Recovery) -> str:
    if one.error is not None:
        return f"{type(one.error).__name__}: {one.error}"
    if one.held_by is not None:
        return f"held by {one.held_by}"
    if one.outcome == "given_up":
        return "tried often enough from the same checkpoint"
    return "waits for an answer" if one.outcome == "waiting" else ""
