"""Reads everything and says what is not as it was written. Never stops at the first finding.

Works thread by thread in sessions of a tenth of a second, so that writers' logs can be folded
meanwhile. A finding is only reported when a second look, in a session of its own, agrees.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from langgraph_resilient.engine import Engine
from langgraph_resilient.errors import (
    DatabaseCorrupt,
    DataCorrupt,
    SchemaTooNew,
    StorageError,
)
from langgraph_resilient.maintenance.given import engine_of
from langgraph_resilient.maintenance.inventory import old_threads
from langgraph_resilient.maintenance.reports import (
    Finding,
    OnProgress,
    Progress,
    VerifyReport,
)
from langgraph_resilient.maintenance.scanning import snapshot
from langgraph_resilient.maintenance.threadcheck import ThreadCheck
from langgraph_resilient.store import migrate, queries
from langgraph_resilient.store.session import Session

if TYPE_CHECKING:
    from langgraph_resilient.saver import ResilientSaver

_LEASE = 0.1
"""Seconds after which a session is given back."""
_ADVICE = re.compile(r"; run `langgraph-resilient verify`[^;]*$")
_CREATED = re.compile(r"CREATE (?:UNIQUE )?(?:TABLE|INDEX) (\w+)")
_MESSAGES = 100_000
Work = Callable[[Session], None]


def verify(saver: ResilientSaver, progress: OnProgress | None = None) -> VerifyReport:
    """Check every row, content and reference of the database.

    Args:
        saver: an open saver, with the keys if the database is protected.
        progress: is told how many rows were checked, and of how many.

    Returns:
        Every finding; damage never raises.

    Raises:
        StorageError: the database cannot be reached at all (locked, gone, schema too new).
        ConfigurationError: the saver was given the wrong kind of key.
    """
    check = Check(saver, progress)
    try:
        check.run()
    finally:
        check.release()
    return VerifyReport(
        ok=not check.findings, checked=dict(check.counts), findings=list(check.findings)
    )


def is_damage(error: Exception) -> bool:
    """Whether an error tells of damage, and not of a database that is locked, gone or full."""
    return (
        not isinstance(error, StorageError)
        or isinstance(error, DataCorrupt)
        or (
            type(error) is StorageError  # SQLite's complaint about a table that is not as it was
        )
    )


class Check:
    """One run of `verify`: sessions, findings, counts."""

    def __init__(self, saver: ResilientSaver, progress: OnProgress | None):
        self.engine: Engine = engine_of(saver)
        self.reading = saver._reader()
        self.counts: Counter[str] = Counter()
        self.findings: dict[Finding, None] = {}
        self.epoch = -1
        self.seen_epoch = object()
        """Another object whenever contents may have been deleted since."""
        self._progress = progress
        self._total: int | None = None
        self._done = 0
        self.noted: dict[Finding, None] = {}
        self._open: AbstractContextManager[Session] | None = None
        self._session: Session | None = None
        self._until = 0.0
        self.second_look = False
        """Whether a finding is being looked at again; then nothing is counted."""

    # --- sessions -----------------------------------------------------------------------------

    def session(self) -> Session:
        """A session that is not older than the lease."""
        if self._session is None or time.monotonic() > self._until:
            self.release()
            self._open = snapshot(self.engine)
            self._session = self._open.__enter__()
            self._until = time.monotonic() + _LEASE
            row = self._session.one("clock")
            epoch = row[0] if row is not None and type(row[0]) is int else -1
            if epoch != self.epoch or epoch < 0:
                self.epoch = epoch
                self.seen_epoch = object()
        return self._session

    def release(self, error: BaseException | None = None) -> None:
        """Give the session back; a broken one is closed."""
        opened, self._open, self._session = self._open, None, None
        if opened is not None:
            try:
                opened.__exit__(type(error) if error else None, error, None)
            except Exception as damage:
                if damage is not error and not is_damage(damage):
                    raise

    def look(self, kind: str, work: Work, **where: Any) -> None:
        """Do a piece of work; report what it finds twice."""
        first = self._look(kind, work, where)
        if first:
            self.release()
            self.second_look = True
            try:
                second = self._look(kind, work, where)
            finally:
                self.second_look = False
            self.findings.update((item, None) for item in first if item in second)

    def _look(self, kind: str, work: Work, where: dict[str, Any]) -> dict[Finding, None]:
        self.noted = {}
        try:
            work(self.session())
        except Exception as error:
            if not is_damage(error):
                raise
            self.found(kind, error, **where)
            self.release(error)
        return self.noted

    # --- findings -----------------------------------------------------------------------------

    def found(self, kind: str, what: str | Exception, **where: Any) -> None:
        """Note a finding."""
        if isinstance(what, DataCorrupt):
            for name in ("thread_id", "checkpoint_id", "channel"):
                where[name] = getattr(what, name) or where.get(name)
        message = _ADVICE.sub("", str(what))
        if isinstance(what, Exception) and not isinstance(what, (DataCorrupt, StorageError)):
            message = f"{type(what).__name__}: {message}"
        self.noted[Finding(kind, message, **where)] = None

    def guarded(self, kind: str, work: Callable[[], None], **where: Any) -> None:
        """Do one row's work; whatever is wrong with the row is a finding."""
        try:
            work()
        except Exception as error:
            if not is_damage(error):
                raise
            self.found(kind, error, **where)

    def count(self, what: str, number: int = 1) -> None:
        """Count what was checked."""
        if not self.second_look:
            self.counts[what] += number

    def step(self, rows: int, what: str) -> None:
        """Tell how far the work has come."""
        if not self.second_look:
            self._done += rows
            if self._progress is not None:
                done = self._done if self._total is None else min(self._done, self._total)
                self._progress(Progress(done, self._total, what))

    # --- the work -----------------------------------------------------------------------------

    def run(self) -> None:
        """Check the file, then every thread, then what belongs to none."""
        try:
            self.engine.open()
        except SchemaTooNew:
            raise
        except DataCorrupt as error:
            self.findings[Finding("file", _ADVICE.sub("", str(error)))] = None
            return
        self.engine.templates.clear()  # what this process remembers says nothing of the file
        self.look("file", self._file)
        self.look("schema", self._schema)
        self.look("clock", self._clock)
        self.look("file", self._plan)
        numbers: list[int] = []
        self.look("thread", lambda session: numbers.extend(_numbers(session)))
        known = dict.fromkeys(numbers)
        for number in known:
            ThreadCheck(self, number).run()
        ThreadCheck(self, 0).calls_only()
        self.look("orphan", self._orphans)
        ownerless: dict[int, None] = {}
        self.look("blob", lambda session: ownerless.update(_ownerless(session)))
        for number in ownerless:
            ThreadCheck(self, number).contents_only()
        if self._total is not None and self._progress is not None:
            self._progress(Progress(self._total, self._total, "done"))

    def _plan(self, session: Session) -> None:
        called = sum(row[1] for name in ("sum_calls", "sum_chunks") for row in session.all(name))
        called += sum(row[2] for row in session.all("sum_journal"))
        self._total = sum(session.all("table_counts")[0]) + called
        if not self.second_look:
            try:
                own = {row[0] for row in session.raw("SELECT thread_id FROM resilient_threads")}
            except DatabaseCorrupt:
                return  # the check of each thread tells
            old = [name for name in old_threads(self.engine, session) if name not in own]
            self.counts["old_threads"] = len(old)

    def _file(self, session: Session) -> None:
        for message in session.complaints(_MESSAGES):
            self.found("file", message)

    def _schema(self, session: Session) -> None:
        version = migrate.version_of(session)
        oldest = 1 if self.engine.db.missing else migrate.newest()
        if not oldest <= version <= migrate.newest():
            self.found(
                "schema", f"the schema version is {version} and should be {migrate.newest()}"
            )
        wanted = {
            name
            for number, script in queries.migrations()
            if number <= version
            for name in _CREATED.findall(script)
        }
        there = session.relations()
        for name in sorted(wanted - there):
            self.found("schema", f"the table or index {name} is missing")
        for name in sorted(there - wanted):
            self.found("schema", f"the table or index {name} is left over from something else")

    def _clock(self, session: Session) -> None:
        engine = self.engine
        facts = {row[0]: row[1:] for row in session.all("meta_all")}
        for name in sorted({"mode", "scope", "key", "schema", "thread", "clock"} - set(facts)):
            self.found("clock", f"the row {name!r} of resilient_meta is missing")
        engine.clock(session)
        (given,) = facts.get("thread", (None, b""))[:1]
        highest = session.raw("SELECT max(thread) FROM resilient_threads")[0][0]
        if type(given) is not int or (highest is not None and given < highest):
            self.found("clock", f"the count of threads is {given}; the highest one is {highest}")
        try:
            engine.check_anchor()
        except DataCorrupt as error:
            self.found("rollback", error)

    def _orphans(self, session: Session) -> None:
        for name, text in (
            ("orphan_namespaces", "namespace {} belongs to thread {}, which is missing"),
            ("orphan_checkpoints", "namespace {} is missing and has {} checkpoints"),
            ("orphan_writes", "namespace {} is missing and has pending writes of {} tasks"),
            ("orphan_snapshots", "namespace {} is missing and has counts of its checkpoints"),
            ("orphan_templates", "thread {} is missing and has {} templates"),
            ("orphan_shares", "thread {} is missing and uses {} contents of other threads"),
            ("orphan_calls", "thread {} is missing and has {} tool calls"),
            ("orphan_leases", "thread {} is missing and has an owner"),
            ("orphan_journal", "thread {} is missing and has {} model calls"),
            ("orphan_chunks", "model call {} is missing and has {} blocks of a stream"),
        ):
            try:
                for row in session.all(name):
                    self.found("orphan", text.format(*row))
            except DatabaseCorrupt as error:
                self.found("orphan", error)


def _numbers(session: Session) -> list[int]:
    return [row[0] for row in session.all("thread_numbers")]


def _ownerless(session: Session) -> dict[int, None]:
    """Numbers of threads that have contents and no row."""
    found: dict[int, None] = {}
    after = -(1 << 62)
    while (row := session.one("parts_key", after, (1 << 63) - 1)) is not None:
        number = row[0] >> 32
        if session.one("thread_by_number", number) is None:
            found[number] = None
        after = ((number + 1) << 32) - 1
    return found
