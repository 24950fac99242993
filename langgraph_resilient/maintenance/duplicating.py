"""Copies a thread and says how much of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from langgraph_resilient import copying
from langgraph_resilient.maintenance.given import engine_of, keep_held
from langgraph_resilient.maintenance.reports import CopyReport

if TYPE_CHECKING:
    from langgraph_resilient.saver import ResilientSaver


def copy_thread(
    saver: ResilientSaver,
    source: str,
    target: str,
    *,
    latest_only: bool = False,
    dry_run: bool = False,
) -> CopyReport:
    """`ResilientSaver.copy_thread`, with a report: all in one transaction, or nothing.

    Args:
        saver: an open saver.
        source: the thread.
        target: its copy; must have no checkpoints.
        latest_only: only the newest checkpoint of each namespace, with its pending writes and all
            that it needs.
        dry_run: change nothing, only tell what would be copied.

    Raises:
        ConfigurationError: the target has checkpoints already, or is the source; or, with
            `dry_run`, one of them is only in the tables of ``SqliteSaver``.
        DataCorrupt: the source is damaged.
        StorageError: the database could not be written; nothing was changed.
    """
    keep_held(saver, source)
    found = copying.copy_thread(
        engine_of(saver), source, target, latest_only=latest_only, dry_run=dry_run
    )
    return CopyReport(dry_run=dry_run, **asdict(found))
