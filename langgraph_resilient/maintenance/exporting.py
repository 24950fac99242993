"""Writes a plain ``SqliteSaver`` file: nobody is locked in.

The file is made beside its place and moved there when it is whole and on the disk.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_resilient import legacy
from langgraph_resilient.errors import (
    ConfigurationError,
    DataCorrupt,
    StorageError,
    TypeNotAllowed,
)
from langgraph_resilient.maintenance.given import engine_of
from langgraph_resilient.maintenance.inventory import old_threads
from langgraph_resilient.maintenance.plainfile import Plain, Refused
from langgraph_resilient.maintenance.reports import (
    ExportReport,
    OnProgress,
    Progress,
    Skipped,
)
from langgraph_resilient.maintenance.scanning import snapshot
from langgraph_resilient.maintenance.threadexport import ThreadExport
from langgraph_resilient.store import rows
from langgraph_resilient.store.failures import translated
from langgraph_resilient.store.session import Session

if TYPE_CHECKING:
    from langgraph_resilient.saver import ResilientSaver

_BESIDE = ("", "-wal", "-shm", "-journal")
_OLD = (
    ("checkpoints", "checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata"),
    ("writes", "checkpoint_id, task_id, idx, channel, type, value"),
)


def export(
    saver: ResilientSaver,
    target: Path | str,
    *,
    thread_ids: Iterable[str] | None = None,
    progress: OnProgress | None = None,
) -> ExportReport:
    """Write threads into a new file that ``SqliteSaver`` opens, reads and continues.

    Integer versions of channels become ``SqliteSaver``'s text. What pruning folded into a
    checkpoint becomes an ancestor again. The new file is not encrypted: with ``cipher=`` its
    content is readable. Values of a serializer of your own are written with it again. The ledger
    stays behind: ``SqliteSaver`` has no place for it, so what reads the new file knows of no tool
    call.

    Args:
        saver: an open saver; it is only read.
        target: the new file; it must not exist, or be empty.
        thread_ids: only these threads; all by default.
        progress: is told after each thread.

    Returns:
        What was written, which values ``SqliteSaver`` changes, and which threads it cannot hold.

    Raises:
        ConfigurationError: the target is in use, or a thread is not there.
        StorageError: a database could not be read or written; no file is left behind.
    """
    target = Path(target)
    _check_target(target)
    engine = engine_of(saver)
    with snapshot(engine) as session:
        own = [row[0] for row in session.raw("SELECT thread_id FROM resilient_threads ORDER BY 1")]
        known = dict.fromkeys([*own, *old_threads(engine, session)])
    wanted = list(known) if thread_ids is None else list(dict.fromkeys(map(str, thread_ids)))
    for thread_id in wanted:
        if thread_id not in known:
            raise ConfigurationError(
                f"there is no thread {thread_id!r} in {engine.db.where}; nothing was written"
            )
    with _new_file(target) as beside:
        work = _Export(saver, target)
        try:
            work.run(beside, wanted, progress)
        except sqlite3.Error as error:
            raise translated(error, str(target)) from error
        _put_in_place(beside, target)
    return work.report()


class _Export:
    """One run of `export`."""

    def __init__(self, saver: ResilientSaver, target: Path):
        self._engine = engine_of(saver)
        self._reading = saver._reader()
        self._target = target
        self._threads = 0
        self._skipped: list[Skipped] = []
        self._plain: Plain | None = None

    def report(self) -> ExportReport:
        plain = self._plain
        return ExportReport(
            threads=self._threads,
            checkpoints=plain.checkpoints if plain else 0,
            writes=plain.writes if plain else 0,
            bytes=self._target.stat().st_size,
            lossy=list(plain.lossy) if plain else [],
            skipped=self._skipped,
        )

    def run(self, path: Path, thread_ids: list[str], progress: OnProgress | None) -> None:
        """Fill the new file, a transaction a thread."""
        with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
            SqliteSaver(connection).setup()
            connection.isolation_level = None
            connection.execute("PRAGMA synchronous = OFF")  # the whole file is synced at the end
            plain = self._plain = Plain(connection, self._reading.serde)
            for done, thread_id in enumerate(thread_ids):
                if progress is not None:
                    progress(Progress(done, len(thread_ids), "exporting threads"))
                self._thread(plain, thread_id)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if progress is not None:
            progress(Progress(len(thread_ids), len(thread_ids), "exporting threads"))

    def _thread(self, plain: Plain, thread_id: str) -> None:
        """Write one thread, or nothing of it and the reason."""
        engine = self._engine
        plain.begin()
        try:
            with snapshot(engine) as session:
                thread = rows.find_thread(session, engine.sealer, thread_id)
                if thread is not None:
                    ThreadExport(engine, self._reading, session, thread, plain).run()
                elif engine.protected:
                    raise Refused(
                        "it is in the unprotected tables of SqliteSaver; migrate it first"
                    )
                else:
                    _copy_old(engine, session, plain, thread_id)
        except (DataCorrupt, TypeNotAllowed, Refused) as error:
            plain.undo()
            self._skipped.append(Skipped(thread_id, str(error)))
            return
        plain.commit()
        self._threads += 1


def _copy_old(engine: Any, session: Session, plain: Plain, thread_id: str) -> None:
    """Rows of ``SqliteSaver`` stay as they are."""
    if not legacy.present(engine, session):
        return  # deleted meanwhile
    path = ", task_path" if legacy.OldTables(session)._has_task_path else ""
    for table, columns in _OLD:
        names = f"thread_id, checkpoint_ns, {columns}" + (path if table == "writes" else "")
        found = session.connection.cursor()
        found.row_factory = None
        found.execute(f"SELECT {names} FROM {table} WHERE thread_id = ?", (thread_id,))
        plain.copy(table, names, found)


# --- the file ---------------------------------------------------------------------------------


def _check_target(target: Path) -> None:
    """The place must be free, also of what an earlier file of that name left behind."""
    if not target.parent.is_dir():
        raise ConfigurationError(f"cannot export to {target}: there is no folder {target.parent}")
    if target.exists() and (not target.is_file() or target.stat().st_size):
        raise ConfigurationError(
            f"cannot export to {target}: it exists; name a new file, or delete it first"
        )
    for suffix in _BESIDE[1:]:
        left = target.with_name(target.name + suffix)
        if left.exists():
            raise ConfigurationError(
                f"cannot export to {target}: {left.name} of an earlier database lies beside it; "
                "name another file, or delete it first"
            )


@contextmanager
def _new_file(target: Path) -> Iterator[Path]:
    """A new, private file beside the target; whatever is left of it at the end is removed."""
    beside = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    try:
        os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except OSError as error:
        raise ConfigurationError(f"cannot export to {target}: {error.strerror}") from error
    try:
        yield beside
    finally:
        for suffix in _BESIDE:
            with suppress(FileNotFoundError):
                beside.with_name(beside.name + suffix).unlink()


def _put_in_place(beside: Path, target: Path) -> None:
    """Move the whole file to its place, unless somebody else has taken it meanwhile."""
    try:
        _sync(beside)
        if not target.exists():
            try:
                os.link(beside, target)  # unlike rename, it never replaces what is there
            except FileExistsError:
                _check_target(target)
                os.replace(beside, target)
            except OSError:  # a file system without hard links
                os.replace(beside, target)
        else:
            _check_target(target)
            os.replace(beside, target)
        if os.name == "posix":
            _sync(target.parent)
    except OSError as error:
        raise StorageError(f"cannot export to {target}: {error}") from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
