"""``single_writer=True``: a process that has lost a thread stores nothing of its run any more.

A run that begins takes its thread, and remembers the epoch of the lease that it got. What it stores later
checks that epoch in its own transaction (a fencing token, after Kleppmann).
"""

from __future__ import annotations

from langgraph_resilient.draft import Draft
from langgraph_resilient.engine import Engine
from langgraph_resilient.errors import LostOwnership
from langgraph_resilient.records import Lease, Owner
from langgraph_resilient.store.session import Session


def check_held(engine: Engine, thread_id: str, lease: Lease | None, me: Owner) -> None:
    """Refuse to take a thread back in the middle of a run.

    Raises:
        LostOwnership: another process has taken it since the run began.
    """
    epoch = engine.runs.epoch_of(thread_id)
    if epoch is not None and lease is not None and (lease.owner != me or lease.epoch != epoch):
        raise _lost(thread_id)


def fence(draft: Draft) -> None:
    """Let a draft be stored only while the run that made it has its thread."""
    thread_id, thread = draft.state.thread_id, draft.state.number
    epoch = draft.engine.runs.epoch_of(thread_id)
    if epoch is None:
        return  # writers are not fenced

    def step(session: Session) -> None:
        if session.one("lease_held", thread, epoch) is None:
            raise _lost(thread_id)

    draft.then(step)


def _lost(thread_id: str) -> LostOwnership:
    return LostOwnership(
        f"thread {thread_id!r}: another process began a run of it while this one was running, or it was "
        "deleted; nothing was stored. Look at the thread before you run it again here"
    )
