"""One thread of ours as rows of a ``SqliteSaver`` file."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from langgraph_resilient.codec import envelope
from langgraph_resilient.codec.keys import unpack_name
from langgraph_resilient.engine import Engine
from langgraph_resilient.listing import Reading
from langgraph_resilient.maintenance.plainfile import Plain
from langgraph_resilient.maintenance.reports import Lossy
from langgraph_resilient.maintenance.scanning import page
from langgraph_resilient.records import CheckpointRow, NamespaceRow, Snapshot, ThreadRow, Write
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Session


class ThreadExport:
    """Writes a thread's checkpoints in their order, then writes that came before theirs.

    Args:
        engine: lends codec and keys.
        reading: how values are restored.
        session: one state of the database.
        thread: the thread.
        plain: where the rows go.
    """

    def __init__(
        self, engine: Engine, reading: Reading, session: Session, thread: ThreadRow, plain: Plain
    ):
        self._engine = engine
        self._session = session
        self._thread = thread
        self._plain = plain
        self._restorer = reading.restorer(engine, session, thread)
        self._names: set[str] = set()
        self._made: dict[tuple[str, int], str] = {}
        self._head_id = ""

    def run(self) -> None:
        """Write all namespaces.

        Raises:
            Refused: ``SqliteSaver`` cannot store a value.
            DataCorrupt: the thread is damaged.
        """
        session, thread = self._session, self._thread
        for (ns,) in session.all("namespace_numbers", thread.number):
            row = session.one("namespace_by_number", ns)
            if row is not None:
                self._namespace(
                    rows.opened_namespace(self._engine.sealer, (ns, *row), thread.thread_id)
                )

    def _namespace(self, namespace: NamespaceRow) -> None:
        session = self._session
        head = rows.head_of(session, self._engine.sealer, namespace, self._thread.thread_id)
        self._head_id = "" if head is None else unpack_name(head.id)
        keys = session.all("checkpoints_keys", namespace.ns)
        self._names = {unpack_name(row[1]) for row in keys}
        self._made = {}
        for seq, *_ in keys:
            row = session.one("checkpoint_by_seq", seq, namespace.ns)
            if row is not None:
                self._checkpoint(
                    rows.opened_checkpoint(
                        self._engine.sealer, row, namespace.ns, self._thread.thread_id
                    ),
                    namespace,
                )
        if head is not None and max(self._names) != self._head_id:
            self._last_again(head, namespace)
        self._early_writes(namespace)

    def _spot(self, namespace: NamespaceRow, checkpoint_id: str) -> tuple[str, str, str]:
        return self._thread.thread_id, namespace.checkpoint_ns, checkpoint_id

    def _checkpoint(
        self, row: CheckpointRow, namespace: NamespaceRow, checkpoint_id: str | None = None
    ) -> None:
        """Write a checkpoint, under another id if one is given."""
        tree = self._restorer.envelope(row)
        found = self._restorer.snapshot(row, namespace.checkpoint_ns, tree)
        self._restorer.series.clear()
        parent_id = found.parent_id
        if tree[envelope.FOLDED]:
            parent_id = self._ancestor(tree[envelope.FOLDED], found, namespace)
        spot = self._spot(namespace, checkpoint_id or found.checkpoint_id)
        known = {channel: hash(packed) for channel, packed in tree[envelope.VALUES].items()}
        checkpoint = {**found.checkpoint, "id": spot[2]}
        self._plain.checkpoint(spot, parent_id, checkpoint, found.metadata, known)
        for write in found.writes:
            self._plain.write(spot, write)

    # --- what SqliteSaver has no place for ------------------------------------------------------

    def _ancestor(self, folded: dict[str, Any], found: Snapshot, namespace: NamespaceRow) -> str:
        """The history of delta channels as a checkpoint again; its id.

        Its values are what the channels began with, its pending writes what came since. Where it
        can it takes the name of the parent that was pruned.
        """
        parent = found.parent_id
        key = (parent or "", hash(repr(sorted(folded.items()))))
        if key in self._made:
            return self._made[key]
        own = parent if parent and parent not in self._names and parent < self._head_id else None
        id = self._made[key] = own or self._early_id()
        self._names.add(id)
        seeds = {
            channel: self._restorer.packed(seed)
            for channel, (seed, _) in folded.items()
            if seed is not None
        }
        versions = found.checkpoint.get("channel_versions") or {}
        checkpoint = {
            "v": found.checkpoint.get("v"),
            "ts": found.checkpoint.get("ts"),
            "id": id,
            "channel_values": seeds,
            "channel_versions": {name: versions[name] for name in folded if name in versions},
            "versions_seen": {},
            "updated_channels": None,
        }
        step = found.metadata.get("step")
        metadata = {
            "source": "update",
            "step": step - 1 if isinstance(step, int) else -1,
            "parents": {},
        }
        spot = self._spot(namespace, id)
        self._plain.checkpoint(spot, None, checkpoint, metadata, {})
        self._old_writes(spot, folded)
        return id

    def _old_writes(self, spot: tuple[str, str, str], folded: dict[str, Any]) -> None:
        """Writes under one checkpoint are ordered by task, so each gets a task of its own.

        (Tasks of a kept history may share an id: an input has the same one in every run.)
        """
        order = 0
        for channel, (_, writes) in folded.items():
            for _, packed in reversed(writes):
                order += 1
                write = Write(
                    task_id=f"{order:08x}-0000-6000-8000-000000000000",
                    task_path="",
                    index=0,
                    channel=channel,
                    value=self._restorer.packed(packed),
                )
                self._plain.write(spot, write)

    def _early_id(self) -> str:
        """An id that sorts before every real one."""
        number = 0
        while (id := f"00000000-0000-6000-8000-{number:012x}") in self._names:
            number += 1
        return id

    def _last_again(self, head: CheckpointRow, namespace: NamespaceRow) -> None:
        """``SqliteSaver`` takes the greatest id for the newest: write the newest under one."""
        greatest = max(self._names)
        try:
            id = str(UUID(int=UUID(greatest).int + 1))
        except ValueError:
            id = greatest + "00"
        self._names.add(id)
        self._checkpoint(head, namespace, id)
        lossy = Lossy(self._thread.thread_id, "", "checkpoints whose ids do not rise")
        self._plain.lossy[lossy] = None

    def _early_writes(self, namespace: NamespaceRow) -> None:
        """Writes whose checkpoint is not there (yet)."""
        after: tuple[Any, ...] = (b"", b"")
        done = False
        while not done:
            found = page(self._session, "writes", after, (namespace.ns,))
            for _, error in found.unreadable:
                raise error
            for row in found.rows:
                checkpoint_id = unpack_name(row[0])
                if checkpoint_id not in self._names:
                    opened = rows.opened_writes(
                        self._engine.sealer, row, namespace.ns, self._thread.thread_id
                    )
                    for write in self._restorer.writes_in(opened):
                        self._plain.write(self._spot(namespace, checkpoint_id), write)
            after, done = found.after, found.done
