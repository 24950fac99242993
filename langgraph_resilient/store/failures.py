"""Errors of the sqlite3 driver in the package's own words; they are translated nowhere else."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from langgraph_resilient.errors import (
    ConfigurationError,
    DatabaseCorrupt,
    DatabaseFull,
    DatabaseLocked,
    DatabaseReadOnly,
    DatabaseUnreachable,
    SaverClosed,
    StorageError,
)


class Conflict(Exception):
    """Another writer was faster: look again and do the work anew. Never reaches a user."""


DRIVER_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What the driver raises; the second when a damaged schema is quoted in an error message."""


def translated(error: Exception, where: str) -> Exception:
    """The package's error for one of the driver's."""
    if isinstance(error, UnicodeDecodeError):
        return DatabaseCorrupt(f"{where}: a text in it is damaged ({error.reason}); restore a copy")
    text = str(error)
    lower = text.lower()
    if isinstance(error, sqlite3.IntegrityError):
        return Conflict(text)
    for words, kind, advice in _TRANSLATIONS:
        if any(word in lower for word in words):
            return kind(f"{where}: {text}; {advice}")
    return StorageError(f"{where}: {type(error).__name__}: {text}")


_TRANSLATIONS: tuple[tuple[tuple[str, ...], Callable[[str], Exception], str], ...] = (
    (
        ("is locked", "busy"),
        DatabaseLocked,
        "another process holds it; wait, stop that process, or raise busy_timeout",
    ),
    (
        ("disk is full", "too big for the file"),
        DatabaseFull,
        "free some space, then try again; what was acknowledged before is safe",
    ),
    (
        ("readonly", "read-only"),
        DatabaseReadOnly,
        "make the file and its folder writable, or only read from it",
    ),
    (
        ("malformed", "not a database", "corrupt", "could not decode"),
        DatabaseCorrupt,
        "run `langgraph-resilient verify` and restore a copy, or export what is readable",
    ),
    (
        ("closed database",),
        SaverClosed,
        "it was closed; open a new one, or keep its `with` block open while the graph runs",
    ),
    (
        ("created in a thread",),
        ConfigurationError,
        "open the connection with sqlite3.connect(..., check_same_thread=False)",
    ),
    (
        ("unable to open", "disk i/o error", "no such vfs"),
        DatabaseUnreachable,
        "check that the path exists, its permissions, free space, quotas and file size limits",
    ),
    (
        ("interrupted",),
        StorageError,
        "the statement was interrupted; nothing of it was stored, try again",
    ),
)
