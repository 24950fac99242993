"""``ledger list``, ``ledger show`` and ``ledger resolve``: tool calls, and decisions about them."""

from __future__ import annotations

import getpass
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer
from langchain_core.messages import BaseMessage

from langgraph_resilient.cli.options import Json, on_database
from langgraph_resilient.cli.output import (
    ExitCode,
    fail,
    jsonable,
    note,
    print_json,
    print_lines,
    print_table,
    time_text,
)
from langgraph_resilient.errors import ConfigurationError, LostOwnership
from langgraph_resilient.ledger import Entry
from langgraph_resilient.saver import ResilientSaver

_SHOWN = 16
"""Digits of a key that the table shows; any unique prefix is enough for the other commands."""

ledger = typer.Typer(
    help="Look at recorded tool calls, and decide about those whose outcome nobody knows.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Key = Annotated[
    str, typer.Argument(metavar="KEY", help="The call's key, or the first digits of it.")
]


@ledger.command("list")
@on_database
def list_calls(
    saver: ResilientSaver,
    thread: Annotated[
        str | None, typer.Argument(metavar="[THREAD]", help="Only this thread. Default: all.")
    ] = None,
    unknown: Annotated[
        bool, typer.Option("--unknown", help="Only calls whose outcome nobody knows.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List tool calls in the order of their beginning; arguments and results only with `show`."""
    found = saver.ledger.unknown(thread) if unknown else saver.ledger.entries(thread)
    if as_json:
        print_json({"calls": [_without_content(entry) for entry in found]})
        return
    columns = ("key", "thread", "tool", "state", "effect", "attempt", "begun", "ended", "flags")
    print_table(
        columns,
        [
            (
                entry.key[:_SHOWN],
                entry.thread_id,
                entry.tool,
                entry.state,
                entry.effect,
                entry.attempt,
                time_text(entry.started_at),
                time_text(entry.ended_at),
                ", ".join(entry.flags),
            )
            for entry in found
        ],
    )
    _mention(found)


def _mention(found: Sequence[Entry]) -> None:
    if any(entry.state == "unknown" for entry in found):
        note("`ledger resolve KEY succeeded|retry|failed` decides about an unknown outcome.")


@ledger.command("show")
@on_database
def show_call(saver: ResilientSaver, key: Key, as_json: Json = False) -> None:
    """Show one tool call: what was called with what, what came of it, and its history."""
    entry = _find(saver, key)
    if as_json:
        print_json({"call": _readable(entry)})
        return
    print_lines(
        [
            ("key", entry.key),
            ("thread", entry.thread_id),
            ("tool", entry.tool),
            ("state", entry.state),
            ("effect", entry.effect),
            ("attempt", str(entry.attempt)),
            ("version", str(entry.version)),
            ("owner", f"{entry.owner} (epoch {entry.epoch})"),
            ("begun", time_text(entry.started_at)),
            ("ended", time_text(entry.ended_at)),
            ("asked by", entry.message_id or "no message"),
            ("tool call id", entry.tool_call_id),
            ("inside call", entry.parent),
            ("business key", entry.business_key or ""),
            ("flags", ", ".join(entry.flags)),
            ("error", entry.error),
            ("arguments", _text(entry.arguments)),
            ("result", _text(entry.result)),
        ]
    )
    print_table(
        ("when", "what", "by", "reason"),
        [(time_text(event.at), event.what, event.by, event.reason) for event in entry.history],
    )
    _mention([entry])


@ledger.command("resolve")
@on_database
def resolve_call(
    saver: ResilientSaver,
    key: Key,
    action: Annotated[
        str,
        typer.Argument(
            metavar="succeeded|retry|failed",
            help="It took effect; it did not and may run again; it did not and must not.",
        ),
    ],
    result: Annotated[
        str | None, typer.Option(help="What the tool would have said, or what to tell the model.")
    ] = None,
    result_json: Annotated[str | None, typer.Option(help="The same, as JSON.")] = None,
    by: Annotated[str | None, typer.Option(help="Who decides. Default: this user.")] = None,
    reason: Annotated[str, typer.Option(help="Why, for the call's history.")] = "",
    version: Annotated[
        int | None, typer.Option(help="The version you looked at; a call that changed is left.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Decide about a tool call whose outcome nobody knows; the next run goes on with that."""
    value = _given(result, result_json)
    entry = _find(saver, key)
    try:
        entry = saver.ledger.resolve(
            entry.key,
            action,
            result=value,
            by=_user() if by is None else by,
            reason=reason,
            version=version,
        )
    except LostOwnership as error:
        fail(str(error))
        raise typer.Exit(ExitCode.FINDINGS) from None
    if as_json:
        print_json({"call": _readable(entry)})
    else:
        typer.echo(f"call {entry.key} of {entry.tool} is {_outcome(action, entry)} now")


def _outcome(action: str, entry: Entry) -> str:
    """What a decision made of a call, for a person."""
    cleared = entry.history[-1].what == "retry"
    return "cleared to run again" if cleared else entry.state


def _given(result: str | None, result_json: str | None) -> Any:
    """The result that was given, as text or as JSON.

    Raises:
        ConfigurationError: both were given, or it is no JSON.
    """
    if result_json is None:
        return result
    if result is not None:
        raise ConfigurationError("give --result or --result-json, not both")
    try:
        return json.loads(result_json)
    except ValueError as error:
        raise ConfigurationError(f"--result-json is no JSON: {error}") from None


def _find(saver: ResilientSaver, key: str) -> Entry:
    """The call with this key, or the only one whose key begins like this."""
    found = saver.ledger.book.keys_like(key)
    if len(found) == 1:
        return saver.ledger.get(found[0])
    what = f"several tool calls whose keys begin with {key!r}" if found else f"no tool call {key!r}"
    fail(f"the ledger has {what}; `ledger list` shows those that there are")
    raise typer.Exit(ExitCode.FINDINGS)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name for this number, as in some containers
        return "operator"


# --- content ----------------------------------------------------------------------------------


def _without_content(entry: Entry) -> dict[str, Any]:
    """An entry as a dictionary, without what the user's data may be in."""
    left_out = ("arguments", "result", "error", "history")
    return {
        name: getattr(entry, name) for name in Entry.__dataclass_fields__ if name not in left_out
    }


def _readable(entry: Entry) -> Entry:
    """An entry whose arguments and result are what JSON can say of them."""
    return replace(entry, arguments=jsonable(entry.arguments), result=jsonable(entry.result))


def _text(value: Any) -> str:
    """A value on one line; a message by what it says."""
    if isinstance(value, BaseMessage):
        value = value.content
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(jsonable(value), default=repr)
