"""Recorded conversations, from JSON lines to langchain-core messages.

A line is an object with ``id`` and ``messages``; a message has ``role`` (system, user, assistant
or tool), ``content`` (text, a list of parts or null) and, where recorded, ``tool_calls``,
``tool_call_id``, ``name``, ``id``, ``model``, ``usage``, ``finish_reason``, ``reasoning``,
``status`` and ``additional_kwargs``. The same file gives equal messages in every process.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from langgraph_resilient.errors import ConfigurationError

_WINDOW = 2**31  # such files may be compressed with a long window

_INPUT_NAMES = ("input_tokens", "prompt_tokens", "promptTokenCount", "inputTokens", "input")
_OUTPUT_NAMES = (
    "output_tokens",
    "completion_tokens",
    "candidatesTokenCount",
    "outputTokens",
    "output",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One recorded conversation.

    Attributes:
        number: its place among all that are replayed, from 0.
        thread_id: under which it is replayed; unique, made of number and recorded id.
        messages: all of them, in order, each with an id that no other of them has.
    """

    number: int
    thread_id: str
    messages: list[BaseMessage]


def read_conversations(
    paths: Sequence[Path], *, skip: int = 0, limit: int | None = None
) -> Iterator[Conversation]:
    """The conversations of some files, one after another.

    Args:
        paths: files of JSON lines, plain or (``.zst``) compressed.
        skip: leave out that many at the beginning, without building their messages.
        limit: number of the first conversation that is not read any more.

    Raises:
        ConfigurationError: a file is not there or a line has another format.
    """
    number = 0
    for path in paths:
        for place, line in enumerate(_lines(path), start=1):
            if number == limit:
                return
            if number >= skip:
                yield _conversation(line, number, f"{path}, line {place}")
            number += 1


def _lines(path: Path) -> Iterator[str]:
    """The lines that are not blank."""
    try:
        with path.open("rb") as source:
            stream: Any = source
            if path.suffix == ".zst":
                stream = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(source)
            with io.TextIOWrapper(stream, "utf-8", newline="\n") as lines:
                for line in lines:
                    if line.strip():
                        yield line
    except (OSError, UnicodeDecodeError, zstandard.ZstdError) as error:
        raise ConfigurationError(f"cannot read the conversations in {path}: {error}") from error


def _conversation(line: str, number: int, where: str) -> Conversation:
    try:
        record = json.loads(line)
        messages = [_message(message) for message in record["messages"]]
        thread_id = f"{number}-{record['id']}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{where}: not a recorded conversation ({type(error).__name__}: {error}); "
            "expected an object with id and messages"
        ) from error
    seen: set[str] = set()
    for place, message in enumerate(messages):
        # A message whose id is taken would replace the earlier one instead of following it.
        if not message.id or message.id in seen:
            message.id = f"{thread_id}/{place}"
        seen.add(message.id)
    return Conversation(number=number, thread_id=thread_id, messages=messages)


def _message(record: dict[str, Any]) -> BaseMessage:
    content = record["content"] if record["content"] is not None else ""
    common = {name: record[name] for name in ("id", "name") if record.get(name)}
    match record["role"]:
        case "assistant":
            return _assistant(record, content, common)
        case "tool":
            return ToolMessage(
                content,
                tool_call_id=record.get("tool_call_id") or "",
                status=record.get("status", "success"),
                **common,
            )
        case "system":
            kind: type[SystemMessage] | type[HumanMessage] = SystemMessage
        case "user":
            kind = HumanMessage
        case role:
            raise ValueError(f"unknown role {role!r}")
    return kind(content, additional_kwargs=record.get("additional_kwargs", {}), **common)


def _assistant(record: dict[str, Any], content: Any, common: dict[str, Any]) -> AIMessage:
    calls: list[dict[str, Any]] = []
    invalid: list[dict[str, Any]] = []
    for call in record.get("tool_calls") or ():
        name, text = call["function"]["name"], call["function"]["arguments"]
        arguments = _arguments(text)
        if arguments is None:
            error = "the arguments are not a JSON object"
            known = {"name": name, "args": text, "id": call["id"], "error": error}
            invalid.append({**known, "type": "invalid_tool_call"})
        else:
            known = {"name": name, "args": arguments, "id": call["id"]}
            calls.append({**known, "type": "tool_call"})
    extra = dict(record.get("additional_kwargs") or {})
    if record.get("reasoning"):
        extra["reasoning_content"] = record["reasoning"]
    names = {"model_name": "model", "finish_reason": "finish_reason", "token_usage": "usage"}
    metadata = {name: record[source] for name, source in names.items() if record.get(source)}
    return AIMessage(
        content,
        tool_calls=calls,
        invalid_tool_calls=invalid,
        additional_kwargs=extra,
        response_metadata=metadata,
        usage_metadata=_usage(record["usage"]) if record.get("usage") else None,
        **common,
    )


def _arguments(text: str | None) -> dict[str, Any] | None:
    """The arguments of a call, or None when the recorded model wrote no JSON object."""
    try:
        parsed = json.loads(text or "{}")
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _usage(recorded: dict[str, Any]) -> dict[str, int]:
    """The token counts in langchain-core's names, whichever provider's names were recorded."""

    def first(names: Sequence[str]) -> int:
        return next((recorded[name] for name in names if isinstance(recorded.get(name), int)), 0)

    read, written = first(_INPUT_NAMES), first(_OUTPUT_NAMES)
    return {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
