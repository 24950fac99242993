"""How long threads live: said, looked up, and begun anew by reading. `expire` deletes them.

The time to live stands in the seal of the thread's row: whoever lacks the key can neither set nor
remove it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from langgraph_resilient.draft import Draft
from langgraph_resilient.engine import Engine
from langgraph_resilient.errors import DatabaseReadOnly, StorageError
from langgraph_resilient.records import Lifetime
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Session

logger = logging.getLogger(__name__)

_REFRESHES = 16
"""A read begins a thread's life anew only when a sixteenth of it has passed: most reads write
nothing."""


def set_lifetime(
    engine: Engine,
    thread_id: str,
    ttl: int | None,
    *,
    now: float | None = None,
) -> None:
    """Say how long a thread lives, from now or its next write on; durable on return.

    Args:
        engine: owns the database.
        thread_id: the thread; it is made if it is not there and a time is given.
        ttl: milliseconds, or None for ever.
        now: seconds since 1970.
    """
    since = int((time.time() if now is None else now) * 1000)
    lifetime = None if ttl is None else Lifetime(ttl=ttl, since=since)

    def build(draft: Draft) -> None:
        if lifetime is not None or draft.state.exists:
            draft.live(lifetime)

    engine.change(thread_id, build)


def lifetime_of(engine: Engine, thread_id: str) -> Lifetime | None:
    """How long a thread lives; None for ever, or when it is not there.

    Raises:
        CheckpointCorrupt: its row is damaged (or what its seal says).
    """
    with engine.reading(few=True) as session:
        thread = rows.find_thread(session, engine.sealer, thread_id)
    return None if thread is None else thread.lifetime


def refresh(engine: Engine, thread_id: str, *, now: float | None = None) -> None:
    """A thread was read: its life begins anew. What cannot be written is read all the same."""
    at = int((time.time() if now is None else now) * 1000)
    found = lifetime_of(engine, thread_id)
    if found is None or at - found.since < found.ttl // _REFRESHES or engine.db.read_only:
        return

    def work(session: Session) -> None:
        thread = rows.find_thread(session, engine.sealer, thread_id)
        if thread is not None and thread.lifetime is not None and thread.lifetime.since < at:
            lifetime = replace(thread.lifetime, since=at)
            rows.put_lifetime(session, engine.sealer, thread, lifetime)

    try:
        engine.db.write(work)
    except DatabaseReadOnly:
        return
    except StorageError as error:
        logger.warning("a thread's life was not begun anew by reading it: %s", error)
