"""A real SMTP server on loopback that counts what arrives; needs the extra ``cli``."""

from __future__ import annotations

import email
import socket
import warnings
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from aiosmtpd.controller import Controller


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """What the server's log says of a message that it took."""

    to: str
    subject: str
    message_id: str


class _Inbox:
    """Logs every message; an entry exists before the sender gets its ``250``."""

    def __init__(self) -> None:
        self.mails: list[Mail] = []

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        message = email.message_from_bytes(envelope.content)
        self.mails.append(
            Mail(
                to=str(message["To"]),
                subject=str(message["Subject"]),
                message_id=str(message["Message-ID"]),
            )
        )
        return "250 kept"


class _BoundController(Controller):
    """Serves a socket that is bound already, so that no other process can take the port."""

    def __init__(self, handler: _Inbox, listener: socket.socket):
        host, port = listener.getsockname()
        # The name is given because looking it up can hang for seconds on a machine without DNS.
        super().__init__(handler, hostname=host, port=port, server_hostname="localhost")
        self._listener = listener

    def _create_server(self) -> Any:
        return self.loop.create_server(self._factory_invoker, sock=self._listener)

    def factory(self) -> Any:
        with warnings.catch_warnings():  # it asks asyncio in a way that Python 3.14 deprecates
            warnings.simplefilter("ignore", DeprecationWarning)
            return super().factory()  # type: ignore[no-untyped-call]


class SmtpSink:
    """An SMTP server for a ``with`` block, on a free port of 127.0.0.1, in a thread."""

    def __init__(self) -> None:
        self._inbox = _Inbox()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._controller = _BoundController(self._inbox, self._listener)

    @property
    def port(self) -> int:
        """The TCP port that takes the mail."""
        return int(self._controller.port)

    @property
    def received(self) -> int:
        """Number of messages that arrived so far."""
        return len(self._inbox.mails)

    @property
    def mails(self) -> list[Mail]:
        """The server's log, in order of arrival."""
        return list(self._inbox.mails)

    def __enter__(self) -> SmtpSink:
        self._controller.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._controller.stop()
        self._listener.close()
