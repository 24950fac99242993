"""How the commands talk: tables, JSON, progress bars, exit codes.

Results go to standard output, everything else to standard error. Knows no database.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any

import typer
from langchain_core.messages import BaseMessage
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table
from rich.text import Text

from langgraph_resilient.errors import ConfigurationError, ResilientError

# A width for pipes and files, where there is no terminal to take it from: nothing is cut.
_UNLIMITED = 1000

OnProgress = Callable[[str, int, int], None]


class ExitCode(IntEnum):
    """What the exit code of the command means."""

    OK = 0
    FINDINGS = 1
    """The command ran and what it found is not well: damage, a thread or a tool call that is not
    there or was left out, a call that has changed, a demo that is not equal."""
    USAGE = 2
    """The command line cannot work."""
    DATABASE = 3
    """The database could not be opened, read or written; the message says why."""
    INTERRUPTED = 130
    """Ctrl-C; the database is sound and the command can be run again."""


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn what a command's work raises into a message on standard error and an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        fail("interrupted; the database is sound, run the command again to go on")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except BrokenPipeError:
        raise  # the reader of the pipe has gone; nothing is wrong here
    except ConfigurationError as error:
        fail(str(error))
        raise typer.Exit(ExitCode.USAGE) from None
    except (ResilientError, sqlite3.Error, OSError) as error:
        fail(str(error))
        raise typer.Exit(ExitCode.DATABASE) from None


def fail(message: str) -> None:
    """Say on standard error what went wrong."""
    typer.echo(f"langgraph-resilient: {message}", err=True)


def note(message: str) -> None:
    """Say something beside the result, on standard error."""
    typer.echo(message, err=True)


def print_json(value: Any) -> None:
    """Print one JSON object; dataclasses as objects, paths as text."""
    typer.echo(json.dumps(plain(value), indent=2, ensure_ascii=True, default=str))


def plain(value: Any) -> Any:
    """Dataclasses, wherever they are, as dictionaries; keys as text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def jsonable(value: Any) -> Any:
    """What JSON can say of a value; messages as dictionaries."""
    if isinstance(value, BaseMessage):
        return value.model_dump()
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    return value


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str = "") -> None:
    """Print rows under column heads; numbers to the right, nothing cut off."""
    if title:
        typer.echo(title)
    table = Table()
    numeric = [
        bool(rows) and all(isinstance(row[place], int | float) for row in rows)
        for place in range(len(columns))
    ]
    for name, is_number in zip(columns, numeric, strict=True):
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    _console().print(table)


def print_lines(lines: Sequence[tuple[str, str]]) -> None:
    """Print pairs of a name and what there is to say, the names in one column."""
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        typer.echo(f"{name:<{width}}  {text}")


def print_parts(parts: Sequence[tuple[str, str]]) -> None:
    """Print one text made of parts, each in a colour (or in none); words are not cut."""
    text = Text()
    for part, colour in parts:
        text.append(part, style=colour)
    _console().print(text)


def size(count: int | None) -> str:
    """A number of bytes as people read it, in powers of ten: ``1.2 MB``."""
    if count is None:
        return "?"
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def time_text(stamp: Any) -> str:
    """A time to the second: one of the record as it was written, seconds since 1970 as local."""
    if not stamp:
        return ""
    try:
        if isinstance(stamp, float):
            found = datetime.fromtimestamp(stamp).astimezone()
        else:
            found = datetime.fromisoformat(str(stamp))
    except (ValueError, OverflowError, OSError):
        return str(stamp)
    return found.strftime("%Y-%m-%d %H:%M:%S")


def lifetime_text(seconds: float | None, end: datetime | None) -> str:
    """How long a thread lives, for a person."""
    if seconds is None or end is None:
        return "It lives for ever."
    span = timedelta(seconds=seconds)
    return f"It lives for {span} after its last write, until {time_text(end.timestamp())}."


@contextmanager
def progress_bar() -> Iterator[OnProgress]:
    """A bar on standard error when that is a terminal, else nothing.

    Yields:
        What to call with a text, how much is done and how much there is (0: not known).
    """
    if not sys.stderr.isatty():
        yield lambda _what, _done, _total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with ProgressBar(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total or None)

        yield show


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_UNLIMITED)
