"""A line to a PostgreSQL server that can be cut at a chosen moment: a real one, between two sockets."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

Cut = Literal["before", "after"]
"""Whether the line is cut before the server gets a message, or before its answer comes back."""


class Line:
    """Passes on what a client and a server say, until it is told to cut.

    Args:
        folder: where it listens.
        server: the server's socket.
    """

    def __init__(self, folder: Path, server: str):
        self.folder = folder
        self.cut: Cut | None = None
        """What happens at the next message, or at the next COMMIT."""
        self.at: int | None = None
        """Messages that pass before the cut; None: what passes is all that is no COMMIT."""
        self.then_gone = False
        """Whether nobody listens any more after a cut."""
        self.cuts = 0
        self._server = server
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen(16)
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Listen no more, and drop every line."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._open:
            _drop(end)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server)
                self._open += [client, server]
                cut = threading.Event()
                for work in (self._ask, self._answer):
                    threading.Thread(target=work, args=(client, server, cut), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                if self.cut is not None and self._is_due(data):
                    if self.cut == "before":
                        self._end(client, server)
                        return
                    cut.set()
                server.sendall(data)
        _drop(server)

    def _is_due(self, data: bytes) -> bool:
        if self.at is None:
            return b"COMMIT\0" in data
        self.at -= 1
        return self.at < 0

    def _answer(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if cut.is_set():
                    self._end(client, server)
                    return
                client.sendall(data)
        _drop(client)

    def _end(self, client: socket.socket, server: socket.socket) -> None:
        self.cut = None
        self.cuts += 1
        if self.then_gone:
            self.close()
        _drop(client)
        _drop(server)


def _drop(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@contextmanager
def line_to(address: str, folder: Path) -> Iterator[tuple[Line, str]]:
    """A line to the server of an address, and the address that leads through it."""
    host = re.search(r"host=([^&]+)", address)
    assert host is not None
    line = Line(folder, f"{host[1]}/.s.PGSQL.5432")
    try:
        yield line, address.replace(f"host={host[1]}", f"host={folder}")
    finally:
        line.close()
