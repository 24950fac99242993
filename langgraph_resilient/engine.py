"""Opens, owns and closes the database, the codec and the threads; everyone else borrows.

`change` is the one way to write: it encodes under the thread's lock, queues, waits until the
rows are durable, and does it again when another process was faster. `reading` is the one way to
read: every query of a reader sees one state of the database.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from langgraph_resilient import anchor
from langgraph_resilient._aio import Offload
from langgraph_resilient.codec import digest, types
from langgraph_resilient.codec.frame import FrameCodec, Template
from langgraph_resilient.codec.seal import ChecksumSealer, CipherSealer, KeyedSealer, Sealer
from langgraph_resilient.draft import Draft, ThreadState
from langgraph_resilient.errors import (
    ConfigurationError,
    DatabaseCorrupt,
    DatabaseReadOnly,
    DataCorrupt,
    DecryptionFailed,
    SaverClosed,
    StorageError,
    TamperDetected,
)
from langgraph_resilient.options import Options
from langgraph_resilient.process import pid
from langgraph_resilient.runs import Runs
from langgraph_resilient.store import migrate, rows
from langgraph_resilient.store.cache import Cache
from langgraph_resilient.store.committing import Database
from langgraph_resilient.store.failures import Conflict
from langgraph_resilient.store.opening import database, quick_writer
from langgraph_resilient.store.session import Session
from langgraph_resilient.store.target import Target

T = TypeVar("T")

_STATES = 32
_RECENT = 256
_REMEMBERED = 1024
"""Threads that are remembered: those used within so many calls, others while all together hold
no more than so many messages."""
_WAITING = 8
"""Threads for the ledger's work of coroutines."""
_ATTEMPTS = 200
_ADDRESSES = 400_000


