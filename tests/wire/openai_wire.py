"""OpenAI's wire formats: Chat Completions and Responses, as JSON and as server-sent events."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wire.server import Asked, Reply

_KINDS = {400: "invalid_request_error", 401: "invalid_request_error", 429: "requests"}
_CODES = {429: "rate_limit_exceeded", 401: "invalid_api_key"}
_IDS = itertools.count(1)
Event = tuple[str, Any, bool]


def api(path: str) -> str:
    """Which interface a path belongs to."""
    if path.endswith("/chat/completions"):
        return "chat"
    return "responses" if path.endswith("/responses") else "fetch"


def messages(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Role and text of each message."""
    given = body.get("messages") or body.get("input") or []
    if isinstance(given, str):
        return [("user", given)]
    return [_message(one) for one in given]


def _message(one: Mapping[str, Any]) -> tuple[str, str]:
    kind = one.get("type")
    if kind == "function_call":
        return "assistant", ""
    if kind == "function_call_output":
        return "tool", str(one.get("output"))
    return str(one.get("role", kind)), _text(one.get("content"))


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(block.get("text") or "") for block in content)
    return str(content or "")


def error(asked: Asked, given: Reply) -> dict[str, Any]:
    """The body of an error."""
    kind = given.kind or _KINDS.get(given.status, "server_error")
    code = _CODES.get(given.status)
    return {"error": {"message": given.error, "type": kind, "param": None, "code": code}}


def whole(asked: Asked, given: Reply) -> dict[str, Any]:
    """A whole answer."""
    return _completion(asked, given) if asked.api == "chat" else _Response(asked, given).whole()


def events(asked: Asked, given: Reply) -> Iterator[Event]:
    """A streamed answer: event's name, data, and whether it is a piece of the answer."""
    if asked.api == "chat":
        return _chat_events(asked, given)
    return _Response(asked, given).events()


def paced(given: Reply, pieces: Iterator[Any]) -> Iterator[Any]:
    for index, piece in enumerate(pieces):
        if given.before is not None:
            given.before(index)
        yield piece


def fragments(args: Mapping[str, Any]) -> list[str]:
    """Arguments as they are streamed: in pieces that are no JSON."""
    text = json.dumps(args)
    return [text[at : at + 5] for at in range(0, len(text), 5)]


# --- chat completions ---------------------------------------------------------------------------


def _usage(given: Reply) -> dict[str, Any]:
    count = len(given.pieces) + len(given.reasoning)
    return {"prompt_tokens": 10, "completion_tokens": count, "total_tokens": 10 + count}


def _tool_calls(given: Reply) -> list[dict[str, Any]]:
    return [
        {
            "id": tool.id or f"call_{next(_IDS)}",
            "type": "function",
            "function": {"name": tool.name, "arguments": json.dumps(tool.args)},
        }
        for tool in given.tools
    ]


def _head(asked: Asked, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{next(_IDS)}",
        "object": kind,
        "created": 1_700_000_000,
        "model": asked.body.get("model"),
        "system_fingerprint": "fp_wire",
    }


def _completion(asked: Asked, given: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": given.text or None, "refusal": None}
    if given.tools:
        message["tool_calls"] = _tool_calls(given)
    finish = "tool_calls" if given.tools else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    head = _head(asked, "chat.completion")
    return {**head, "choices": [choice], "usage": _usage(given)}


def _chat_events(asked: Asked, given: Reply) -> Iterator[Event]:
    head = _head(asked, "chat.completion.chunk")

    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return {**head, "choices": [choice]}

    yield "", chunk({"role": "assistant", "content": ""}), False
    for piece in paced(given, _chat_pieces(given)):
        yield "", chunk(piece), True
    yield "", chunk({}, "tool_calls" if given.tools else "stop"), False
    if (asked.body.get("stream_options") or {}).get("include_usage"):
        yield "", {**head, "choices": [], "usage": _usage(given)}, False
    yield "", "[DONE]", False


def _chat_pieces(given: Reply) -> Iterator[dict[str, Any]]:
    for piece in given.pieces:
        yield {"content": piece}
    for index, (tool, made) in enumerate(zip(given.tools, _tool_calls(given), strict=True)):
        opening = {"name": tool.name, "arguments": ""}
        yield {"tool_calls": [{**made, "index": index, "function": opening}]}
        for part in fragments(tool.args):
            yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}


# --- responses ----------------------------------------------------------------------------------


