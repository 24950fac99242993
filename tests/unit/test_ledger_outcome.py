"""What an exception says about the effect: it failed, or nobody knows. No network: fakes and values."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import http.client
import smtplib
import socket
import ssl
import urllib.error
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import requests
import urllib3
from langgraph.errors import (
    GraphBubbleUp,
    GraphDrained,
    GraphInterrupt,
    NodeCancelledError,
    NodeTimeoutError,
    ParentCommand,
)
from langgraph.types import Command

from langgraph_resilient.errors import (
    BusinessKeyReused,
    NotDurable,
    ThreadBusy,
    UnknownOutcome,
)
from langgraph_resilient.ledger.outcome import Ending, ending_of
from langgraph_resilient.ledger.policy import ToolPolicy

POLICY = ToolPolicy()


def made(error: BaseException, *, cause: Any = None, context: Any = None) -> BaseException:
    """An error as it is caught: raised from another one, or while that was being handled."""
    error.__cause__ = cause
    error.__context__ = context if context is not None else cause
    error.__suppress_context__ = cause is not None
    return error


def fake(module: str, *names: str) -> Any:
    """A class of a client that is not installed; each name is a subclass of the next."""
    found: type[BaseException] = OSError
    for name in reversed(names):
        found = type(name, (found,), {"__module__": module})
    return found


def nowhere() -> Any:
    return None


REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
RESET = ConnectionResetError(errno.ECONNRESET, "reset")
NEW = urllib3.exceptions.NewConnectionError(nowhere(), "refused")
READ = urllib3.exceptions.ReadTimeoutError(nowhere(), "/", "slow")
BROKEN = urllib3.exceptions.ProtocolError("aborted", http.client.RemoteDisconnected("gone"))


def retried(reason: Exception) -> BaseException:
    return made(urllib3.exceptions.MaxRetryError(nowhere(), "/", reason), cause=reason)


ClientOSError = fake("aiohttp.client_exceptions", "ClientOSError", "ClientConnectionError")
ClientConnector = fake(
    "aiohttp", "ClientConnectorDNSError", "ClientConnectorError", "ClientOSError"
)
SocketTimeout = fake("aiohttp", "SocketTimeoutError", "ServerTimeoutError", "TimeoutError")
ConnectionTimeout = fake("aiohttp", "ConnectionTimeoutError", "ServerTimeoutError", "TimeoutError")
ServerDisconnected = fake("aiohttp", "ServerDisconnectedError", "ClientConnectionError")
APIConnection = fake("openai", "APIConnectionError", "APIError")
APITimeout = fake("openai", "APITimeoutError", "APIConnectionError", "APIError")
RateLimit = fake("openai", "RateLimitError", "APIStatusError", "APIError")


class McpError(Exception):
    """As the package mcp raises it: what happened is in ``error``."""

    def __init__(self, code: int) -> None:
        super().__init__("mcp")
        self.error = type("ErrorData", (), {"code": code})()


class Group(Exception):
    """As task groups raise it; a class of Python 3.11 and of the package exceptiongroup."""

    def __init__(self, *members: BaseException) -> None:
        super().__init__("group")
        self.exceptions = members


AMBIGUOUS: list[tuple[str, Callable[[], BaseException]]] = [
    ("time-out", lambda: TimeoutError("slow")),
    ("time-out of a socket", lambda: socket.timeout("slow")),  # noqa: UP041
    ("time-out of asyncio", lambda: asyncio.TimeoutError()),
    ("time-out of a future", lambda: concurrent.futures.TimeoutError()),
    ("cancelled", lambda: asyncio.CancelledError()),
    ("future cancelled", lambda: concurrent.futures.CancelledError()),
    ("Ctrl-C", lambda: KeyboardInterrupt()),
    ("exit", lambda: SystemExit(1)),
    ("generator closed", lambda: GeneratorExit()),
    ("some other BaseException", lambda: type("Stop", (BaseException,), {})()),
    ("no memory", lambda: MemoryError()),
    ("reset", lambda: RESET),
    ("aborted", lambda: ConnectionAbortedError("aborted")),
    ("pipe", lambda: BrokenPipeError("pipe")),
    ("end of file", lambda: EOFError("end")),
    ("number of a time-out", lambda: OSError(errno.ETIMEDOUT, "slow")),
    ("a node's time-out", lambda: NodeTimeoutError("tools", 2.0, kind="run", run_timeout=1.0)),
    ("a cancelled node", lambda: NodeCancelledError("tools")),
    ("requests read", lambda: requests.exceptions.ReadTimeout("slow")),
    ("requests time-out", lambda: requests.exceptions.Timeout("slow")),
    ("requests connection", lambda: requests.exceptions.ConnectionError("?")),
    ("requests broken", lambda: made(requests.exceptions.ConnectionError(), context=BROKEN)),
    ("requests chunk", lambda: requests.exceptions.ChunkedEncodingError("cut")),
    ("urllib3 read", lambda: READ),
    ("urllib3 broken", lambda: BROKEN),
    ("urllib3 retried, read", lambda: retried(READ)),
    ("httpx read", lambda: httpx.ReadTimeout("slow")),
    ("httpx write", lambda: httpx.WriteTimeout("slow")),
    ("httpx read error", lambda: httpx.ReadError("gone")),
    ("httpx close error", lambda: httpx.CloseError("gone")),
    ("httpx protocol", lambda: httpx.RemoteProtocolError("gone")),
    ("http.client gone", lambda: http.client.RemoteDisconnected("gone")),
    ("http.client cut", lambda: http.client.IncompleteRead(b"")),
    ("urllib reset", lambda: made(urllib.error.URLError(RESET), context=RESET)),
    ("smtp gone", lambda: smtplib.SMTPServerDisconnected("gone")),
    ("aiohttp os", lambda: ClientOSError("gone")),
    ("aiohttp read", lambda: SocketTimeout("slow")),
    ("aiohttp gone", lambda: ServerDisconnected("gone")),
    ("openai time-out", lambda: made(APITimeout(), cause=httpx.ReadTimeout("slow"))),
    ("openai read", lambda: made(APIConnection(), cause=httpx.ReadError("gone"))),
    ("openai alone", lambda: APIConnection()),
    ("mcp time-out", lambda: McpError(408)),
    ("mcp closed", lambda: McpError(-32000)),
    ("in a group", lambda: Group(ValueError("x"), Group(httpx.ReadTimeout("slow")))),
    ("raised from a time-out", lambda: made(ValueError("failed"), cause=TimeoutError("slow"))),
    (
        "raised from one that was raised from a reset",
        lambda: made(RuntimeError("x"), cause=made(LookupError("y"), cause=RESET)),
    ),
    # A first try that was never sent says nothing about the second one.
    ("after a refusal", lambda: made(TimeoutError("slow"), context=REFUSED)),
    (
        "httpx after a refusal",
        lambda: made(httpx.ReadTimeout("x"), context=httpx.ConnectError("x")),
    ),
    ("time-out from a refusal", lambda: made(TimeoutError("slow"), cause=REFUSED)),
]
DEFINITE: list[tuple[str, Callable[[], BaseException]]] = [
    ("the tool says so", lambda: ValueError("no such customer")),
    ("some other error", lambda: type("Odd", (Exception,), {})()),
    ("no such key", lambda: KeyError("x")),
    ("no such file", lambda: FileNotFoundError(errno.ENOENT, "gone")),
    ("refused", lambda: REFUSED),
    ("unreachable", lambda: OSError(errno.ENETUNREACH, "no route")),
    ("no such host", lambda: socket.gaierror(-2, "unknown")),
    ("wrong certificate", lambda: ssl.SSLCertVerificationError("expired")),
    ("requests connect", lambda: requests.exceptions.ConnectTimeout("slow")),
    (
        "requests refused",
        lambda: made(requests.exceptions.ConnectionError(), context=retried(NEW)),
    ),
    ("requests status", lambda: requests.exceptions.HTTPError("404")),
    ("requests url", lambda: requests.exceptions.MissingSchema("x")),
    ("urllib3 refused", lambda: NEW),
    ("urllib3 connect", lambda: urllib3.exceptions.ConnectTimeoutError("slow")),
    ("urllib3 retried, refused", lambda: retried(NEW)),
    ("httpx connect", lambda: httpx.ConnectTimeout("slow")),
    ("httpx refused", lambda: httpx.ConnectError("refused")),
    ("httpx pool", lambda: httpx.PoolTimeout("busy")),
    ("httpx url", lambda: httpx.UnsupportedProtocol("x")),
    ("urllib refused", lambda: made(urllib.error.URLError(REFUSED), context=REFUSED)),
    ("urllib unknown host", lambda: made(urllib.error.URLError("x"), context=socket.gaierror(-2))),
    ("urllib url", lambda: urllib.error.URLError("unknown url type")),
    ("smtp connect", lambda: smtplib.SMTPConnectError(421, "busy")),
    ("smtp recipients", lambda: smtplib.SMTPRecipientsRefused({})),
    ("smtp login", lambda: smtplib.SMTPAuthenticationError(535, "no")),
    ("smtp data", lambda: smtplib.SMTPDataError(554, "spam")),
    ("aiohttp host", lambda: ClientConnector("unknown")),
    ("aiohttp connect", lambda: ConnectionTimeout("slow")),
    ("openai refused", lambda: made(APIConnection(), cause=httpx.ConnectError("x"))),
    ("openai connect", lambda: made(APITimeout(), cause=httpx.ConnectTimeout("slow"))),
    ("openai rate", lambda: RateLimit("429")),
    ("mcp says no", lambda: McpError(-32602)),
    ("in a group", lambda: Group(ValueError("x"), httpx.ConnectError("x"))),
    ("while a time-out was handled", lambda: made(ValueError("no"), context=TimeoutError("slow"))),
    ("raised from a refusal", lambda: made(ValueError("failed"), cause=REFUSED)),
    ("the ledger refused a step", lambda: ThreadBusy("busy")),
    ("the ledger's barrier", lambda: NotDurable("slow")),
    ("a step is unknown", lambda: UnknownOutcome("?")),
    ("a step's key", lambda: BusinessKeyReused("?")),
    ("raised from the ledger's refusal", lambda: made(ValueError("x"), cause=ThreadBusy("b"))),
]


@pytest.mark.parametrize("make", [row[1] for row in AMBIGUOUS], ids=[row[0] for row in AMBIGUOUS])
def test_nobody_knows(make: Callable[[], BaseException]) -> None:
    assert ending_of(make(), POLICY) is Ending.AMBIGUOUS


@pytest.mark.parametrize("make", [row[1] for row in DEFINITE], ids=[row[0] for row in DEFINITE])
def test_it_failed(make: Callable[[], BaseException]) -> None:
    assert ending_of(make(), POLICY) is Ending.DEFINITE


@pytest.mark.parametrize("make", [row[1] for row in AMBIGUOUS], ids=[row[0] for row in AMBIGUOUS])
def test_a_body_that_was_never_begun_had_no_effect(make: Callable[[], BaseException]) -> None:
    assert ending_of(make(), POLICY, begun=False) is Ending.DEFINITE


@pytest.mark.parametrize("begun", [True, False])
def test_what_passes_through_langgraph_is_no_failure(begun: bool) -> None:
    for error in (GraphInterrupt(()), GraphBubbleUp(), GraphDrained("stop")):
        assert ending_of(error, POLICY, begun=begun) is Ending.SUSPENDED
    parent = ParentCommand(Command(graph=Command.PARENT, goto="x"))
    assert ending_of(parent, POLICY, begun=begun) is Ending.PARENT


def test_the_policy_comes_first_and_definite_before_ambiguous() -> None:
    policy = ToolPolicy(definite=(TimeoutError,), ambiguous=(ValueError, OSError))
    assert ending_of(TimeoutError(), policy) is Ending.DEFINITE
    assert ending_of(ValueError(), policy) is Ending.AMBIGUOUS
    assert ending_of(REFUSED, policy) is Ending.AMBIGUOUS
    assert ending_of(KeyError(), policy) is Ending.DEFINITE
    assert ending_of(ValueError(), policy, begun=False) is Ending.DEFINITE
    both = ToolPolicy(definite=(ValueError,), ambiguous=(Exception,))
    assert ending_of(ValueError(), both) is Ending.DEFINITE
    assert ending_of(GraphInterrupt(()), both) is Ending.SUSPENDED


def test_errors_that_name_each_other_in_a_ring_end() -> None:
    one, other = requests.exceptions.ConnectionError(), httpx.NetworkError("x")
    one.__cause__, other.__cause__ = other, one
    assert ending_of(one, POLICY) is Ending.AMBIGUOUS


@pytest.mark.parametrize(
    ("status", "ending"),
    [
        (400, Ending.DEFINITE),
        (401, Ending.DEFINITE),
        (404, Ending.DEFINITE),
        (409, Ending.DEFINITE),
        (422, Ending.DEFINITE),
        (429, Ending.DEFINITE),
        (408, Ending.AMBIGUOUS),
        (500, Ending.AMBIGUOUS),
        (502, Ending.AMBIGUOUS),
        (503, Ending.AMBIGUOUS),
        (504, Ending.AMBIGUOUS),
    ],
)
def test_a_servers_refusal_is_definite_and_its_fault_is_not(status: int, ending: Ending) -> None:
    class Answer:
        status_code = status

    class HTTPStatusError(Exception):
        response = Answer()

    class StatusError(Exception):
        status_code = status

    assert ending_of(HTTPStatusError("x"), ToolPolicy()) is ending
    assert ending_of(StatusError("x"), ToolPolicy()) is ending