class Engine:
    """Everything that has a lifetime. Safe to use from any thread.

    Args:
        target: the database's place.
        options: tunables.
        connection: the user's own connection, if that is to be used.
    """

    def __init__(
        self, target: Target, options: Options, connection: sqlite3.Connection | None = None
    ):
        self.options = options
        self.target = target
        self._connection = connection
        self.policy = types.TypePolicy(
            strict=options.is_strict,
            allowed=frozenset(map(_type_pair, options.allowed_types)),
            renamed=dict(options.renamed_types or {}),
        )
        self.frames = FrameCodec(options.level, options.max_value_bytes)
        self._begin()

    def _begin(self) -> None:
        self.db = database(self.target, self.options, self._connection)
        self.offload = Offload(self.options.readers)
        self.waiting = Offload(_WAITING)
        """For work that others' commits may have to come before; never the same threads."""
        self.lock = threading.RLock()
        """Guards the table of threads and the opening of the database."""
        self.cache = Cache(self.options.cache_bytes)
        self.addresses = Cache(_ADDRESSES)
        self.templates = Cache(1 << 22)
        self.epoch = 0
        self.sealer: Sealer = ChecksumSealer()
        self.key = b""
        self.scope = b""
        """What tells this database from all others."""
        self.runs = Runs()
        self.keep: Callable[[str, str], None] | None = getattr(self, "keep", None)
        """Stores a checkpoint that a snapshot policy holds back: thread, checkpoint id."""
        self.adopt: Callable[[str], None] | None = getattr(self, "adopt", None)
        """Moves a thread over that is only in the tables of ``SqliteSaver``."""
        self.quick = quick_writer(self.db)
        self.ready = False
        self._states: OrderedDict[str, ThreadState] = OrderedDict()
        self._uses = 0
        self._pid = pid()
        self._next_thread = 0
        self._next_ns = 0
        self.anchor: anchor.Anchor | None = None
        self.has_tables = False
        """Whether tables of ours are in the file."""
        self.old_tables = False
        """Whether tables of ``SqliteSaver`` are in the file."""
        self.adopted: set[str] = set()
        """Threads known not to need moving over from them."""

    # --- opening ------------------------------------------------------------------------------

    @property
    def now(self) -> Callable[[], float]:
        """The clock by which leases run out, in seconds since 1970."""
        return self.db.now if self.db.is_file else self._now

    def _now(self) -> float:
        return self.db.now()  # after a fork, of the database that the child has

    @property
    def protected(self) -> bool:
        """Whether seals keep out editors, not only accidents."""
        return self.sealer.mode != "checksum"

    def open(self) -> None:
        """Make the tables if needed and learn the keys. Called by every operation; cheap.

        Raises:
            SaverClosed: the saver was closed.
            StorageError: the file cannot be opened or made.
        """
        if self._pid != pid():
            self._after_fork()
        if self.ready:
            if self.db.closed:
                self.db.connection  # noqa: B018 - raises SaverClosed with its message
            return
        with self.lock:
            if self.ready:
                return
            try:
                self.has_tables = self._load() or self._create()
                with self.db.read() as session:
                    self.old_tables = self.db.is_file and has_old_tables(session)
            except BaseException:
                self.db.disconnect()  # whoever cannot open it will not close it either
                raise
            # Without tables of ours, or of an older schema, in a file that cannot be written: look
            # again next time, somebody else may make them.
            self.ready = self.has_tables and not self.db.missing

    def _after_fork(self) -> None:
        """In a child process nothing of the parent's connections and locks may be used.

        The old connections are leaked on purpose: closing them here would drop the parent's locks
        on the file.
        """
        if self._connection is not None or self.target.single:
            self.db.lock = threading.RLock()
            self.lock = threading.RLock()
            self.offload = Offload(self.options.readers)
            self.waiting = Offload(_WAITING)
            self.quick = quick_writer(self.db)
            self.runs = Runs()
            for state in self._states.values():
                state.lock = threading.RLock()
            self._pid = pid()
            return
        _leaked.append(self.db)
        closed = self.db.closed
        self._begin()
        if closed:
            self.db.close()

    def _load(self, *, older: bool = False) -> bool:
        """Learn the keys of an existing database; False when it has no tables of ours.

        Args:
            older: take one of an older schema as it is; else it counts as not there (yet).
        """
        with self.db.read() as session:
            version = migrate.version_of(session)
            migrate.check(version, self.db.where)
            if version < (1 if older else migrate.newest()):
                return False
            self.db.missing = migrate.missing(session, version, self.db.where)
            self._learn({name: value for name, _, value in session.all("meta_all")})
            self._check_clock(session)
        return True

    def _create(self) -> bool:
        """Make the tables; False where that is not possible but reading is."""

        def work(session: Session) -> None:
            version = migrate.version_of(session)
            if version:  # only who has the keys of a database may change its schema
                self._learn({name: value for name, _, value in session.all("meta_all")})
            if version < migrate.newest():
                migrate.upgrade(session, self.db.where)
                if not version:
                    self._found(session)

        try:
            self.db.write(work)
        except DatabaseReadOnly:
            return self._load(older=True)
        return self._load()

    def _found(self, session: Session) -> None:
        """Give a new database its identity and keys."""
        mode = (
            "cipher"
            if self.options.cipher
            else "keyed"
            if self.options.integrity_key
            else "checksum"
        )
        scope = secrets.token_bytes(16)
        key = secrets.token_bytes(digest.KEY_BYTES)
        if self.options.cipher is not None:
            wrapped = CipherSealer(self.options.cipher, scope).seal(b"key", key)
        elif self.options.integrity_key is not None:
            wrapped = KeyedSealer(self.options.integrity_key[:64], scope).seal(b"key", b"derived")
        else:
            wrapped = key
        for name, value in (("mode", mode.encode()), ("scope", scope), ("key", wrapped)):
            session.run("meta_put", name, 0, value)
        self._learn({"mode": mode.encode(), "scope": scope, "key": wrapped})
        session.run("meta_put", "thread", 0, b"")
        session.run("meta_put", "schema", migrate.newest(), b"")
        self.set_clock(session, 0, 0)

    def _learn(self, meta: dict[str, bytes]) -> None:
        """Take up the keys, refusing a database that is not protected as the options demand."""
        cipher, integrity = self.options.cipher, self.options.integrity_key
        wanted = "cipher" if cipher else "keyed" if integrity else "checksum"
        if not {"mode", "scope", "key"} <= set(meta):
            raise DatabaseCorrupt(
                f"{self.db.where}: its identity is missing from resilient_meta; restore a copy"
            )
        mode, scope, wrapped = meta["mode"].decode("latin-1"), meta["scope"], meta["key"]
        if mode != wanted:
            raise self._mode_error(mode, wanted)
        self.scope = scope
        if cipher is not None:
            self.sealer = CipherSealer(cipher, scope)
            self.key = self.sealer.open(b"key", wrapped)
        elif integrity is not None:
            KeyedSealer(integrity[:64], scope).open(b"key", wrapped)
            self.key = digest.derive(integrity + scope, b"lgr-address")
            self.sealer = KeyedSealer(digest.derive(integrity + scope, b"lgr-seal"), scope)
        else:
            self.key = wrapped
        if self.options.anchor_path is not None:
            self.anchor = anchor.Anchor(self.options.anchor_path, scope, self.key)

    def _mode_error(self, mode: str, wanted: str) -> Exception:
        names = {
            "cipher": "encrypted: pass cipher=Cipher(key)",
            "keyed": "sealed with an integrity key: pass integrity_key=",
            "checksum": "neither encrypted nor sealed: drop cipher= and integrity_key=",
        }
        if mode not in names:
            return DatabaseCorrupt(f"{self.db.where}: its mode {mode!r} is unknown")
        text = f"{self.db.where} is {names[mode]}"
        if mode == "checksum":
            return TamperDetected(
                f"{text}, or export it and migrate it into a new protected file; "
                "if it was protected before, somebody replaced it"
            )
        return DecryptionFailed(text) if mode == "cipher" else ConfigurationError(text)

    def clock(self, session: Session) -> tuple[int, int]:
        """The epoch and the count of sealed commits.

        Raises:
            DatabaseCorrupt: the row is missing or damaged (or what its seal says).
        """
        row = session.one("clock")
        try:
            if row is None:
                raise DataCorrupt("it is missing")
            commits = int.from_bytes(row[1][:8], "big")
            self.sealer.open(clock_place(row[0], commits), row[1][8:])
        except (DataCorrupt, TypeError, AttributeError, OverflowError) as error:
            sealed = isinstance(error, (TamperDetected, DecryptionFailed))
            kind = type(error) if sealed else DatabaseCorrupt
            raise kind(
                f"{self.db.where}: the clock in resilient_meta is damaged: {error}"
            ) from None
        return row[0], commits

    def set_clock(self, session: Session, epoch: int, commits: int) -> None:
        """Move the clock, inside a write transaction."""
        seal = self.sealer.seal(clock_place(epoch, commits), b"")
        session.run("meta_put", "clock", epoch, commits.to_bytes(8, "big") + seal)

    def _check_clock(self, session: Session) -> None:
        self.epoch, commits = self.clock(session)
        if self.anchor is None:
            return
        newest = self.anchor.newest()
        if commits < newest:
            self.check_anchor()  # it may be that a commit came between the two looks
        else:
            self.anchor.check(commits, self.db.where, newest)

    def check_anchor(self) -> None:
        """Refuse a database that is older than its anchor; others may be writing.

        Raises:
            TamperDetected: it is, or the anchor was edited.
        """
        if self.anchor is None:
            return
        newest = self.anchor.newest()
        with self.db.read() as session:
            _, commits = self.clock(session)
        self.anchor.check(commits, self.db.where, newest)

    def close(self) -> None:
        """Finish what was begun and release everything."""
        if self._pid != pid():
            self._after_fork()
        self.quick.close()
        self.db.close()
        self.offload.close()
        self.waiting.close()

    # --- reading ------------------------------------------------------------------------------

    @contextmanager
    def reading(self, *, few: bool = False) -> Iterator[Session]:
        """A session for one consistent look at the database; `few` rows are read without detours."""
        self.open()
        # Taken before the look begins: what it finds must not outlive a deletion meanwhile.
        addresses = self.addresses
        with self.db.glance() if few else self.db.read() as session:
            session.addresses = addresses
            session.bare = not self.has_tables
            if self.anchor is not None:
                self._check_clock(session)
            yield session

    # --- writing ------------------------------------------------------------------------------

    def state(self, thread_id: str) -> ThreadState:
        """What this process knows of a thread; the oldest idle ones are forgotten."""
        with self.lock:  # protects the table of threads
            state = self._states.get(thread_id)
            if state is None:
                self._forget_idle()
                state = self._states[thread_id] = ThreadState(thread_id)
            else:
                self._states.move_to_end(thread_id)
            self._uses += 1
            state.used = self._uses
            state.in_flight += 1
            return state

    def _forget_idle(self) -> None:
        """Bound what threads that were not used for long hold in memory."""
        left = len(self._states)
        held = sum(len(state.memo) for state in self._states.values())
        for key, state in list(self._states.items()):
            recent = self._uses - state.used < _RECENT
            if left <= _STATES and (recent or held <= _REMEMBERED):
                return
            if not state.in_flight:
                del self._states[key]
                left -= 1
                held -= len(state.memo)

    def release(self, state: ThreadState) -> None:
        """A borrower of `state` is done with it."""
        with self.lock:
            state.in_flight -= 1

    def change(self, thread_id: str, build: Callable[[Draft], T], *, adopting: bool = False) -> T:
        """Encode and store a change of one thread; durable on return.

        A thread that is only in the tables of ``SqliteSaver`` is moved over first, whoever writes: a
        new row of ours, if only for a tool call, would hide its checkpoints.

        Args:
            thread_id: the thread.
            build: encodes into a draft and says what to store. It may run several times.
            adopting: whether this is the move itself.

        Raises:
            ResilientError: nothing of the change was stored.
        """
        self.open()
        if self.old_tables and self.adopt is not None and not adopting:
            self.adopt(thread_id)
        deadline = time.monotonic() + max(self.options.busy_timeout, 1.0)
        state = self.state(thread_id)
        try:
            for attempt in range(_ATTEMPTS):
                with state.lock:  # protects what is known of the thread, and the queue's order
                    draft = self._draft(state)
                    try:
                        result = build(draft)
                    except BaseException as error:
                        state.invalidate()  # the memo knows contents that are not stored
                        if isinstance(error, Exception) and self._is_outdated(state):
                            continue
                        raise
                    pending = self.db.enqueue(draft.work, draft.failed)
                    draft.queued()
                try:
                    self.db.finish(pending)
                except Conflict:
                    self.refresh()
                    if time.monotonic() > deadline:
                        break
                    time.sleep(min(0.001 * attempt, 0.05) if attempt > 3 else 0)
                    continue
                draft.publish()
                if self.anchor is not None:
                    self.anchor.note(draft.commits)
                return result
        finally:
            self.release(state)
        raise StorageError(
            f"thread {thread_id!r}: other writers changed it {_ATTEMPTS} times while this change "
            "was tried; nothing was stored, try again"
        )

    def _is_outdated(self, state: ThreadState) -> bool:
        """Whether the number of a thread that is not stored yet went to another thread.

        Then what was found under that number, and led to an error, belongs to the other one.
        """
        if state.exists:
            return False
        with self.db.read() as session:
            row = session.one("thread_next")
        return row is not None and int(row[0]) > state.number

    def _draft(self, state: ThreadState) -> Draft:
        if not state.loaded:
            with self.db.glance() as session:
                state.load(session, self)
        return Draft(self, state)

    def refresh(self) -> None:
        """Look at the clock again; forget what another process may have deleted."""
        with self.db.read() as session:
            row = session.one("clock")
        if row is not None and row[0] != self.epoch:
            self.forget(row[0])

    def forget(self, epoch: int) -> None:
        """Blobs may have been deleted: no address and no reference is believed any more."""
        with self.lock:
            self.epoch = epoch
            self.addresses = Cache(_ADDRESSES)
            for state in self._states.values():
                state.invalidate()

    def reserve(self, session: Session, what: str) -> int:
        """A number for a new thread or namespace that no other thread of this process takes."""
        with self.lock:  # protects the reservations
            row = session.one(f"{what}_next")
            number = int(row[0]) if row else 1
            if what == "thread":
                self._next_thread = number = max(number, self._next_thread + 1)
            else:
                self._next_ns = number = max(number, self._next_ns + 1)
            return number

    def tick(self, session: Session) -> int:
        """Blobs are about to be deleted in this transaction: the new epoch."""
        epoch, commits = self.clock(session)
        self.set_clock(session, epoch + 1, commits + 1)
        return epoch + 1

    def template(self, session: Session, number: int) -> Template:
        """A template by its full number.

        Raises:
            DataCorrupt: it is missing or damaged.
        """
        found: Template | None = self.templates.get(number)
        if found is None:
            row = session.one("template", number)
            if row is None:
                raise DataCorrupt("its template is missing")
            content = self.frames.decode(self.sealer.open(rows.template_place(number), row[1]))
            found = Template(number & 0xFFFFFF, content)
            self.templates.put(number, found, len(content))
        return found


def has_old_tables(session: Session) -> bool:
    """Whether both tables of ``SqliteSaver`` are there."""
    names = session.raw(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name IN ('checkpoints', 'writes')"
    )
    return len(names) == 2


def clock_place(epoch: int, commits: int) -> bytes:
    """Where the seal of the clock belongs."""
    return b"clock" + rows.number_bytes(epoch) + rows.number_bytes(commits)


def _type_pair(item: type | tuple[str, str]) -> tuple[str, str]:
    if isinstance(item, type):
        return item.__module__, item.__qualname__
    module, name = item
    return module, name


_leaked: list[Database] = []

__all__ = ["Engine", "SaverClosed", "clock_place"]
