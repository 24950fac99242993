"""The server: one thread a connection, every request in a log, answers from a script.

A script is a function of what was asked. Whatever a test wants to know (calls paid, parameters,
prompts) it reads from `Server.log`: it is what really went over the wire.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from wire import anthropic_wire, openai_wire

_SECRET_HEADERS = {"authorization", "x-api-key", "api-key", "cookie"}
_PARAMETERS_ASIDE = {"messages", "input", "system", "instructions", "tools", "stream"}


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool call in an answer; the id is made by the server where none is given."""

    name: str
    args: Mapping[str, Any]
    id: str = ""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the server answers.

    Attributes:
        pieces: the text, as it is streamed.
        tools: tool calls behind the text.
        reasoning: pieces of a block of reasoning before the text.
        status: an HTTP status; other than 200 it is an error with `error` as its message.
        error: the message of an error.
        kind: the provider's name of the error, where it is not the usual one for its status.
        cut: close the connection after so many pieces, in the middle of the stream.
        before: called before each piece with its number; may wait, to stall or to keep step.
    """

    pieces: Sequence[str] = ()
    tools: Sequence[Tool] = ()
    reasoning: Sequence[str] = ()
    status: int = 200
    error: str = ""
    kind: str = ""
    cut: int | None = None
    before: Callable[[int], None] | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def reply(text: str = "", *tools: Tool, **more: Any) -> Reply:
    """A reply whose text is streamed word by word."""
    return Reply(pieces=words(text), tools=tools, **more)


def words(text: str) -> list[str]:
    """A text in pieces of one word each, with the space before it."""
    found: list[str] = []
    for index, word in enumerate(text.split(" ")):
        found.append(word if index == 0 else " " + word)
    return [piece for piece in found if piece]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request as it came over the wire.

    Attributes:
        number: of the request, from 1.
        api: ``chat``, ``responses``, ``messages`` or ``fetch`` (the rest of a response).
        body: the JSON body; for ``fetch`` the query.
        headers: without secrets, in lower case.
        messages: role and text of each message, whatever the format.
    """

    number: int
    api: str
    path: str
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    messages: Sequence[tuple[str, str]] = ()

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything in the body besides messages and tools."""
        return {k: v for k, v in self.body.items() if k not in _PARAMETERS_ASIDE}

    @property
    def last(self) -> tuple[str, str]:
        """Role and text of the last message."""
        return self.messages[-1]


def last_said(asked: Asked, role: str) -> str:
    """The last text of a role; empty when there is none."""
    return next((text for who, text in reversed(asked.messages) if who == role), "")


Script = Callable[[Asked], Reply]


class Server:
    """A provider on loopback. Use it in ``with``; `url` is where it listens.

    Args:
        script: gives the reply to a request; replies in a list are given one after the other, the
            last one again and again.
        log: where requests are recorded; a list of its own by default.
    """

    def __init__(self, script: Script | Iterable[Reply]):
        self.script = script if callable(script) else _in_order(script)
        self.log: list[Asked] = []
        self.shut: list[int] = []
        """Numbers of the requests whose client had gone before the answer was whole."""
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self.stored: dict[str, openai_wire.Stored] = {}
        """Responses that go on without their client, by id."""
        server = self

        class Handler(_Handler):
            wire = server

        self._http = _Http(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def record(self, **asked: Any) -> tuple[Asked, Reply]:
        """Put a request into the log and ask the script."""
        with self._lock:  # the order of the log is the order of the replies
            made = Asked(number=next(self._numbers), **asked)
            self.log.append(made)
            return made, Reply() if made.api == "fetch" else self.script(made)

    @property
    def paid(self) -> int:
        """How many answers were asked for."""
        return sum(asked.api != "fetch" for asked in self.log)

    def questions(self) -> list[str]:
        """What the user said last, request by request."""
        return [last_said(asked, "user") for asked in self.log]


def _in_order(replies: Iterable[Reply]) -> Script:
    left = list(replies)

    def script(asked: Asked) -> Reply:
        return left.pop(0) if len(left) > 1 else left[0]

    return script


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed leaves its connection: that is what the tests are about."""


