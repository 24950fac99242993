"""What delta channels are rebuilt from: a seed and the writes since, along the parent chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.checkpoint.base import DeltaChannelHistory, PendingWrite

from langgraph_resilient import configs, legacy
from langgraph_resilient.codec import envelope
from langgraph_resilient.codec.keys import pack_name
from langgraph_resilient.engine import Engine
from langgraph_resilient.listing import Reading
from langgraph_resilient.records import CheckpointRow, NamespaceRow, ThreadRow
from langgraph_resilient.restoring import Restorer, unpacked
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Session


def read(
    engine: Engine, reading: Reading, spot: configs.Spot, channels: Sequence[str]
) -> Mapping[str, DeltaChannelHistory]:
    """The history of some channels at a spot: on-path writes, oldest first, and the seed.

    A pruned thread keeps the history of what was cut with the checkpoint that was kept; it is
    read as if the ancestors were still there.
    """
    with engine.reading() as session:
        thread = rows.find_thread(session, engine.sealer, spot.thread_id)
        if thread is None:
            if legacy.exists(engine, session, spot.thread_id):
                return legacy.OldTables(session, reading.serde).get_delta_channel_history(
                    config=configs.config_of(
                        spot.thread_id, spot.checkpoint_ns, spot.checkpoint_id
                    ),
                    channels=channels,
                )
            return {channel: {"writes": []} for channel in channels}
        namespace = rows.find_namespace(session, engine.sealer, thread, spot.checkpoint_ns)
        if namespace is None:
            return {channel: {"writes": []} for channel in channels}
        restorer = reading.restorer(engine, session, thread)
        walk = Walk(engine, session, thread, namespace, restorer, channels)
        target = walk.row(spot.checkpoint_id)
        if target is not None:
            walk.run(target)
        return {channel: walk.restored(channel) for channel in channels}


class Walk:
    """One walk up the parent chain for several channels; each ancestor is opened once.

    Values stay packed until they are asked for, so that folding a history moves bytes only.
    """

    def __init__(
        self,
        engine: Engine,
        session: Session,
        thread: ThreadRow,
        namespace: NamespaceRow,
        restorer: Restorer,
        channels: Sequence[str],
    ):
        self._engine = engine
        self._session = session
        self._thread = thread
        self._namespace = namespace
        self._restorer = restorer
        self._missing = set(channels)
        self.writes: dict[str, list[tuple[str, bytes]]] = {channel: [] for channel in channels}
        """Newest first: (task id, packed value)."""
        self.seeds: dict[str, bytes] = {}

    def row(self, checkpoint_id: str | None) -> CheckpointRow | None:
        """The checkpoint of a name, or the newest one."""
        if checkpoint_id is None:
            return rows.head_of(
                self._session, self._engine.sealer, self._namespace, self._thread.thread_id
            )
        return self._named(pack_name(checkpoint_id))

    def _named(self, id: bytes) -> CheckpointRow | None:
        found = self._session.one("checkpoint_by_id", id, self._namespace.ns)
        if found is None:
            return None
        return rows.opened_checkpoint(
            self._engine.sealer, found, self._namespace.ns, self._thread.thread_id
        )

    def run(self, target: CheckpointRow) -> None:
        """Walk from `target` until every channel has its seed or the root is reached."""
        self._fold(self._restorer.envelope(target))
        seen = {target.id}
        parent = target.parent
        while parent is not None and self._missing and parent not in seen:
            seen.add(parent)
            row = self._named(parent)
            if row is None:
                break
            self._collect(row)
            tree = self._restorer.envelope(row)
            for channel in self._missing & set(tree[envelope.VALUES]):
                self.seeds[channel] = tree[envelope.VALUES][channel]
                self._missing.discard(channel)
            self._fold(tree)
            parent = row.parent

    def _collect(self, row: CheckpointRow) -> None:
        found: list[tuple[str, str, int, str, bytes]] = []
        for stored in rows.writes_of(
            self._session, self._engine.sealer, row.ns, row.id, self._thread.thread_id
        ):
            path, indexes, channels, values = unpacked(self._restorer.content(stored.frame))
            task = rows.readable(stored.task)
            found.extend(
                (path, task, index, channel, value)
                for index, channel, value in zip(indexes, channels, values, strict=True)
                if channel in self._missing
            )
        found.sort(key=lambda item: item[:3], reverse=True)
        for _, task, _, channel, value in found:
            self.writes[channel].append((task, value))

    def _fold(self, tree: list[Any]) -> None:
        """Continue with the history that pruning has folded into a kept checkpoint."""
        for channel, (seed, writes) in (tree[envelope.FOLDED] or {}).items():
            if channel in self._missing:
                self.writes[channel].extend((task, value) for task, value in writes)
                if seed is not None:
                    self.seeds[channel] = seed
                self._missing.discard(channel)

    def folded(self) -> dict[str, Any]:
        """The result as it is kept in an envelope; channels with nothing to tell are left out."""
        return {
            channel: [self.seeds.get(channel), [list(item) for item in writes]]
            for channel, writes in self.writes.items()
            if writes or channel in self.seeds
        }

    def restored(self, channel: str) -> DeltaChannelHistory:
        """One channel's history, values restored."""
        writes: list[PendingWrite] = [
            (task, channel, self._restorer.packed(value))
            for task, value in reversed(self.writes[channel])
        ]
        history: DeltaChannelHistory = {"writes": writes}
        if channel in self.seeds:
            history["seed"] = self._restorer.packed(self.seeds[channel])
        return history
