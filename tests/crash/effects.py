"""The outside world: an order server over HTTP and a mail server over SMTP, in a process of their own.

Whatever arrives is one row in their own database, durable before the answer goes out
(``synchronous=FULL``). Nobody is asked whether an effect happened: the rows are counted, also when
the process that caused them is dead. Neither server looks for repeated requests, on purpose.

A request may carry a fault: ``refused`` kills the client before the effect, ``taken`` after it and
before the answer. So a client dies with its request under way, at a moment that is not chance.
"""

from __future__ import annotations

import email
import http.client
import json
import os
import signal
import smtplib
import socket
import sqlite3
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
REFUSED, TAKEN = "refused", "taken"
_TABLE = """
CREATE TABLE IF NOT EXISTS effects (
    id INTEGER PRIMARY KEY,
    run TEXT NOT NULL,
    kind TEXT NOT NULL,
    label TEXT NOT NULL,
    key TEXT NOT NULL
)
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One effect, as the server stored it.

    Attributes:
        run: which experiment caused it.
        kind: ``order`` or ``mail``.
        label: what was ordered, or the subject.
        key: the idempotency key that came along; empty when none did.
    """

    id: int
    run: str
    kind: str
    label: str
    key: str

    @property
    def receipt(self) -> str:
        """What the tool says when it gets the answer."""
        return f"{self.kind} {self.id}"


# --- the servers' process ---------------------------------------------------------------------


class _Store:
    def __init__(self, path: str):
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(_TABLE)

    def take(self, kind: str, request: dict[str, Any]) -> int | None:
        """Do the effect; None when the client is dead before it gets an answer."""
        fault, pid = request.get("fault"), int(request.get("pid") or 0)
        if fault == REFUSED:
            os.kill(pid, signal.SIGKILL)
            return None
        with self._lock:  # protects the one connection
            number = self._connection.execute(
                "INSERT INTO effects (run, kind, label, key) VALUES (?, ?, ?, ?)",
                (request["run"], kind, request["label"], request["key"]),
            ).lastrowid
        if fault == TAKEN:
            os.kill(pid, signal.SIGKILL)
            return None
        return number


class _Traffic:
    """How many conversations are going on."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = 0

    def begins(self) -> None:
        with self._changed:
            self._open += 1

    def ends(self) -> None:
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def wait_for_end(self) -> None:
        """Return when there is none."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open)


def _orders(store: _Store, mails: _Traffic) -> ThreadingHTTPServer:
    orders = _Traffic()

    class Server(ThreadingHTTPServer):
        def process_request(self, request: Any, client_address: Any) -> None:
            orders.begins()  # in the thread that accepts, so that nobody is overlooked
            super().process_request(request, client_address)

        def shutdown_request(self, request: Any) -> None:
            super().shutdown_request(request)
            orders.ends()

        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exc_info()[1], ConnectionError):  # the client was killed
                super().handle_error(request, client_address)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            mails.wait_for_end()
            orders.ends()  # this one is none; several may be waiting here
            orders.wait_for_end()
            orders.begins()
            self.send_response(204)
            self.end_headers()

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            body = self.rfile.read(length)
            if len(body) < length:  # the client died in the middle
                return
            number = store.take("order", json.loads(body))
            if number is None:
                self.close_connection = True
                return
            answer = json.dumps({"id": number}).encode()
            self.send_response(201)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    return Server((HOST, 0), Handler)


