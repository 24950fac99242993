"""What an exception out of a tool says about the effect: it failed, or nobody knows."""

from __future__ import annotations

import concurrent.futures
import errno
from collections.abc import Iterator
from enum import Enum

from langgraph.errors import GraphBubbleUp, NodeCancelledError, NodeTimeoutError, ParentCommand

from langgraph_resilient.errors import LedgerError
from langgraph_resilient.ledger.policy import ToolPolicy


class Ending(Enum):
    """How a body ended that did not return."""

    SUSPENDED = "it waits for a human, or the graph was drained"
    PARENT = "it hands over to the parent graph: that is its result"
    DEFINITE = "it failed, and had no effect"
    AMBIGUOUS = "it may have had an effect"


_AMBIGUOUS = (
    TimeoutError,
    concurrent.futures.TimeoutError,
    concurrent.futures.CancelledError,
    ConnectionResetError,
    ConnectionAbortedError,
    BrokenPipeError,
    EOFError,
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
    MemoryError,
    NodeCancelledError,
    NodeTimeoutError,
)
_NEVER_SENT = frozenset(
    {
        "ConnectTimeout",
        "ConnectTimeoutError",
        "ConnectionTimeoutError",
        "ConnectError",
        "ConnectionRefusedError",
        "NewConnectionError",
        "NameResolutionError",
        "gaierror",
        "SSLCertVerificationError",
        "PoolTimeout",
        "UnsupportedProtocol",
        "ClientConnectorError",
        "SMTPConnectError",
    }
)
"""Errors by class name that say: no connection was made, so nothing was sent."""
_LOST = frozenset(
    {
        "TimeoutError",  # also asyncio's, which is a class of its own in Python 3.10
        "TimeoutException",
        "Timeout",
        "ReadTimeout",
        "WriteTimeout",
        "ReadTimeoutError",
        "ReadError",
        "WriteError",
        "RemoteProtocolError",
        "ProtocolError",
        "ChunkedEncodingError",
        "IncompleteRead",
        "RemoteDisconnected",
        "BadStatusLine",
        "ServerDisconnectedError",
        "ClientOSError",
        "ClientPayloadError",
        "SMTPServerDisconnected",
    }
)
"""Errors by class name that say: the request was under way when the line broke."""
_LOST_NUMBERS = frozenset({errno.ETIMEDOUT, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE})
_VAGUE = frozenset({"APIConnectionError", "NetworkError"})
_CLIENTS = frozenset({"requests", "urllib3", "httpx", "httpcore", "aiohttp"})
_UNSURE = frozenset({408, 499, 500, 502, 503, 504, 520, 522, 524})
"""HTTP statuses that say nothing about whether the request took effect."""
_TOLD = frozenset({408, -32000})
"""Codes of `McpError` for a time-out and for a connection that was closed."""


def ending_of(error: BaseException, policy: ToolPolicy, *, begun: bool = True) -> Ending:
    """How a body ended, told by its exception; the policy's own lists come first.

    Anything that is not known to be ambiguous is definite: a tool that raises `ValueError` has
    said that it failed, unless it raises it ``from`` an error that leaves that open.
    """
    if isinstance(error, ParentCommand):
        return Ending.PARENT
    # Our own refusals bubble up, too, and are failures of what they come out of.
    if isinstance(error, GraphBubbleUp) and not isinstance(error, LedgerError):
        return Ending.SUSPENDED
    if not begun:
        return Ending.DEFINITE
    if isinstance(error, tuple(policy.definite)):
        return Ending.DEFINITE
    if isinstance(error, tuple(policy.ambiguous)):
        return Ending.AMBIGUOUS
    return Ending.AMBIGUOUS if _is_ambiguous(error) else Ending.DEFINITE


def _is_ambiguous(error: BaseException) -> bool:
    """Whether an error leaves open what became of the effect.

    The outermost error that knows decides; one that says little is asked what it came from. What
    was merely being handled when the error arose does not count: a second try, after a first one
    that was never sent, may have been.
    """
    members = getattr(error, "exceptions", None)
    if isinstance(members, tuple) and members:  # a group, as task groups raise
        return any(_is_ambiguous(member) for member in members)
    vague = False
    for link in _chain(error):
        if isinstance(link, LedgerError):
            return False  # a step inside the tool was refused by the ledger itself
        names = {cls.__name__ for cls in type(link).__mro__}
        if names & _NEVER_SENT:
            return False
        if _is_lost(link, names):
            return True
        vague = vague or _is_vague(link, names)
    return vague


def _is_lost(error: BaseException, names: set[str]) -> bool:
    if isinstance(error, _AMBIGUOUS) or not isinstance(error, Exception) or names & _LOST:
        return True
    if isinstance(error, OSError) and error.errno in _LOST_NUMBERS:
        return True
    if _status(error) in _UNSURE:
        return True
    return "McpError" in names and getattr(getattr(error, "error", None), "code", 0) in _TOLD


def _status(error: BaseException) -> object:
    """The HTTP status that an error of a client tells of, or None."""
    answer = getattr(error, "response", None)
    for told in (error, answer):
        for name in ("status_code", "status", "code"):
            found = getattr(told, name, None)
            if isinstance(found, int) and not isinstance(found, bool):
                return found
    return None


def _is_vague(error: BaseException, names: set[str]) -> bool:
    """Whether an error tells of a line and not of what went wrong with it.

    `requests` and its kin call everything by one name.
    """
    return bool(names & _VAGUE) or (_package(error) in _CLIENTS and "ConnectionError" in names)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what it came from, outermost first."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        cause = link.__cause__
        if cause is None and not link.__suppress_context__ and _wraps_silently(link):
            cause = link.__context__
        link = cause


def _wraps_silently(error: BaseException) -> bool:
    """Clients that raise their own error while handling the one of the line, without ``from``."""
    return _package(error) in _CLIENTS or type(error).__name__ == "URLError"


def _package(error: BaseException) -> str:
    return type(error).__module__.split(".")[0]
