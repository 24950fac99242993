"""``journal list`` and ``journal show``: which models were called with what, and what came back."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from langchain_core.messages import BaseMessage

from langgraph_resilient.cli.options import Json, on_database
from langgraph_resilient.cli.output import (
    ExitCode,
    fail,
    jsonable,
    print_json,
    print_lines,
    print_table,
    time_text,
)
from langgraph_resilient.errors import CallNotFound
from langgraph_resilient.journal import ModelCall
from langgraph_resilient.saver import ResilientSaver

_CONTENT = ("messages", "answer", "error", "sent")
"""What the user's data may be in; `show` only."""

journal = typer.Typer(
    help="Look at recorded model calls: parameters that were really sent, and what came back.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Thread = Annotated[str, typer.Argument(metavar="THREAD", help="The thread_id.")]


@journal.command("list")
@on_database
def list_model_calls(saver: ResilientSaver, thread: Thread, as_json: Json = False) -> None:
    """List the model calls of a thread in their order; conversations only with `show`."""
    found = saver.journal.entries(thread)
    if as_json:
        print_json({"model_calls": [_without_content(call) for call in found]})
        return
    columns = (
        "number",
        "state",
        "provider",
        "model",
        "parameters",
        "begun",
        "ended",
        "finish",
        "tokens",
        "flags",
    )
    print_table(
        columns,
        [
            (
                call.ordinal,
                call.state,
                call.provider,
                call.model_version or call.model,
                _parameters(call),
                time_text(call.started_at),
                time_text(call.ended_at),
                call.finish_reason,
                call.usage.get("total_tokens"),
                ", ".join([*call.flags, *(["drift"] if call.drift else [])]),
            )
            for call in found
        ],
    )


@journal.command("show")
@on_database
def show_model_call(
    saver: ResilientSaver,
    thread: Thread,
    number: Annotated[
        int, typer.Argument(metavar="NUMBER", help="The call's number, as `list` shows it.")
    ],
    as_json: Json = False,
) -> None:
    """Show one model call: what was sent, what came back, what has changed since."""
    try:
        call = saver.journal.get(thread, number)
    except CallNotFound as error:
        fail(str(error))
        raise typer.Exit(ExitCode.FINDINGS) from None
    if as_json:
        content = {name: jsonable(getattr(call, name)) for name in _CONTENT}
        print_json({"model_call": {**_without_content(call), **content}})
        return
    print_lines(
        [
            ("number", str(call.ordinal)),
            ("thread", call.thread_id),
            ("state", call.state),
            ("place", call.place),
            ("inside call", call.tool_call),
            ("provider", call.provider),
            ("model", call.model),
            *((name, _text(value)) for name, value in sorted(call.parameters.items())),
            ("tools", ", ".join(_tools(call))),
            *((name, _text(value)) for name, value in sorted(call.shape.items())),
            ("begun", time_text(call.started_at)),
            ("ended", time_text(call.ended_at)),
            ("flags", ", ".join(call.flags)),
            ("model version", call.model_version),
            ("fingerprint", call.system_fingerprint),
            ("finish reason", call.finish_reason),
            ("usage", _text(dict(call.usage))),
            ("request id", call.request_id),
            ("error", call.error),
        ]
    )
    for name, (recorded, current) in sorted(call.drift.items()):
        typer.echo(f"drift: {name} was {_text(recorded)}, the code has {_text(current)} since")
    said = [(message.type, _said(message)) for message in call.messages or ()]
    if call.answer is not None:
        said.append(("answer", _said(call.answer)))
    print_table(("role", "text"), said)


def _without_content(call: ModelCall) -> dict[str, Any]:
    """A call as a dictionary, without what the user's data may be in."""
    fields = (name for name in ModelCall.__dataclass_fields__ if name not in _CONTENT)
    return {
        **{name: getattr(call, name) for name in fields},
        "number": call.ordinal,
        "parameters": call.parameters,
        "tools": _tools(call),
        **call.shape,
    }


def _parameters(call: ModelCall) -> str:
    return ", ".join(
        f"{name}={_text(value)}" for name, value in call.parameters.items() if name != "model"
    )


def _tools(call: ModelCall) -> list[str]:
    """The names of the tools that the model was given."""
    found = []
    for tool in call.sent.get("tools") or call.sent.get("functions") or ():
        inner = tool.get("function") if isinstance(tool, dict) else None
        named = inner if isinstance(inner, dict) else tool
        name = named.get("name") or named.get("type") if isinstance(named, dict) else named
        found.append(str(name))
    return found


def _said(message: Any) -> str:
    if not isinstance(message, BaseMessage):
        return _text(message)
    calls = [
        f"{call['name']}({_text(call['args'])})"
        for call in getattr(message, "tool_calls", None) or ()
    ]
    text = message.content if isinstance(message.content, str) else _text(message.content)
    return " ".join(part for part in (text, *calls) if part)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(jsonable(value), default=repr)
