"""Anthropic's wire format: Messages, as JSON and as server-sent events."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from wire.openai_wire import Event, fragments, paced

if TYPE_CHECKING:
    from wire.server import Asked, Reply

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}
_IDS = itertools.count(1)


def api(path: str) -> str:
    """Which interface a path belongs to."""
    return "messages"


def messages(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Role and text of each message."""
    found = [("system", _text(body["system"]))] if body.get("system") else []
    for one in body.get("messages") or []:
        content = one["content"]
        results = [b for b in content if b["type"] == "tool_result"] if _is_blocks(content) else []
        found += [("tool", _text(block.get("content"))) for block in results]
        if not results:
            found.append((one["role"], _text(content)))
    return found


def _is_blocks(content: Any) -> bool:
    return isinstance(content, list)


def _text(content: Any) -> str:
    if _is_blocks(content):
        return "".join(str(block.get("text") or "") for block in content)
    return str(content or "")


def error(asked: Asked, given: Reply) -> dict[str, Any]:
    """The body of an error."""
    kind = given.kind or _KINDS.get(given.status, "api_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": given.error},
        "request_id": "req_wire",
    }


def whole(asked: Asked, given: Reply) -> dict[str, Any]:
    """A whole answer."""
    return {**_head(asked), "content": _blocks(given), **_end(given), "usage": _usage(given)}


def _head(asked: Asked) -> dict[str, Any]:
    return {
        "id": f"msg_{next(_IDS)}",
        "type": "message",
        "role": "assistant",
        "model": asked.body.get("model"),
    }


def _end(given: Reply) -> dict[str, Any]:
    return {"stop_reason": "tool_use" if given.tools else "end_turn", "stop_sequence": None}


def _usage(given: Reply) -> dict[str, Any]:
    return {"input_tokens": 10, "output_tokens": len(given.pieces) + len(given.reasoning)}


def _blocks(given: Reply) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if given.reasoning:
        thinking = "".join(given.reasoning)
        found.append({"type": "thinking", "thinking": thinking, "signature": "sig_wire"})
    if given.pieces:
        found.append({"type": "text", "text": given.text})
    for tool in given.tools:
        id = tool.id or f"toolu_{next(_IDS)}"
        found.append({"type": "tool_use", "id": id, "name": tool.name, "input": dict(tool.args)})
    return found


def events(asked: Asked, given: Reply) -> Iterator[Event]:
    """A streamed answer: event's name, data, and whether it is a piece of the answer."""
    message = {
        **_head(asked),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 1},
    }
    yield _event("message_start", message=message)
    for event in paced(given, _pieces(given)):
        yield from event
    usage = {"output_tokens": _usage(given)["output_tokens"]}
    yield _event("message_delta", delta=_end(given), usage=usage)
    yield _event("message_stop")


def _event(kind: str, *, piece: bool = False, **fields: Any) -> Event:
    return kind, {"type": kind, **fields}, piece


def _pieces(given: Reply) -> Iterator[list[Event]]:
    """Groups of events with one piece each, but for those that close a block."""
    for index, block in enumerate(_blocks(given)):
        empty = {**block, **_EMPTY[block["type"]]}
        opening = [_event("content_block_start", index=index, content_block=empty)]
        for delta in _deltas(block, given):
            yield [*opening, _event("content_block_delta", piece=True, index=index, delta=delta)]
            opening = []
        yield [*opening, _event("content_block_stop", index=index)]


_EMPTY: dict[str, dict[str, Any]] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}


def _deltas(block: Mapping[str, Any], given: Reply) -> Iterator[dict[str, Any]]:
    if block["type"] == "text":
        for piece in given.pieces:
            yield {"type": "text_delta", "text": piece}
    elif block["type"] == "thinking":
        for piece in given.reasoning:
            yield {"type": "thinking_delta", "thinking": piece}
        yield {"type": "signature_delta", "signature": block["signature"]}
    else:
        for part in fragments(block["input"]):
            yield {"type": "input_json_delta", "partial_json": part}