def _mails(store: _Store, mails: _Traffic) -> Any:
    from aiosmtpd.controller import Controller
    from aiosmtpd.smtp import SMTP

    class Sink:
        async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
            message = email.message_from_bytes(envelope.content)
            request = {
                "run": message["X-Run"],
                "label": message["Subject"],
                "key": message["X-Key"] or "",
                "fault": message["X-Fault"],
                "pid": message["X-Pid"],
            }
            number = store.take("mail", request)
            return "451 nobody is there" if number is None else f"250 kept as {number}"

    class Counted(SMTP):
        def connection_made(self, transport: Any) -> None:
            mails.begins()
            super().connection_made(transport)

        def connection_lost(self, error: Any) -> None:
            super().connection_lost(error)
            mails.ends()

    listener = socket.create_server((HOST, 0))

    class Bound(Controller):
        def factory(self) -> Any:
            return Counted(self.handler, **self.SMTP_kwargs)

        def _create_server(self) -> Any:
            return self.loop.create_server(self._factory_invoker, sock=listener)

    # The name is given because looking it up can hang on a machine without DNS.
    return Bound(Sink(), hostname=HOST, port=listener.getsockname()[1], server_hostname="localhost")


def serve(path: str) -> None:
    """Run both servers until standard input ends, which it does when the parent is gone."""
    warnings.simplefilter("ignore", DeprecationWarning)  # aiosmtpd on newer Pythons
    store = _Store(path)
    traffic = _Traffic()
    orders, mails = _orders(store, traffic), _mails(store, traffic)
    threading.Thread(target=orders.serve_forever, daemon=True).start()
    mails.start()
    print(json.dumps({"http": orders.server_address[1], "smtp": mails.port}), flush=True)
    sys.stdin.read()
    os._exit(0)


# --- the other side ---------------------------------------------------------------------------


@contextmanager
def servers(folder: Path) -> Iterator[World]:
    """Both servers, in a process of their own, while a ``with`` block lasts.

    Args:
        folder: where they keep their database.
    """
    path = folder / "world.db"
    process = subprocess.Popen(
        [sys.executable, __file__, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield World(path=path, **json.loads(process.stdout.readline()))
    finally:
        process.communicate()  # closes its standard input


@dataclass(frozen=True, kw_only=True)
class World:
    """The running servers, as a client and as somebody who looks into their database sees them."""

    path: Path
    http: int
    smtp: int

    def rows(self, run: str) -> list[Row]:
        """The effects of an experiment, in the order they happened."""
        connection = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)
        try:
            found = connection.execute(
                "SELECT id, run, kind, label, key FROM effects WHERE run = ? ORDER BY id", (run,)
            ).fetchall()
        finally:
            connection.close()
        return [
            Row(id=id, run=run, kind=kind, label=label, key=key)
            for id, run, kind, label, key in found
        ]

    def quiet(self) -> None:
        """Return when everything that dead clients had sent is done, or will never be."""
        with smtplib.SMTP(HOST, self.smtp, "localhost", timeout=30) as line:
            line.noop()  # it is served after those who came before
        line = http.client.HTTPConnection(HOST, self.http, timeout=30)
        try:
            line.request("GET", "/quiet")
            line.getresponse().read()
        finally:
            line.close()

    def order(self, run: str, label: str, key: str, fault: str | None = None) -> str:
        """Order something; the receipt."""
        line = http.client.HTTPConnection(HOST, self.http, timeout=30)
        try:
            body = {"run": run, "label": label, "key": key, "fault": fault, "pid": os.getpid()}
            line.request("POST", "/orders", json.dumps(body))
            return f"order {json.loads(line.getresponse().read())['id']}"
        finally:
            line.close()

    def mail(self, run: str, label: str, key: str, fault: str | None = None) -> str:
        """Send a mail; the receipt."""
        message = EmailMessage()
        message["From"], message["To"] = "agent@example.com", "user@example.com"
        message["Subject"], message["X-Run"], message["X-Key"] = label, run, key
        if fault is not None:
            message["X-Fault"], message["X-Pid"] = fault, str(os.getpid())
        message.set_content("Hello.")
        with smtplib.SMTP(HOST, self.smtp, "localhost", timeout=30) as line:
            line.ehlo_or_helo_if_needed()
            line.mail("agent@example.com")
            line.rcpt("user@example.com")
            code, text = line.data(message.as_bytes())
        assert code == 250, text
        return f"mail {text.split()[-1].decode()}"


if __name__ == "__main__":
    serve(sys.argv[1])
