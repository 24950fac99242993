"""What an exception out of a tool says about the effect: it failed, or nobody knows."""

from __future__ import annotations

import concurrent.futures
import errno
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
        "ConnectError",
        "NewConnectionError",
        "NameResolutionError",
        "PoolTimeout",
        "UnsupportedProtocol",
        "ClientConnectorError",
        "SMTPConnectError",
    }
)
"""Clients' errors by class name that say: no connection was made, so nothing was sent."""
_LOST = frozenset(
    {
        "TimeoutError",  # also asyncio's, which is a class of its own in Python 3.10
        "TimeoutException",
        "Timeout",
        "ReadTimeout",
        "WriteTimeout",
        "ReadTimeoutError",
        "NetworkError",
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
        "APITimeoutError",
        "APIConnectionError",
    }
)
"""Clients' errors by class name that say: the request was under way when the line broke."""
_LOST_NUMBERS = frozenset({errno.ETIMEDOUT, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE})
_CLIENTS = frozenset({"requests", "urllib3", "httpx", "httpcore", "aiohttp"})


def ending_of(error: BaseException, policy: ToolPolicy, *, begun: bool = True) -> Ending:
    """How a body ended, told by its exception; the policy's own lists come first.

    Anything that is not known to be ambiguous is definite: a tool that raises `ValueError` has
    said that it failed.
    """
    if isinstance(error, ParentCommand):
        return Ending.PARENT
    if isinstance(error, GraphBubbleUp):
        return Ending.SUSPENDED
    if not begun:
        return Ending.DEFINITE
    if isinstance(error, tuple(policy.definite)):
        return Ending.DEFINITE
    if isinstance(error, tuple(policy.ambiguous)):
        return Ending.AMBIGUOUS
    return Ending.AMBIGUOUS if _is_ambiguous(error) else Ending.DEFINITE


def _is_ambiguous(error: BaseException) -> bool:
    if isinstance(error, LedgerError):
        return False  # a step inside the tool was refused by the ledger itself
    chain = list(_chain(error))
    names = {cls.__name__ for link in chain for cls in type(link).__mro__}
    if names & _NEVER_SENT or any(isinstance(link, ConnectionRefusedError) for link in chain):
        return False
    if isinstance(error, _AMBIGUOUS) or not isinstance(error, Exception):
        return True
    if isinstance(error, OSError) and error.errno in _LOST_NUMBERS:
        return True
    own = {cls.__name__ for cls in type(error).__mro__}
    if own & _LOST:
        return True
    # requests and its kin call everything that goes wrong with a line by one name.
    package = type(error).__module__.split(".")[0]
    return package in _CLIENTS and "ConnectionError" in own


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in found:
        found.append(link)
        link = link.__cause__ or link.__context__
    return found
