"""A change of one thread on its way into the database.

A draft is encoded under its thread's lock and queued there, so that the order of the queue is the
order of encoding; what it refers to is always ahead of it. When anything of a thread fails, the
thread's generation moves on and every draft encoded on top of it is done again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from langgraph_resilient.codec import digest
from langgraph_resilient.codec.frame import ARCHIVE, Template
from langgraph_resilient.codec.memo import ListMemo, Memo
from langgraph_resilient.codec.msgpack import Packer
from langgraph_resilient.codec.packed import is_message
from langgraph_resilient.errors import StorageError
from langgraph_resilient.records import BLOB_BITS, ORDINALS, Lifetime, NamespaceRow, ThreadRow
from langgraph_resilient.restoring import ENTRY_BYTES, Kept
from langgraph_resilient.store import rows
from langgraph_resilient.store.failures import Conflict
from langgraph_resilient.store.session import Session

if TYPE_CHECKING:
    from langgraph_resilient.engine import Engine

_TEMPLATE_PAUSE = 8
"""Frames between two templates of a family."""
_SETTLING = 4
_SETTLING_PAUSE = 2
"""The first templates of a family follow faster: the kinds of steps of a graph are soon seen."""
_TEMPLATE_BYTES = 1000
"""How much of the templates before it a new one repeats."""
_CONTENT = "b"
_SAMPLE_BYTES = 24 << 10
_SAMPLE_AFTER = 1 << 17
"""When a thread has stored this many bytes, its first `_SAMPLE_BYTES` are tried as a template."""


def _is_poor(raw: int, frame: int, made: int, since: int) -> bool:
    """Whether a template helped so little, for content of `raw` bytes, that another one pays off.

    Args:
        raw: bytes of the content.
        frame: bytes of its frame.
        made: templates of the family so far.
        since: frames since the newest of them.
    """
    if made < _SETTLING and since >= _SETTLING_PAUSE and frame > 16 + raw // 6:
        return True
    return since >= _TEMPLATE_PAUSE and raw > 160 and frame * 5 > raw * 2


class Sample:
    """Finds out whether the first contents of a thread help to compress the later ones.

    They are tried on as many bytes as they have; a template must save a tenth, or it would cost
    more than it saves.
    """

    def __init__(self) -> None:
        self.trial: Template | None = None
        self._content = bytearray()
        self._seen = 0
        self._after = _SAMPLE_AFTER
        self._tried = self._plain = self._against = 0

    @property
    def content(self) -> bytes:
        """The contents that are to be the template."""
        return bytes(self._content)

    def compare(self, raw: int, plain: int, against: int) -> None:
        """A content of `raw` bytes took so many bytes without and with the trial."""
        self._tried += raw
        self._plain += plain
        self._against += against

    def collect(self, raw: bytes) -> bool:
        """Take a content into account; True when the trial has shown its worth."""
        if self.trial is None:
            self._seen += len(raw)
            if len(self._content) < _SAMPLE_BYTES:
                self._content += raw[: _SAMPLE_BYTES - len(self._content)]
            if self._seen >= self._after:
                self.trial = Template(0, self.content)
            return False
        if self._tried < _SAMPLE_BYTES:
            return False
        if self._against * 10 <= self._plain * 9:
            return True
        after = self._after * 2
        self.__init__()  # type: ignore[misc]
        self._after = after
        return False


class Namespace:
    """A namespace as this process knows it.

    `row` changes only inside the writer's transaction, when a checkpoint is really stored.
    """

    __slots__ = ("exists", "head_id", "row")

    def __init__(self, row: NamespaceRow, exists: bool, head_id: bytes | None):
        self.row = row
        self.exists = exists
        self.head_id = head_id


class ThreadState:
    """What this process knows of a thread. Its `lock` protects all of it but `generation`.

    `in_flight` and `used` (who works with it, and when somebody last began to) are the engine's.
    """

    def __init__(self, thread_id: str):
        self.thread_id = thread_id
        self.lock = threading.RLock()
        self.in_flight = 0
        self.used = 0
        self.generation = 0
        self.memo = Memo()
        self.learned = -1
        """The generation in which the thread was last looked at."""
        self._primed: tuple[int, dict[tuple[int, str], ListMemo]] | None = None

    @property
    def loaded(self) -> bool:
        """Whether what is known can still be believed."""
        return self.learned == self.generation

    def invalidate(self) -> None:
        """Something of the thread failed, or blobs may have been deleted."""
        self.generation += 1

    def prime(self, epoch: int, lists: dict[tuple[int, str], ListMemo]) -> None:
        """Remember lists of messages as a reader was given them in an epoch."""
        if self.loaded:
            self.memo.lists.update(lists)
        else:
            self._primed = (epoch, lists)

    def load(self, session: Session, engine: Engine) -> None:
        """Learn the thread anew."""
        generation = self.generation
        self.memo.clear()
        if self._primed is not None and self._primed[0] == engine.epoch:
            self.memo.lists.update(self._primed[1])
        self._primed = None
        self.fresh: dict[bytes, int] = {}
        self.shared: set[int] = set()
        self.namespaces: dict[str, Namespace] = {}
        self.templates: dict[str, Template] = {}
        self.made: dict[str, int] = {}
        self.since: dict[str, int] = {}
        self.sample = Sample()
        found = rows.find_thread(session, engine.sealer, self.thread_id)
        self.exists = found is not None
        if found is None:
            found = ThreadRow(
                number=engine.reserve(session, "thread"), thread_id=self.thread_id, spent=0
            )
        self.number = found.number
        self.base = found.number << BLOB_BITS
        self.name = digest.address(self.thread_id.encode("utf-8", "surrogatepass"), engine.key)
        bounds = rows.call_bounds(found.number)
        self.open_model_calls = session.one("journal_open", *bounds) is not None
        self.deleted_before = session.one("tombstones", self.name) is not None
        first, last = rows.blob_bounds(self.number)
        newest = session.one("blob_last", *rows.part_bounds(first, last))
        self.next_blob = max((newest[0] - first) if newest else 0, found.spent) + 1
        self.next_template = 1
        latest: dict[str, int] = {}
        for number, kind in session.all("template_kinds", first, last):
            self.next_template = number - first + 1
            latest[kind] = number
            self.made[kind] = self.made.get(kind, 0) + 1
        for kind, number in latest.items():
            if kind != ARCHIVE:
                self.templates[kind] = engine.template(session, number)
        self.learned = generation


class Draft:
    """Collects what a change stores; also the `Place` that gives out references."""

    def __init__(self, engine: Engine, state: ThreadState):
        self.engine = engine
        self.state = state
        self.base = state.base
        self.commits = 0
        # What was read, not what is so by now: when something failed meanwhile, this fails, too.
        self._generation = state.learned
        self._epoch = engine.epoch
        self._addresses = engine.addresses
        self._new: dict[bytes, int] = {}
        self._blobs: list[tuple[int, bytes, bytes]] = []
        self._messages: dict[int, Kept] = {}
        self._message_bytes = 0
        self._shares: list[int] = []
        self._templates: list[tuple[int, str, bytes]] = []
        self._namespaces: list[Namespace] = []
        self._steps: list[Callable[[Session], None]] = []
        self._makes_thread = not state.exists
        self._lifetime = _default_lifetime(engine) if self._makes_thread else None

    # --- encoding -----------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch in which the references of this draft are true."""
        return self._epoch

    def packer(self) -> Packer:
        """Packs values of this thread into this draft."""
        options = self.engine.options
        return Packer(
            self,
            self.state.memo,
            leaf_bytes=options.leaf_bytes,
            message_leaf_bytes=options.message_leaf_bytes,
            max_depth=options.max_depth,
            secret_key=self.engine.key,
        )

    def __call__(self, raw: bytes, references: bool) -> int:
        """Store a content once; its reference. Equal contents of all threads share one blob."""
        engine, state = self.engine, self.state
        # Contents with references are only equal within one thread: references are relative.
        scope = state.base.to_bytes(8, "big") if references else b""
        at = digest.address(scope + raw, engine.key)
        known = self._new.get(at) or state.fresh.get(at) or self._addresses.get(at)
        if known is not None:
            if known >> BLOB_BITS != state.number and known not in state.shared:
                self._shares.append(known)
            return int(known)
        if state.next_blob >= ORDINALS:
            raise StorageError(
                f"thread {state.thread_id!r} holds {ORDINALS} distinct values, the most a thread "
                "can; copy its latest state to a new thread"
            )
        blob = state.base + state.next_blob
        state.next_blob += 1
        frame = self._content_frame(raw, references)
        self._blobs.append((blob, at, engine.sealer.seal(rows.blob_place(blob), frame)))
        if is_message(raw):
            self._messages[blob] = Kept(raw, state.base, references)
            self._message_bytes += len(raw) + ENTRY_BYTES
        self._new[at] = blob
        return blob

    def _content_frame(self, raw: bytes, references: bool) -> bytes:
        """A content's frame; where a long thread's contents resemble its first ones, against them."""
        encode = self.engine.frames.encode
        template = self.state.templates.get(_CONTENT)
        if len(raw) > _SAMPLE_BYTES:
            return encode(raw, references=references)
        if template is not None:
            return encode(raw, references=references, template=template)
        frame = encode(raw, references=references)
        sample = self.state.sample
        if sample.trial is not None:
            sample.compare(len(raw), len(frame), len(encode(raw, template=sample.trial)))
        if sample.collect(raw):
            self._template(_CONTENT, sample.content)
        return frame

    def _template(self, family: str, raw: bytes) -> Template:
        """Make a template; frames of this draft may already use it."""
        engine, state = self.engine, self.state
        template = Template(state.next_template, raw)
        state.next_template += 1
        number = state.base + template.number
        stored = engine.sealer.seal(rows.template_place(number), engine.frames.encode(raw))
        self._templates.append((number, family, stored))
        state.templates[family] = template
        return template

    def share(self, blobs: Iterable[int]) -> None:
        """The thread uses these contents, whoever made them."""
        for blob in blobs:
            if blob >> BLOB_BITS != self.state.number and blob not in self.state.shared:
                self._shares.append(blob)

    def frame(self, raw: bytes, family: str) -> bytes:
        """A frame compressed against the thread's template of a family; renews the template."""
        engine, state = self.engine, self.state
        template = state.templates.get(family)
        frame = engine.frames.encode(raw, references=True, template=template)
        since = state.since.get(family, 0)
        state.since[family] = since + 1
        if len(raw) > 48 and (
            template is None or _is_poor(len(raw), len(frame), state.made[family], since)
        ):
            known = template.content if template is not None else b""
            template = self._template(family, (known + raw)[-max(_TEMPLATE_BYTES, len(raw)) :])
            state.made[family] = state.made.get(family, 0) + 1
            state.since[family] = 0
            frame = engine.frames.encode(raw, references=True, template=template)
        return frame

    def namespace(self, checkpoint_ns: str) -> Namespace:
        """A namespace of the thread; a new one is made with this draft."""
        found = self.state.namespaces.get(checkpoint_ns)
        if found is None:
            with self.engine.db.glance() as session:
                found = self._find(session, checkpoint_ns)
            self.state.namespaces[checkpoint_ns] = found
        if not found.exists and found not in self._namespaces:
            self._namespaces.append(found)
        return found

    def _find(self, session: Session, checkpoint_ns: str) -> Namespace:
        engine, state = self.engine, self.state
        row = None
        if state.exists:
            thread = ThreadRow(number=state.number, thread_id=state.thread_id, spent=0)
            row = rows.find_namespace(session, engine.sealer, thread, checkpoint_ns)
        if row is not None:
            head = session.one("checkpoint_by_seq", row.head, row.ns) if row.checkpoints else None
            return Namespace(row, True, head[1] if head else None)
        row = NamespaceRow(
            ns=engine.reserve(session, "namespace"),
            thread=state.number,
            checkpoint_ns=checkpoint_ns,
            head=0,
            checkpoints=0,
            tally=bytes(rows.TALLY_BYTES) if engine.protected else b"",
        )
        return Namespace(row, False, None)

    def live(self, lifetime: Lifetime | None) -> None:
        """Say how long the thread lives; makes it if it is not there."""
        self._lifetime = lifetime

        def step(session: Session) -> None:
            row = rows.find_thread(session, self.engine.sealer, self.state.thread_id)
            if row is None:
                raise Conflict("the thread was deleted")
            rows.put_lifetime(session, self.engine.sealer, row, lifetime)

        self.then(step)

    def count_skipped(self, checkpoint_ns: str, skipped: int) -> None:
        """Note with the checkpoint that is stored now how many were skipped before it."""
        ns, sealer = self.namespace(checkpoint_ns).row.ns, self.engine.sealer
        self.then(lambda session: rows.count_snapshots(session, sealer, ns, skipped=skipped))

    def then(self, step: Callable[[Session], None]) -> None:
        """Do something in the transaction, after the contents are in."""
        self._steps.append(step)

    def queued(self) -> None:
        """The draft is in the queue: later drafts of the thread may build on it."""
        if not self._steps:
            return
        state = self.state
        state.fresh.update(self._new)
        state.shared.update(self._shares)
        state.exists = state.exists or self._makes_thread
        for namespace in self._namespaces:
            namespace.exists = True

    # --- storing, inside the writer's transaction ---------------------------------------------

    def work(self, session: Session) -> None:
        """Store everything. Runs in the thread that commits.

        Raises:
            Conflict: what the draft was built on is no longer so.
        """
        state, sealer = self.state, self.engine.sealer
        if self._generation != state.generation:
            raise Conflict("an earlier change of the thread failed")
        if not self._steps:
            return
        if self._makes_thread:
            row = ThreadRow(
                number=state.number, thread_id=state.thread_id, spent=0, lifetime=self._lifetime
            )
            seal = rows.sealed_thread(sealer, row)
            name_hash = digest.name_hash(state.thread_id)
            session.run("thread_insert", state.number, state.thread_id, name_hash, seal)
            session.run("thread_taken", state.number)
        for namespace in self._namespaces:
            new = namespace.row
            session.run(
                "namespace_insert",
                new.ns,
                new.thread,
                new.checkpoint_ns,
                new.head,
                new.checkpoints,
                new.tally,
                rows.sealed_namespace(sealer, new),
            )
        for template in self._templates:
            session.run("template_insert", *template)
        self._store_blobs(session)
        for blob in self._shares:
            session.run("share_insert", state.number, blob)
        for step in self._steps:
            step(session)
        if self.engine.anchor is not None:
            self._count(session)

    def _store_blobs(self, session: Session) -> None:
        if not self._blobs:
            return
        try:
            # All at once: on a server that is one message.
            parts = (part for blob in self._blobs for part in rows.parts_of(*blob))
            session.many("blob_insert", parts)
        except Conflict:
            # Somebody stored one of these contents first: learn where, then do the draft again.
            # Those of this draft are found, too, but they are about to be rolled back.
            for number, at, _ in self._blobs:
                found = session.one("blob_by_digest", at)
                if found is not None and found[0] != number:
                    self._addresses.put(at, found[0])
            raise

    def _count(self, session: Session) -> None:
        epoch, self.commits = self.engine.clock(session)
        self.commits += 1
        self.engine.set_clock(session, epoch, self.commits)

    def failed(self) -> None:
        """The draft was not stored; neither may be what was encoded after it.

        Work later in the same transaction may have read its contents; their numbers will be given
        out again, so nothing of them may stay in a cache.
        """
        for blob, _, _ in self._blobs:
            self.engine.cache.discard(blob)
        for number, _, _ in self._templates:
            self.engine.templates.discard(number)
        # One that failed because an earlier one did must not make those fail that were begun since:
        # two writers could go on like that for ever.
        if self._generation == self.state.generation:
            self.state.invalidate()

    def publish(self) -> None:
        """The draft is durable: other threads may share its contents, readers may have them."""
        if self._messages:
            self.engine.cache.update(self._messages, self._message_bytes)
        self._steps.clear()  # they refer to the draft, too: nobody else would break the circle
        addresses = self._addresses
        fresh = self.state.fresh
        for at, blob in self._new.items():
            addresses.put(at, blob)
            fresh.pop(at, None)


def _default_lifetime(engine: Engine) -> Lifetime | None:
    ttl = engine.options.ttl_milliseconds
    return None if ttl is None else Lifetime(ttl=ttl, since=int(time.time() * 1000))
