"""Where a database is: what connection strings mean, and the file before SQLite opens it."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from langgraph_resilient.errors import ConfigurationError, DatabaseCorrupt, DatabaseUnreachable
from langgraph_resilient.options import Options
from langgraph_resilient.store.failures import DRIVER_ERRORS, translated

_HEADER_BYTES = 100
_SERVER = ("postgresql://", "postgres://")


class Target:
    """Where a connection string leads: a file, or a database that lives in one connection."""

    def __init__(self, name: str, uri: bool, path: Path | None, query: dict[str, list[str]]):
        self.name = name
        self.uri = uri
        self.path = path
        self.query = query

    @property
    def single(self) -> bool:
        """Whether the whole database lives in one connection."""
        return self.path is None

    @classmethod
    def parse(cls, text: str | os.PathLike[str]) -> Target:
        """The target of a path, ``":memory:"``, a SQLite URI, a ``sqlite:///`` or PostgreSQL URL.

        Raises:
            ConfigurationError: it is of another kind.
        """
        name = os.fspath(text)
        if not isinstance(name, str):
            raise ConfigurationError(f"a connection string must be text or a path, not {name!r}")
        if name in (":memory:", "", "sqlite://", "sqlite:///:memory:"):
            return cls(":memory:", False, None, {})
        if name.startswith("sqlite:///"):
            return cls.parse(unquote(name[len("sqlite:///") :]))
        if name.startswith("file:"):
            parts = urlsplit(name)
            query = parse_qs(parts.query)
            inner = unquote(parts.path)
            if inner == ":memory:" or not inner or query.get("mode") == ["memory"]:
                return cls(name, True, None, query)
            return cls(name, True, Path(inner), query)
        if name.startswith(_SERVER):
            return ServerTarget(name, True, None, {})
        if "://" in name:
            raise ConfigurationError(
                f"the connection string {name.split('://')[0]}://… is not supported; "
                'give a file such as "agent.db", ":memory:", "file:agent.db?mode=ro" or '
                '"postgresql://host/database"'
            )
        return cls(name, False, Path(name), {})

    @classmethod
    def beside(cls, connection: Any) -> Target:
        """The file that a connection of ``aiosqlite`` leads to, for connections of our own.

        Such a connection belongs to a thread that only a running event loop reaches. What it was
        made with (a path, a URI) is asked for by making another one and looking.

        Raises:
            ConfigurationError: it is something else, or its database lives in that connection.
        """
        kind = type(connection)
        connect = getattr(connection, "_connector", None)
        if connect is None or not any(
            base.__module__.startswith("aiosqlite") for base in kind.__mro__
        ):
            raise ConfigurationError(
                f"ResilientSaver(conn) takes a sqlite3.Connection or an aiosqlite.Connection, not a "
                f"{kind.__module__}.{kind.__qualname__}; for a path or a URI use "
                'ResilientSaver.from_conn_string("agent.db")'
            )
        try:
            with closing(connect()) as other:
                path = other.execute("PRAGMA database_list").fetchone()[2]
        except DRIVER_ERRORS as error:
            raise translated(error, "the database of the aiosqlite connection") from error
        if not path:
            raise ConfigurationError(
                "the database of the aiosqlite connection is in memory, where no other connection "
                'reaches it; use ResilientSaver.from_conn_string(":memory:"), with asyncio, too'
            )
        return cls(path, False, Path(path), {})

    def open(self, options: Options, *, immutable: bool = False) -> sqlite3.Connection:
        """A new connection in autocommit mode, usable from any thread."""
        name, uri = self.name, self.uri
        if immutable and self.path is not None:
            name, uri = f"file:{quote(str(self.path))}?mode=ro&immutable=1", True
        try:
            return sqlite3.connect(
                name,
                timeout=options.busy_timeout,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
                uri=uri,
            )
        except DRIVER_ERRORS as error:
            raise translated(error, str(self.path or name)) from error


class ServerTarget(Target):
    """A database on a PostgreSQL server. `name` may hold a password: it is never shown."""

    @property
    def single(self) -> bool:
        """Whether the whole database lives in one connection: never."""
        return False


def refuse_stump(path: Path) -> None:
    """A file that is shorter than any database's header reads to SQLite as a new, empty one.

    Raises:
        DatabaseCorrupt: the file was cut off.
    """
    with suppress(OSError):
        size = path.stat().st_size
        if 0 < size < _HEADER_BYTES:
            raise DatabaseCorrupt(
                f"{path} has {size} bytes and is no database: it was cut off; restore a copy"
            )


def create_private(path: Path) -> None:
    """Create a missing file readable by its owner only; SQLite gives its side files the same mode.

    Trap: an existing file must not be opened and closed here. POSIX drops all of a process's
    locks on a file when any descriptor of it is closed, those of other connections included.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, stat.S_IRUSR | stat.S_IWUSR))
    except FileExistsError:
        return
    except OSError as error:
        raise DatabaseUnreachable(
            f"{path} cannot be created: {error.strerror}; check that the folder exists and is writable"
        ) from error
