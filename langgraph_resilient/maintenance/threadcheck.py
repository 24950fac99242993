"""The part of `verify` that looks at one thread: its rows, contents, references and shares."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from msgpack import ExtType

from langgraph_resilient.codec import envelope
from langgraph_resilient.codec.digest import name_hash
from langgraph_resilient.codec.frame import has_references
from langgraph_resilient.codec.keys import unpack_name
from langgraph_resilient.codec.packed import REF, REFS, references_of, unpack_tree
from langgraph_resilient.errors import DatabaseCorrupt, DataCorrupt, StorageError
from langgraph_resilient.maintenance.callcheck import CallCheck
from langgraph_resilient.maintenance.journalcheck import JournalCheck
from langgraph_resilient.maintenance.restorecheck import RestoreCheck
from langgraph_resilient.maintenance.scanning import Content, contents, page
from langgraph_resilient.records import BLOB_BITS, NamespaceRow
from langgraph_resilient.restoring import address_of, decoded, unpacked
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Row, Session

if TYPE_CHECKING:
    from langgraph_resilient.maintenance.verification import Check

_CHUNK = 200


class ThreadCheck:
    """Checks what belongs to one number of a thread.

    Args:
        check: collects findings.
        number: the thread's.
    """

    def __init__(self, check: Check, number: int):
        self._check = check
        self._engine = check.engine
        self._number = number
        self._base = number << BLOB_BITS
        self._first, self._last = rows.blob_bounds(number)
        self._thread_id: str | None = None
        self._values = RestoreCheck(check, number)
        self._epoch: object = None
        self._known: set[int] = set()
        self._own: set[int] = set()
        self._damaged: set[int] = set()
        self._named: set[int] = set()
        """What checkpoints, writes, tool calls and model calls name directly."""
        self._inner: dict[int, list[int]] = {}
        """What contents name."""
        self._done: set[int] = set()
        """Hashes of packed values that were restored already."""

    # --- order --------------------------------------------------------------------------------

    def run(self) -> None:
        """Everything of a thread that has a row."""
        check, number = self._check, self._number
        check.look("thread", self._row)
        where = {"thread_id": self._thread_id}
        self._contents()
        check.look("template", self._templates, **where)
        spaces: dict[int, None] = {}
        check.look(
            "namespace",
            lambda s: spaces.update((row[0], None) for row in s.all("namespace_numbers", number)),
            **where,
        )
        for ns in spaces:
            self._namespace(ns)
        self._calls()
        JournalCheck(check, number, self._thread_id, self._value).run(self._fresh)
        check.look("share", self._shared, **where)
        self._count_unreachable()
        check.count("threads")
        check.step(1, "checking threads")

    def calls_only(self) -> None:
        """The tool calls that belong to no thread: their business key holds for all."""
        self._calls()

    def _calls(self) -> None:
        CallCheck(self._check, self._number, self._thread_id, self._value).run(self._fresh)

    def contents_only(self) -> None:
        """What is left of a thread that was deleted: contents that others use."""
        self._contents(ownerless=True)

    # --- the thread's own rows ----------------------------------------------------------------

    def _row(self, session: Session) -> None:
        row = session.one("thread_by_number", self._number)
        if row is None:
            return  # deleted meanwhile
        thread_id, spent, seal = row
        if isinstance(thread_id, str):
            self._thread_id = thread_id
        found = rows.opened_thread(
            self._engine.sealer, self._number, thread_id, spent, seal
        ).thread_id
        by_name = session.one("thread_by_id", found)
        if by_name is None or by_name[0] != self._number:
            self._found("thread", f"thread {found!r}: its name does not lead to its row")
        stored = session.one("thread_hash", self._number)
        by_hash = session.all("thread_by_hash", name_hash(found))
        if stored != (name_hash(found),) or self._number not in [row[0] for row in by_hash]:
            self._found("thread", f"thread {found!r}: the second way does not lead to its row")

    def _found(self, kind: str, what: str | Exception, **where: Any) -> None:
        self._check.found(kind, what, **{"thread_id": self._thread_id, **where})

    def _fresh(self) -> None:
        """Believe nothing of earlier sessions when contents may have been deleted since."""
        check = self._check
        if check.seen_epoch is not self._epoch or check.second_look:
            self._epoch = check.seen_epoch
            self._known.clear()

    def _templates(self, session: Session) -> None:
        for (number,) in session.all("template_numbers", self._first, self._last):
            self._check.guarded(
                "template", partial(self._template, session, number), thread_id=self._thread_id
            )
            self._check.count("templates")

    def _template(self, session: Session, number: int) -> None:
        row = session.one("template", number)
        if row is None:
            return
        try:
            frame = self._engine.sealer.open(rows.template_place(number), row[1])
            self._engine.frames.decode(frame)
        except (DataCorrupt, TypeError, AttributeError) as error:
            self._found("template", f"template {number} is damaged: {error}")

    # --- contents -----------------------------------------------------------------------------

    def _contents(self, ownerless: bool = False) -> None:
        low, high = rows.part_bounds(self._first, self._last)
        after: tuple[Any, ...] = (low - 1,)
        done = False
        while not done:
            step: list[Any] = []

            def work(
                session: Session, start: tuple[Any, ...] = after, out: list[Any] = step
            ) -> None:
                self._fresh()
                found, page = contents(session, start, high)
                for (blob,), error in page.unreadable:
                    self._damaged.add(blob)
                    self._found("blob", f"value {blob} cannot be read: {error}")
                for content in found:
                    self._content(session, content, ownerless)
                out[:] = [page.after, page.done, len(found)]

            self._check.look("blob", work, thread_id=self._thread_id)
            if not step:
                break  # not even the keys can be walked; that is a finding already
            after, done = step[0], step[1]
            self._check.step(step[2], "checking values")

    def _content(self, session: Session, content: Content, ownerless: bool) -> None:
        blob = content.blob
        self._own.add(blob)
        self._check.count("blobs")
        try:
            if content.stored is None:
                raise DataCorrupt("its parts do not fit each other")
            frame = self._engine.sealer.open(rows.blob_place(blob), content.stored)
            raw = decoded(self._engine, session, frame, self._number)
            named = has_references(frame)
            if content.address is None:
                self._check.count("unaddressed_blobs")
            elif address_of(self._engine, blob, raw, named) != content.address:
                raise DataCorrupt("its address is not that of its content")
            if named:
                self._inner[blob] = references_of(raw, self._base)
                self._resolve(session, self._inner[blob], f"value {blob}")
            self._values.content(session, blob, raw, named)
        except Exception as error:
            if isinstance(error, StorageError):
                raise
            self._damaged.add(blob)
            self._found("blob", f"value {blob} is damaged: {_text(error)}")
            return
        self._known.add(blob)
        if ownerless and session.one("shares_any", blob) is None:
            self._found("orphan", f"value {blob} belongs to no thread, and none uses it")

    def _resolve(self, session: Session, references: Iterable[int], who: str, **where: Any) -> None:
        """Whether contents are there, and noted as shared when another thread made them."""
        for blob in set(references) - self._known:
            if session.one("blob_exists", blob << rows.PART_BITS) is None:
                self._found("blob", f"{who} names value {blob}, which is missing", **where)
                continue
            if blob >> BLOB_BITS != self._number:
                self._foreign(session, blob, who, **where)
            self._known.add(blob)

    def _foreign(self, session: Session, blob: int, who: str, **where: Any) -> None:
        """A content of another thread, with what it names itself."""
        if self._thread_id is None:
            return
        waiting, seen = [blob], {blob}
        while waiting:
            other = waiting.pop()
            if (
                other >> BLOB_BITS != self._number
                and session.one("share_exists", self._number, other) is None
            ):
                text = f"{who} uses value {other} of another thread, which is not noted"
                self._found("share", text, **where)
            inner = self._names(session, other)
            self._inner[other] = inner
            waiting.extend(item for item in inner if item not in seen)
            seen.update(inner)

    def _names(self, session: Session, blob: int) -> list[int]:
        """What a content of another thread names; a damaged one is reported with its own thread."""
        try:
            for number, _, stored in rows.read_blobs(session, blob, blob):
                frame = self._engine.sealer.open(rows.blob_place(number), stored)
                if has_references(frame):
                    raw = decoded(self._engine, session, frame, number >> BLOB_BITS)
                    return references_of(raw, number >> BLOB_BITS << BLOB_BITS)
        except (DataCorrupt, TypeError, AttributeError):
            self._damaged.add(blob)
        return []

    # --- namespaces ---------------------------------------------------------------------------

    def _namespace(self, ns: int) -> None:
        check = self._check
        where = {"thread_id": self._thread_id}
        check.look("namespace", lambda session: self._space(session, ns), **where)
        check.count("namespaces")
        places: dict[int, None] = {}
        check.look(
            "checkpoint",
            lambda s: places.update((row[0], None) for row in s.all("checkpoint_numbers", ns)),
            **where,
        )
        every = list(places)
        for start in range(0, len(every), _CHUNK):
            chunk = every[start : start + _CHUNK]
            check.look("checkpoint", partial(self._checkpoints, ns, chunk), **where)
            check.step(len(chunk), "checking checkpoints")
        self._writes(ns)

    def _space(self, session: Session, ns: int) -> None:
        row = session.one("namespace_by_number", ns)
        if row is None:
            return
        opened = rows.opened_namespace(self._engine.sealer, (ns, *row), self._thread_id or "")
        found = session.one("namespace", self._number, opened.checkpoint_ns)
        name = f"namespace {opened.checkpoint_ns!r}"
        if found is None or found[0] != ns:
            self._found("namespace", f"{name}: its name does not lead to its row")
        self._head(session, opened, name)
        counts = session.one("snapshots", ns)
        if counts is not None:
            rows.opened_counts(self._engine.sealer, (ns, *counts))
        if self._engine.protected:
            rows.check_tally(session, opened, self._thread_id or "", self._engine.key)

    def _head(self, session: Session, row: NamespaceRow, name: str) -> None:
        counted = session.one("checkpoints_count", row.ns, row.ns)
        newest = session.one("checkpoint_last", row.ns)
        count = counted[0] if counted else 0
        if count != row.checkpoints:
            text = f"{name}: {count} checkpoints are there, {row.checkpoints} were written"
            self._found("namespace", text)
        if row.checkpoints and (newest is None or newest[0] != row.head):
            self._found("namespace", f"{name}: its newest checkpoint is not the one on record")

    def _checkpoints(self, ns: int, places: list[int], session: Session) -> None:
        self._fresh()
        for seq in places:
            try:
                row = session.one("checkpoint_by_seq", seq, ns)
            except DatabaseCorrupt as error:
                self._found("checkpoint", f"checkpoint at place {seq} cannot be read: {error}")
                continue
            if row is not None:
                self._check.guarded(
                    "checkpoint",
                    partial(self._checkpoint, session, ns, row),
                    thread_id=self._thread_id,
                    checkpoint_id=rows.readable(row[1]),
                )
                self._check.count("checkpoints")

    def _checkpoint(self, session: Session, ns: int, row: Row) -> None:
        opened = rows.opened_checkpoint(self._engine.sealer, row, ns, self._thread_id or "")
        id = unpack_name(opened.id)
        if opened.parent is not None:
            unpack_name(opened.parent)
        by_id = session.one("checkpoint_exists", opened.id, ns)
        if by_id is None or by_id[0] != opened.seq:
            raise DataCorrupt("its name does not lead to its row")
        tree = unpacked(decoded(self._engine, session, opened.frame, self._number))
        if len(tree) != envelope.PARTS:
            raise DataCorrupt(f"it has {len(tree)} parts and should have {envelope.PARTS}")
        where = {"checkpoint_id": id}
        values = dict(tree[envelope.VALUES])
        for channel, packed in values.items():
            self._value(session, packed, f"channel {channel!r}", channel=channel, **where)
        for index in (envelope.METADATA, envelope.EXTRA):
            self._value(session, tree[index], "its metadata", **where)
        if tree[0] & envelope.WALKED:
            for index in envelope.WALKABLE:
                self._value(session, tree[index], "its versions", **where)
        for channel, (seed, writes) in (tree[envelope.FOLDED] or {}).items():
            kept = [value for _, value in writes] + ([] if seed is None else [seed])
            for packed in kept:
                self._value(
                    session, packed, f"kept history of {channel!r}", channel=channel, **where
                )
        envelope.checkpoint_from([*tree[:8], {}], id, values)

    # --- writes -------------------------------------------------------------------------------

    def _writes(self, ns: int) -> None:
        after: tuple[Any, ...] = (b"", b"")
        done = False
        while not done:
            step: list[Any] = []

            def work(
                session: Session, start: tuple[Any, ...] = after, out: list[Any] = step
            ) -> None:
                self._fresh()
                found = page(session, "writes", start, (ns,))
                for key, error in found.unreadable:
                    text = f"the writes of task {rows.readable(key[1])} cannot be read: {error}"
                    self._found("writes", text, checkpoint_id=rows.readable(key[0]))
                for row in found.rows:
                    self._check.guarded(
                        "writes",
                        partial(self._written, session, ns, row),
                        thread_id=self._thread_id,
                        checkpoint_id=rows.readable(row[0]),
                    )
                    self._check.count("writes")
                out[:] = [found.after, found.done, len(found.rows)]

            self._check.look("writes", work, thread_id=self._thread_id)
            if not step:
                break  # not even the keys can be walked; that is a finding already
            after, done = step[0], step[1]
            self._check.step(step[2], "checking writes")

    def _written(self, session: Session, ns: int, row: Row) -> None:
        opened = rows.opened_writes(self._engine.sealer, row, ns, self._thread_id or "")
        checkpoint_id = unpack_name(opened.checkpoint)
        task = unpack_name(opened.task)
        raw = decoded(self._engine, session, opened.frame, self._number)
        path, indexes, channels, values = unpacked(raw)
        if not isinstance(path, str):
            raise DataCorrupt(f"task {task}: its path is no text")
        for index, channel, packed in zip(indexes, channels, values, strict=True):
            if type(index) is not int or type(channel) is not str:
                raise DataCorrupt(f"task {task}: an index or a channel is of a wrong kind")
            self._value(
                session,
                packed,
                f"write of task {task} to {channel!r}",
                kind="writes",
                channel=channel,
                checkpoint_id=checkpoint_id,
            )

    # --- values -------------------------------------------------------------------------------

    def _value(
        self, session: Session, packed: Any, who: str, *, kind: str = "checkpoint", **where: Any
    ) -> None:
        """A packed value: what it names is there, and it can be restored. Each distinct one once."""
        known = hash(packed)
        if known in self._done and not self._check.second_look:
            return
        found = len(self._check.noted)
        try:
            references = references_of(packed, self._base)
            self._named.update(references)
            self._resolve(session, references, who, **where)
            for blob in sorted(self._damaged.intersection(references)):
                self._found(kind, f"{who} needs value {blob}, which is damaged", **where)
            if len(self._check.noted) == found and not _is_reference(packed):
                self._values.value(session, packed)
        except Exception as error:
            if isinstance(error, StorageError):
                raise
            self._found(kind, f"{who} is damaged: {_text(error)}", **where)
        if len(self._check.noted) == found:
            self._done.add(known)

    # --- shares -------------------------------------------------------------------------------

    def _shared(self, session: Session) -> None:
        for (blob,) in session.all("shares_of_thread", self._number):
            self._check.count("shares")
            if blob >> BLOB_BITS == self._number:
                self._found("share", f"value {blob} is noted as another thread's and is its own")
            elif session.one("blob_exists", blob << rows.PART_BITS) is None:
                self._found("share", f"value {blob} of another thread is in use and missing")

    def _count_unreachable(self) -> None:
        """Contents that nothing names: no damage, only space."""
        reached: set[int] = set()
        waiting = list(self._named)
        self._check.look(
            "share",
            lambda s: waiting.extend(
                r[0] for r in s.all("shares_of_blobs", self._first, self._last)
            ),
            thread_id=self._thread_id,
        )
        while waiting:
            blob = waiting.pop()
            if blob not in reached:
                reached.add(blob)
                waiting.extend(self._inner.get(blob, ()))
        self._check.count("unreachable_blobs", len(self._own - reached))


def _is_reference(packed: bytes) -> bool:
    """Whether a value is nothing but names of contents, which are restored by themselves."""
    tree = unpack_tree(packed)
    return type(tree) is ExtType and tree.code in (REF, REFS)


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, DataCorrupt) else f"{type(error).__name__}: {error}"
