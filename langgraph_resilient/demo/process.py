"""Starting, killing and measuring the child processes of the demo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any, Literal, NoReturn

from langgraph_resilient.errors import DemoFailed

OnQuestion = Callable[[Any], Any]
SaverKind = Literal["resilient", "sqlite"]
Durability = Literal["async", "sync", "exit"]

#: What ends a process at once, without a chance to clean up. Windows has no SIGKILL; there,
#: SIGTERM through ``os.kill`` is the call that terminates a process unconditionally.
KILL = signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


def die() -> NoReturn:
    """End this process by SIGKILL: no ``finally``, no flush, no ``atexit``."""
    os.kill(os.getpid(), KILL)
    while True:  # the signal is on its way
        threading.Event().wait()


def open_saver(kind: SaverKind, path: str) -> AbstractContextManager[Any]:
    """The saver of that kind on the SQLite file ``path``, for a ``with`` block.

    Imported here, so that a child loads only the one it uses.
    """
    saver: AbstractContextManager[Any]
    if kind == "sqlite":
        from langgraph.checkpoint.sqlite import SqliteSaver

        saver = SqliteSaver.from_conn_string(path)
        return saver
    from langgraph_resilient.saver import ResilientSaver

    return ResilientSaver.from_conn_string(path)


@contextmanager
def database_folder(chosen: Path | None, names: Sequence[str]) -> Iterator[Path]:
    """A folder for the files of one run; a temporary one, removed at the end, when none is chosen.

    What an earlier run left under these names in a chosen folder is removed first.
    """
    if chosen is None:
        with tempfile.TemporaryDirectory(prefix="langgraph-resilient-") as temporary:
            yield Path(temporary)
        return
    chosen.mkdir(parents=True, exist_ok=True)
    for name in names:
        remove_database(chosen / name)
    yield chosen


def remove_database(path: Path) -> None:
    """Remove a SQLite file with what stands beside it, as far as it is there."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def file_bytes(path: Path) -> int:
    """Bytes of a SQLite file on disk with its WAL; 0 when it is not there."""
    return sum(
        part.stat().st_size for part in (path, path.with_name(path.name + "-wal")) if part.exists()
    )


def start_child(
    module: str,
    arguments: Sequence[str],
    *,
    stdout: int,
    stderr: int | IO[bytes],
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start ``python -m module arguments`` with this interpreter and this package.

    The child leads a session of its own: Ctrl-C reaches only the parent, which then kills it.
    """
    environment = dict(os.environ)
    if _PACKAGE_ROOT.name not in ("site-packages", "dist-packages"):
        known = [entry for entry in (environment.get("PYTHONPATH"),) if entry]
        environment["PYTHONPATH"] = os.pathsep.join([str(_PACKAGE_ROOT), *known])
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=environment,
        start_new_session=True,
    )


def run_child(
    module: str, arguments: Sequence[str], *, timeout: float, answer: OnQuestion | None = None
) -> tuple[int, int]:
    """Run a child to its end.

    Args:
        module: what ``python -m`` runs.
        arguments: its command line.
        timeout: seconds until a hanging child is killed and reported.
        answer: gets what the child asks (a line of JSON on its standard output), gives the answer.

    Returns:
        The exit code (negative: the signal that ended it) and the wall clock just before the
        start, in nanoseconds.

    Raises:
        DemoFailed: the child ended with an error of its own, hung, or asked where nobody answers.
    """
    started_ns = time.time_ns()
    hung = threading.Event()
    with tempfile.TemporaryFile() as errors:
        child = start_child(
            module, arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )

        def stop() -> None:
            hung.set()
            child.kill()

        watchdog = threading.Timer(timeout, stop)
        watchdog.start()
        try:
            _talk(child, answer)
            child.wait()
        finally:
            watchdog.cancel()
            reap(child)
        if hung.is_set():
            raise DemoFailed(f"the demo's process did not end within {timeout:.0f} s: {module}")
        if not ended_well(child.returncode):
            errors.seek(0)
            raise failure(child.returncode, errors.read())
    return child.returncode, started_ns


def _talk(child: subprocess.Popen[bytes], answer: OnQuestion | None) -> None:
    """Answer what a child asks, until it says no more."""
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        for line in child.stdout:
            if answer is None:
                raise DemoFailed(f"the demo's process asked what it should not: {line!r}")
            child.stdin.write(json.dumps(answer(json.loads(line))).encode() + b"\n")
            child.stdin.flush()


def reap(child: subprocess.Popen[bytes]) -> None:
    """Leave no child behind, whatever happened here."""
    if child.poll() is None:
        child.kill()
        child.wait()


def ended_well(returncode: int) -> bool:
    """Whether the process came to its end or was killed as planned."""
    return returncode == 0 or was_killed(returncode)


def was_killed(returncode: int) -> bool:
    """Whether the process was ended by the demo's signal."""
    return returncode == -KILL or (os.name == "nt" and returncode == KILL)


def failure(returncode: int, errors: bytes) -> DemoFailed:
    """The error for a child that failed by itself, with the last lines of what it said."""
    last = "\n".join(errors.decode(errors="replace").strip().splitlines()[-12:])
    return DemoFailed(f"the demo's process ended with exit code {returncode}:\n{last}")