class _Handler(BaseHTTPRequestHandler):
    wire: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """The log is `Server.log`."""

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        self._serve(json.loads(raw or b"{}"))

    def do_GET(self) -> None:
        self._serve(dict(parse_qsl(urlsplit(self.path).query)))

    def _serve(self, body: Mapping[str, Any]) -> None:
        path = urlsplit(self.path).path
        headers = {
            k.lower(): v for k, v in self.headers.items() if k.lower() not in _SECRET_HEADERS
        }
        wire: Any = anthropic_wire if path.endswith("/messages") else openai_wire
        api = wire.api(path)
        seen = wire.messages(body) if api != "fetch" else ()
        asked, given = self.wire.record(
            api=api, path=path, body=body, headers=headers, messages=seen
        )
        if given.status != 200:
            self._json(given.status, wire.error(asked, given))
        elif api == "fetch":
            self._events(asked, openai_wire.fetched(self.wire.stored, asked), None)
        elif asked.stream:
            events = wire.events(asked, given)
            if body.get("background"):
                events = openai_wire.keep(self.wire.stored, asked, events)
            self._events(asked, events, given.cut)
        else:
            for index in range(len(given.pieces)):
                if given.before is not None:
                    given.before(index)
            self._json(200, wire.whole(asked, given))

    def _json(self, status: int, body: Mapping[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.send_header("x-request-id", "req_wire")
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(raw)
        self.close_connection = True

    def _events(
        self, asked: Asked, events: Iterator[tuple[str, Any, bool]], cut: int | None
    ) -> None:
        """Server-sent events; `cut` closes the connection after so many pieces of the answer."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        sent = 0
        try:
            for name, data, is_piece in events:
                if is_piece and sent == cut:
                    return  # without the end of the chunked body: the client sees a broken line
                sent += is_piece
                text = data if isinstance(data, str) else json.dumps(data)
                lines = f"event: {name}\n" if name else ""
                self._chunk(f"{lines}data: {text}\n\n".encode())
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.wire.shut.append(asked.number)

    def _chunk(self, raw: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(raw), raw))
        self.wfile.flush()


class Story:
    """A script that tells one text, from wherever it is asked to go on.

    A last assistant message is continued (a prefill) or refused; an instruction to go on after a
    partial answer is followed, after saying the last words again. Without a seed and with a
    temperature each generation differs, as a real model's does.

    Args:
        text: the answer.
        prefill: ``"continue"`` or ``"refuse"``.
        overlap: how many words are said again after an instruction to continue.
        varies: whether the answer depends on seed and chance.
        more: other fields of the replies.
    """

    REFUSAL = (
        "This model does not support assistant message prefill. The conversation must end with a "
        "user message."
    )

    def __init__(
        self,
        text: str,
        *,
        prefill: str = "continue",
        overlap: int = 0,
        varies: bool = False,
        **more: Any,
    ):
        self.text = text
        self.prefill = prefill
        self.overlap = overlap
        self.varies = varies
        self.more = more

    def __call__(self, asked: Asked) -> Reply:
        text = self.whole(asked)
        role, said = asked.last
        if role == "assistant":
            if self.prefill == "refuse":
                return Reply(status=400, error=self.REFUSAL)
            return self._told(text[len(said) :] if text.startswith(said) else text)
        before = asked.messages[-2] if len(asked.messages) > 1 else ("", "")
        if before[0] == "assistant" and before[1] and text.startswith(before[1]):
            return self._told(self._again(text, before[1]))
        return self._told(text)

    def whole(self, asked: Asked) -> str:
        """The answer of this generation."""
        if not self.varies:
            return self.text
        temperature, seed = asked.body.get("temperature"), asked.body.get("seed")
        if temperature == 0:
            return self.text
        chance = random.Random(seed) if seed is not None else random.Random(asked.number)
        return f"{self.text} {chance.randrange(10**9)}"

    def _again(self, text: str, said: str) -> str:
        start = (
            len(said) - len("".join(words(said)[-self.overlap :])) if self.overlap else len(said)
        )
        return text[start:]

    def _told(self, text: str) -> Reply:
        return replace(reply(text), **self.more)


@dataclass
class Step:
    """Keeps server and test in step: the server sends a piece when the test says so."""

    patience: float = 30.0
    _free: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    open: bool = False

    def __call__(self, index: int) -> None:
        if not self.open:
            assert self._free.acquire(timeout=self.patience), "nobody let the server go on"

    def let(self, pieces: int) -> None:
        """Let so many pieces go."""
        for _ in range(pieces):
            self._free.release()

    def let_all(self) -> None:
        self.open = True
        self.let(1000)