class _Response:
    """One response: its items, whole and as events with numbers."""

    def __init__(self, asked: Asked, given: Reply):
        self._asked, self._given = asked, given
        self.id = f"resp_{next(_IDS)}"
        self._items = self._made()
        self._number = itertools.count()

    def _made(self) -> list[dict[str, Any]]:
        given, items = self._given, []
        if given.reasoning:
            summary = [{"type": "summary_text", "text": "".join(given.reasoning)}]
            items.append({"type": "reasoning", "id": f"rs_{next(_IDS)}", "summary": summary})
        if given.pieces:
            part = {"type": "output_text", "text": given.text, "annotations": []}
            items.append(
                {
                    "type": "message",
                    "id": f"msg_{next(_IDS)}",
                    "role": "assistant",
                    "status": "completed",
                    "content": [part],
                }
            )
        for tool in given.tools:
            items.append(
                {
                    "type": "function_call",
                    "id": f"fc_{next(_IDS)}",
                    "call_id": tool.id or f"call_{next(_IDS)}",
                    "name": tool.name,
                    "arguments": json.dumps(tool.args),
                    "status": "completed",
                }
            )
        return items

    def whole(self, status: str = "completed") -> dict[str, Any]:
        done = status == "completed"
        count = len(self._given.pieces)
        usage = {
            "input_tokens": 10,
            "output_tokens": count,
            "total_tokens": 10 + count,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        body = self._asked.body
        return {
            "id": self.id,
            "object": "response",
            "created_at": 1_700_000_000,
            "model": body.get("model"),
            "status": status,
            "output": self._items if done else [],
            "usage": usage if done else None,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "temperature": body.get("temperature"),
            "top_p": body.get("top_p"),
            "metadata": {},
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "background": bool(body.get("background")),
            "text": body.get("text") or {"format": {"type": "text"}},
        }

    def _event(self, kind: str, piece: bool = False, **fields: Any) -> Event:
        number = next(self._number)
        return kind, {"type": kind, "sequence_number": number, **fields}, piece

    def events(self) -> Iterator[Event]:
        started = self.whole("in_progress")
        yield self._event("response.created", response=started)
        yield self._event("response.in_progress", response=started)
        for event in paced(self._given, self._item_pieces()):
            yield from event
        yield self._event("response.completed", response=self.whole())

    def _item_pieces(self) -> Iterator[list[Event]]:
        """Groups of events with one piece each, but for the last, which closes an item."""
        for index, item in enumerate(self._items):
            empty = {**item, **_EMPTY[item["type"]], "status": "in_progress"}
            opening = [self._event("response.output_item.added", output_index=index, item=empty)]
            for group in self._deltas(item, {"item_id": item["id"], "output_index": index}):
                yield [*opening, *group]
                opening = []
            done = self._event("response.output_item.done", output_index=index, item=item)
            yield [*opening, done]

    def _deltas(self, item: Mapping[str, Any], at: dict[str, Any]) -> Iterator[list[Event]]:
        if item["type"] == "message":
            part = item["content"][0]
            at["content_index"] = 0
            opening = [self._event("response.content_part.added", part={**part, "text": ""}, **at)]
            for piece in self._given.pieces:
                delta = self._event("response.output_text.delta", True, delta=piece, **at)
                yield [*opening, delta]
                opening = []
            yield [self._event("response.output_text.done", text=part["text"], **at)]
            yield [self._event("response.content_part.done", part=part, **at)]
        elif item["type"] == "reasoning":
            at["summary_index"] = 0
            part = {"type": "summary_text", "text": ""}
            opening = [self._event("response.reasoning_summary_part.added", part=part, **at)]
            for piece in self._given.reasoning:
                kind = "response.reasoning_summary_text.delta"
                yield [*opening, self._event(kind, True, delta=piece, **at)]
                opening = []
        else:
            for part in fragments(json.loads(item["arguments"])):
                kind = "response.function_call_arguments.delta"
                yield [self._event(kind, True, delta=part, **at)]


_EMPTY: dict[str, dict[str, Any]] = {
    "message": {"content": []},
    "reasoning": {"summary": []},
    "function_call": {"arguments": ""},
}


# --- responses that go on without their client --------------------------------------------------


class Stored:
    """The events of a response in background mode, as they come up."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._done = False
        self._news = threading.Condition()

    def run(self, events: Iterator[Event]) -> None:
        for event in events:
            with self._news:
                self._events.append(event)
                self._news.notify_all()
        with self._news:
            self._done = True
            self._news.notify_all()

    def after(self, number: int) -> Iterator[Event]:
        """The events behind a number, and those that come."""
        at = number + 1
        while True:
            with self._news:
                while at >= len(self._events) and not self._done:
                    self._news.wait(30)
                if at >= len(self._events):
                    return
                event = self._events[at]
            at += 1
            yield event


def keep(stored: dict[str, Stored], asked: Asked, events: Iterator[Event]) -> Iterator[Event]:
    """Generate in a thread of its own, so that the answer is made whoever listens."""
    first = next(events)
    made = stored[first[1]["response"]["id"]] = Stored()
    threading.Thread(target=made.run, args=(itertools.chain([first], events),), daemon=True).start()
    return made.after(-1)


def fetched(stored: dict[str, Stored], asked: Asked) -> Iterator[Event]:
    """The rest of a response: ``GET /responses/ID?stream=true&starting_after=N``."""
    made = stored[asked.path.rsplit("/", 1)[1]]
    return made.after(int(asked.body.get("starting_after", -1)))
