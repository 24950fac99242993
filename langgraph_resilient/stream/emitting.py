"""Tokens of a node that streams by itself: stored before they are shown, as a model's are."""

from __future__ import annotations

import threading

from langgraph_resilient.journal import JournalBook, Request
from langgraph_resilient.journal.book import Spot
from langgraph_resilient.stream.buffer import StreamBuffer


class Emitter:
    """Called with a token, stores it; on return it survives SIGKILL, and may be shown.

    Args:
        book: the journal.
        thread_id: the thread.
    """

    def __init__(self, book: JournalBook, thread_id: str):
        self._book = book
        self._thread_id = thread_id
        self._lock = threading.Lock()
        """Guards the order of tokens, and the opening of the stream."""
        self._buffer: StreamBuffer | None = None

    def __call__(self, token: str) -> None:
        with self._lock:
            if self._buffer is None:
                self._buffer = self._opened()
            self._buffer.text(token)

    def _opened(self) -> StreamBuffer:
        spot = Spot(thread_id=self._thread_id, parent=b"", task="", root="", place="emitter")
        request = Request(messages=(), provider="node", model="")
        record = self._book.begin(spot, request, running=False)
        return StreamBuffer(self._book.engine, record, self._book.reading())
