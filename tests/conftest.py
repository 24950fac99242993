"""Fixtures: savers on every backend, unprotected, with a cipher, and with a user's serde."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from old_python import is_untold
from serving import fresh_address

from langgraph_resilient import Cipher, ResilientSaver

BACKENDS = ("file", "memory", "connection", "postgres")
GUARDS = ("plain", "cipher", "serde")
SEALED = "sealed"
"""One more, with an integrity key: for modules that set `MORE_GUARDS = [SEALED]`."""
KEY = bytes(range(32))


def pytest_configure(config: pytest.Config) -> None:
    """One hash seed for all processes that collect tests, so that they agree on every test's id.

    The processes that tests start go on with seeds of their own: what is stored must not depend on it.
    And Ctrl-C, which tests send, reaches them also where this process was started in the background of
    a shell, which lets its children ignore it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        os.environ.pop("PYTHONHASHSEED", None)
    else:
        os.environ.setdefault("PYTHONHASHSEED", str(random.randrange(2**32)))


def make_cipher() -> Any:
    """The package's own cipher with a fixed key."""
    return Cipher(KEY)


def make_serde(backend: str) -> Any:
    """A user's serde: an encrypting one, and LangGraph's own for the connection backend."""
    if backend == "connection":
        return JsonPlusSerializer()
    return EncryptedSerializer.from_pycryptodome_aes(key=KEY)


LONG = ("test_notebooks.py", "test_benchmarks_smoke.py", "test_demo.py", "test_cli.py")
"""Modules with tests of many seconds."""


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """What Python 3.10 cannot do is skipped there; what takes long comes first.

    Of two processes that share the tests, one would have nothing left to do at the end.
    """
    items.sort(key=lambda item: item.path.name not in LONG)
    untold = pytest.mark.skip(reason="LangGraph tells coroutines their graph from Python 3.11 on")
    for item in filter(is_untold, items):
        item.add_marker(untold)


class SaverFactory:
    """Opens savers on one database, as often as a test likes.

    ``persistent`` tells whether what was stored is still there after a reopen.
    """

    def __init__(self, backend: str, guard: str, folder: Path) -> None:
        self.backend = backend
        self.guard = guard
        self.path = folder / "agent.db"
        self.persistent = backend != "memory"
        self.is_file = backend in ("file", "connection")
        self.address = fresh_address() if backend == "postgres" else str(self.path)

    def options(self) -> dict[str, Any]:
        if self.guard == "cipher":
            return {"cipher": make_cipher()}
        if self.guard == "serde":
            return {"serde": make_serde(self.backend)}
        return {"integrity_key": KEY} if self.guard == SEALED else {}

    @contextmanager
    def __call__(self, **extra: Any) -> Iterator[BaseCheckpointSaver]:
        options = {**self.options(), **extra}
        if self.backend == "connection":
            with self._on_connection(options) as saver:
                yield saver
        else:
            target = ":memory:" if self.backend == "memory" else self.address
            with ResilientSaver.from_conn_string(target, **options) as saver:
                yield saver

    @contextmanager
    def _on_connection(self, options: dict[str, Any]) -> Iterator[BaseCheckpointSaver]:
        conn = sqlite3.connect(self.path, check_same_thread=False)
        try:
            saver = ResilientSaver(conn, **options)
            try:
                yield saver
            finally:
                saver.close()
        finally:
            conn.close()


def tried_now(names: Iterable[str], *chosen: str) -> list[Any]:
    """Parameters of which only the chosen ones are tried in every run; the campaign tries all."""
    return [
        pytest.param(name, marks=[] if name in chosen else [pytest.mark.campaign]) for name in names
    ]


def combinations(guards: Iterable[str] = GUARDS) -> list[Any]:
    """Every backend with every guard; a server's guards but the first are tried by the campaign."""
    return [
        pytest.param(
            (backend, guard),
            id=f"{backend}-{guard}",
            marks=[pytest.mark.campaign] if backend == "postgres" and guard != "plain" else [],
        )
        for backend in BACKENDS
        for guard in guards
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A `saver_factory` for every backend and every guard that the test's module is for."""
    if "saver_factory" in metafunc.fixturenames:
        guards = (*GUARDS, *getattr(metafunc.module, "MORE_GUARDS", ()))
        metafunc.parametrize("saver_factory", combinations(guards), indirect=True)


@pytest.fixture
def saver_factory(request: pytest.FixtureRequest, tmp_path: Path) -> SaverFactory:
    """Every backend, each plain, with the package's cipher and with a user's serde."""
    return SaverFactory(*request.param, tmp_path)


@pytest.fixture
def saver(saver_factory: SaverFactory) -> Iterator[BaseCheckpointSaver]:
    """An open saver on every backend and with every protection."""
    with saver_factory() as opened:
        yield opened


@pytest.fixture
def file_factory(tmp_path: Path) -> SaverFactory:
    """A plain saver on a file."""
    return SaverFactory("file", "plain", tmp_path)


@pytest.fixture
def file_saver(file_factory: SaverFactory) -> Iterator[BaseCheckpointSaver]:
    with file_factory() as opened:
        yield opened


@pytest.fixture
def db_path(tmp_path: Path) -> str:
    """Where a database may be created."""
    return str(tmp_path / "agent.db")
