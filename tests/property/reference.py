"""InMemorySaver with the three methods it lacks: what a saver should do, in a few lines.

Order is by checkpoint id, as in InMemorySaver; tests that use it hand out growing ids, because
``ResilientSaver`` orders by what was written last (the one documented difference).
"""

from __future__ import annotations

from collections.abc import Sequence

from langgraph.checkpoint.memory import InMemorySaver


class Reference(InMemorySaver):
    """The model that the saver is compared with."""

    def _drop(self, thread_id: str, ns: str, gone: set[str]) -> None:
        """Drop checkpoints; a child of one of them hangs on the nearest ancestor that is left."""
        items = self.storage[thread_id][ns]
        parents = {checkpoint_id: item[2] for checkpoint_id, item in items.items()}
        for checkpoint_id in gone:
            del items[checkpoint_id]
            self.writes.pop((thread_id, ns, checkpoint_id), None)
        for checkpoint_id, (checkpoint, metadata, parent) in items.items():
            while parent in gone:
                parent = parents[parent]
            items[checkpoint_id] = (checkpoint, metadata, parent)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        for thread_id in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread_id)
                continue
            for ns, items in list(self.storage.get(thread_id, {}).items()):
                self._drop(thread_id, ns, set(sorted(items)[:-1]))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        for thread_id, spaces in list(self.storage.items()):
            for ns, items in list(spaces.items()):
                gone = {
                    checkpoint_id
                    for checkpoint_id, (_, metadata, _) in items.items()
                    if self.serde.loads_typed(metadata).get("run_id") in run_ids
                }
                self._drop(thread_id, ns, gone)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        for ns, items in list(self.storage.get(source_thread_id, {}).items()):
            self.storage[target_thread_id][ns].update(items)
        for (thread_id, *rest), writes in list(self.writes.items()):
            if thread_id == source_thread_id:
                self.writes[(target_thread_id, *rest)] = dict(writes)
        for (thread_id, *rest), blob in list(self.blobs.items()):
            if thread_id == source_thread_id:
                self.blobs[(target_thread_id, *rest)] = blob
