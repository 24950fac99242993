"""Encrypts what is stored again with the cipher's current key, so that an old one can go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from langgraph_resilient.calls import call_place, lease_place
from langgraph_resilient.codec.cipher import ENCRYPTED, KEY_ID_BYTES
from langgraph_resilient.codec.seal import CipherSealer
from langgraph_resilient.engine import Engine
from langgraph_resilient.errors import ConfigurationError
from langgraph_resilient.maintenance.given import engine_of
from langgraph_resilient.maintenance.reports import OnProgress, Progress
from langgraph_resilient.modelcalls import chunk_place, journal_place
from langgraph_resilient.records import NamespaceRow, ThreadRow
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Session

if TYPE_CHECKING:
    from langgraph_resilient.saver import ResilientSaver


@dataclass(frozen=True, slots=True, kw_only=True)
class RekeyReport:
    """What `rekey` did.

    Attributes:
        threads: threads that were looked at.
        frames: stored values that were encrypted again.
    """

    threads: int
    frames: int


def rekey(saver: ResilientSaver, progress: OnProgress | None = None) -> RekeyReport:
    """Encrypt everything with the current key of ``cipher=Cipher(new, old)``.

    One transaction a thread, beside running agents; interrupted, it goes on where it was. When it
    has returned, the old key is no longer needed.

    Raises:
        ConfigurationError: the database has no cipher.
        DataCorrupt: something cannot be decrypted; what was done before stays done.
    """
    engine = engine_of(saver)
    engine.open()
    if not isinstance(engine.sealer, CipherSealer):
        raise ConfigurationError(f"{engine.db.where} is not encrypted; there is no key to change")
    with engine.reading() as session:
        known = session.all("threads_all")
    frames = engine.db.write(lambda session: _identity(engine, session))
    everywhere = _Rekey(engine, ThreadRow(number=0, thread_id="", spent=0))
    engine.db.write(everywhere.calls)
    frames += everywhere.frames
    for done, (number, thread_id, spent, seal) in enumerate(known, 1):
        thread = rows.opened_thread(engine.sealer, number, thread_id, spent, seal)
        work = _Rekey(engine, thread)
        engine.forget(engine.db.write(work.run))
        frames += work.frames
        if progress is not None:
            progress(Progress(done, len(known), "encrypting threads again"))
    return RekeyReport(threads=len(known), frames=frames)


def _identity(engine: Engine, session: Session) -> int:
    for name, number, value in session.all("meta_all"):
        if name == "key":
            plain = engine.sealer.open(b"key", value)
            session.run("meta_put", name, number, engine.sealer.seal(b"key", plain))
    engine.set_clock(session, *engine.clock(session))
    return 2


class _Rekey:
    """One thread, inside one write transaction."""

    def __init__(self, engine: Engine, thread: ThreadRow):
        self._engine = engine
        self._thread = thread
        assert isinstance(engine.sealer, CipherSealer)
        self._sealer = engine.sealer
        self._current = bytes((ENCRYPTED,)) + engine.sealer.cipher.key_id
        self.frames = 0

    def run(self, session: Session) -> int:
        """Do it; the new epoch."""
        self.frames = 0
        found = session.one("thread_by_number", self._thread.number)
        if found is None:
            return self._engine.epoch
        thread = rows.opened_thread(self._sealer, self._thread.number, *found)
        rows.put_lifetime(session, self._sealer, thread, thread.lifetime)
        for row in session.all("namespaces", thread.number):
            namespace = rows.opened_namespace(
                self._sealer, (row[0], thread.number, *row[1:]), thread.thread_id
            )
            self._namespace(session, namespace)
        first, last = rows.blob_bounds(thread.number)
        for number, _, stored in session.all("templates_of", first, last):
            self._again(
                rows.template_place(number),
                stored,
                lambda sealed, n=number: session.run("template_replace", sealed, n),  # type: ignore[misc]
            )
        for blob, at, stored in rows.read_blobs(session, first, last):
            self._again(
                rows.blob_place(blob),
                stored,
                lambda sealed, b=blob, a=at: self._blob(session, b, a, sealed),  # type: ignore[misc]
            )
        self.calls(session)
        self._model_calls(session)
        return self._engine.tick(session)

    def calls(self, session: Session) -> None:
        """The tool calls, and who runs them."""
        number = self._thread.number
        for call, key, state, version, stored in session.all("calls_in", *rows.call_bounds(number)):
            self._again(
                call_place(number, key, state, version),
                stored,
                lambda sealed, c=call: session.run("call_seal", sealed, c),  # type: ignore[misc]
            )
        lease = session.one("lease", number)
        if lease is not None:
            self._again(
                lease_place(number, *lease[:2]),
                lease[2],
                lambda sealed: session.run("lease_seal", sealed, number),
            )

    def _model_calls(self, session: Session) -> None:
        bounds = rows.call_bounds(self._thread.number)
        for call, *columns, stored in session.all("journal_in", *bounds):
            self._again(
                journal_place(call, *columns),
                stored,
                lambda sealed, c=call: session.run("journal_seal", sealed, c),  # type: ignore[misc]
            )
        for call, first, stored in session.all("chunks_in", *bounds):
            self._again(
                chunk_place(call, first),
                stored,
                lambda sealed, c=call, f=first: session.run("chunk_seal", sealed, c, f),  # type: ignore[misc]
            )

    def _again(self, place: bytes, stored: bytes, store: Callable[[bytes], object]) -> None:
        if stored[: 1 + KEY_ID_BYTES] != self._current:
            store(self._sealer.seal(place, self._sealer.open(place, stored)))
            self.frames += 1

    def _blob(self, session: Session, blob: int, address: bytes, sealed: bytes) -> None:
        rows.delete_blob(session, blob)
        session.many("blob_insert", rows.parts_of(blob, address, sealed))

    def _namespace(self, session: Session, namespace: NamespaceRow) -> None:
        ns = namespace.ns
        for seq, id, parent, stored in session.all("checkpoints_page", ns, 1 << 62, -1):
            self._again(
                rows.checkpoint_place(ns, id, parent),
                stored,
                lambda sealed, s=seq: session.run("checkpoint_seal", sealed, s),  # type: ignore[misc]
            )
        for checkpoint, task, stored in session.all("writes_all", ns):
            self._again(
                rows.writes_place(ns, checkpoint, task),
                stored,
                lambda sealed, c=checkpoint, t=task: session.run(  # type: ignore[misc]
                    "writes_replace", sealed, ns, c, t
                ),
            )
        counts = session.one("snapshots", ns)
        if counts is not None:
            opened = rows.opened_counts(self._sealer, (ns, *counts))
            rows.put_counts(session, self._sealer, ns, opened)
        tally, _ = rows.tally_of(session, ns, self._engine.key)
        new = NamespaceRow(
            ns=ns,
            thread=namespace.thread,
            checkpoint_ns=namespace.checkpoint_ns,
            head=namespace.head,
            checkpoints=namespace.checkpoints,
            tally=tally,
        )
        session.run(
            "namespace_set",
            new.head,
            new.checkpoints,
            new.tally,
            rows.sealed_namespace(self._sealer, new),
            ns,
        )
