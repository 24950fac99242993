"""Errors of the psycopg driver in the package's own words; they are translated nowhere else.

No message holds what a connection string may hold: a server's own words never quote a password, and
what the client library says of a connection string is not repeated.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from langgraph_resilient.errors import (
    ConfigurationError,
    DatabaseCorrupt,
    DatabaseFull,
    DatabaseLocked,
    DatabaseReadOnly,
    DatabaseUnreachable,
    StorageError,
    ValueRefused,
)
from langgraph_resilient.store.failures import Conflict

DRIVER_ERRORS = (psycopg.Error,)
"""What the driver raises."""
WAITED = ("55P03", "40P01")
"""Another transaction held a row or the lock for too long, or each of two waited for the other."""


def translated(error: Exception, where: str) -> Exception:
    """The package's error for one of the driver's."""
    code = getattr(error, "sqlstate", None) or ""
    text = _first_line(error)
    if code.startswith("23"):
        return Conflict(text)
    for prefixes, kind, advice in _TRANSLATIONS:
        if code.startswith(prefixes):
            return kind(f"{where}: {text}; {advice}")
    if not code and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        return DatabaseUnreachable(
            f"{where}: {text}; check that the server runs and can be reached from here. "
            "The next operation connects anew"
        )
    return StorageError(f"{where}: {type(error).__name__}: {text}")


def is_lost(error: BaseException) -> bool:
    """Whether the connection is gone, so that a new one may do."""
    code = getattr(error, "sqlstate", None) or ""
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and (
        not code or code.startswith(("08", "57P"))
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


_TRANSLATIONS: tuple[tuple[tuple[str, ...], Callable[[str], Exception], str], ...] = (
    (
        (*WAITED, "40001"),
        DatabaseLocked,
        "another session holds it; nothing was stored, try again, or raise busy_timeout",
    ),
    (
        ("53100",),
        DatabaseFull,
        "free some space on the server, then try again; what was acknowledged before is safe",
    ),
    (
        ("53",),
        DatabaseUnreachable,
        "the server has no room for it now; each saver uses up to six connections: close those that "
        "are not needed, or raise max_connections",
    ),
    (
        ("25006", "42501"),
        DatabaseReadOnly,
        "grant the role what it needs in the schema, or only read from it",
    ),
    (
        ("28", "3D000"),
        DatabaseUnreachable,
        "check the user, the password and the database in the connection string",
    ),
    (
        ("3F000",),
        ConfigurationError,
        "no schema of the search_path exists: CREATE SCHEMA, or name another one in the connection "
        "string with ?options=-csearch_path=NAME",
    ),
    (
        ("54",),
        ValueRefused,
        "names of threads, namespaces, checkpoints and tasks may have about 2,600 bytes here",
    ),
    (
        ("22021", "22P05"),
        ValueRefused,
        "the database must have the encoding UTF8 to hold any name",
    ),
    (
        ("XX001", "XX002", "58P01"),
        DatabaseCorrupt,
        "run `langgraph-resilient verify` and restore a backup, or export what is readable",
    ),
    (
        ("58",),
        DatabaseUnreachable,
        "the server has trouble with its disk or system; its log says more",
    ),
    (
        ("08", "57P"),
        DatabaseUnreachable,
        "the server ended the connection; the next operation connects anew",
    ),
    (
        ("25P03",),
        DatabaseLocked,
        "this process stood still inside a transaction for too long; nothing was stored, try again",
    ),
    (
        ("57014",),
        StorageError,
        "the statement was interrupted; nothing of it was stored, try again",
    ),
)
