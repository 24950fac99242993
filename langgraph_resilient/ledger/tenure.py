"""This process runs a thread: a hold on it for as long as a run goes on.

Beside the leases that tool calls take by themselves, so that runs which are in plain node code are seen,
too: by other processes through the lease, by this one through its flights.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from langgraph_resilient import calls
from langgraph_resilient.draft import Draft
from langgraph_resilient.ledger import flights
from langgraph_resilient.ledger.book import Book, ThreadHeld
from langgraph_resilient.ledger.owner import is_alive
from langgraph_resilient.records import Lease, Owner
from langgraph_resilient.store import rows

_FLIGHT = b"run:"


class Tenure:
    """The hold of one run on a thread. Safe to end twice.

    Args:
        book: the ledger's rows.
        thread_id: the thread.
    """

    def __init__(self, book: Book, thread_id: str):
        self._book = book
        self._thread_id = thread_id
        self._key = _FLIGHT + thread_id.encode("utf-8", "surrogatepass")
        self._flies = False

    def begin(self) -> None:
        """A run begins. Where another process is running calls of the thread, they will wait for it."""
        self._book.engine.runs.take(self._thread_id, None)
        self._flies = flights.take_off(self._book.engine.scope, self._key)
        try:
            number = self._book.engine.change(self._thread_id, self._claimed)
        except ThreadHeld:
            self.end()
            return
        except BaseException:
            self.end()
            raise
        self._fly(number)

    def recover(self, head: bytes) -> int:
        """Take the thread over from a process that is dead; durable on return.

        Args:
            head: the checkpoint that the run goes on from.

        Returns:
            Which attempt at this checkpoint it is, from 1.

        Raises:
            ThreadHeld: a live process has it.
        """
        self._book.engine.runs.take(self._thread_id, None)
        scope = self._book.engine.scope
        if not flights.take_off(scope, self._key):
            raise ThreadHeld(self._book.me())
        self._flies = True
        try:
            number, attempt = self._book.engine.change(
                self._thread_id, partial(self._taken, head=head)
            )
        except BaseException:
            self.end()
            raise
        self._fly(number)
        return attempt

    def take_back(self, head: bytes) -> None:
        """An attempt that does not count: nothing was run, or it ended in order. Durable on return."""

        def build(draft: Draft) -> None:
            thread = draft.state.number
            lease = self._lease(thread)
            if lease is not None and lease.attempted == head and lease.owner == self._book.me():
                fewer = replace(lease, attempts=lease.attempts - 1)
                draft.then(self._book.leasing(thread, fewer, lease))

        self._book.engine.change(self._thread_id, build)

    def end(self) -> None:
        """The run has ended, however it did."""
        if self._flies:
            self._flies = False
            flights.land(self._book.engine.scope, self._key)

    def _fly(self, number: int) -> None:
        if self._flies:
            flights.assign(self._book.engine.scope, self._key, number)
            self._book.renewer.ensure()

    def _lease(self, thread: int) -> Lease | None:
        with self._book.engine.db.read() as session:
            return calls.read_lease(session, self._book.engine.sealer, thread)

    def _claimed(self, draft: Draft) -> int:
        self._book.claim(draft)
        return draft.state.number

    def _taken(self, draft: Draft, head: bytes) -> tuple[int, int]:
        thread = draft.state.number
        lease = self._lease(thread)
        holder = holder_of(self._book, lease)
        if holder is not None:
            raise ThreadHeld(holder)
        attempt = 1
        if lease is not None and lease.attempted == head:
            attempt += lease.attempts
        marked = replace(self._book.lease(lease)[0], attempted=head, attempts=attempt)
        draft.then(self._book.leasing(thread, marked, lease))
        return thread, attempt


def holder_of(book: Book, lease: Lease | None) -> Owner | None:
    """The other live process that has a thread; None when there is none."""
    if lease is None or lease.owner == book.me():
        return None
    return lease.owner if is_alive(lease.owner, lease.expires / 1000, book.now()) else None


def standing_of(book: Book, thread_id: str, head: bytes) -> tuple[Owner | None, int]:
    """Who holds a thread, and how often going on from this checkpoint has been tried."""
    engine = book.engine
    with engine.reading() as session:
        thread = rows.find_thread(session, engine.sealer, thread_id)
        if thread is None:
            return None, 0
        lease = calls.read_lease(session, engine.sealer, thread.number)
    flying = thread.number in flights.threads_flying(engine.scope)
    holder = book.me() if flying else holder_of(book, lease)
    tried = lease.attempts if lease is not None and lease.attempted == head else 0
    return holder, tried
