"""A saver that keeps references and nothing else, and one that also writes down what it was asked.

`Keeper` costs next to nothing: a run on it shows the time that is LangGraph's own. `Recorder`
hands out deep copies, as a database hands out new objects, and notes each call for a replay.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    copy_checkpoint,
)


class Keeper(BaseCheckpointSaver[Any]):
    """Keeps checkpoints and writes by reference: enough to drive a graph, not a real saver.

    One namespace per thread; nothing is filtered; callers share what it hands out.
    """

    def __init__(self) -> None:
        super().__init__()
        self._saved: dict[str, dict[str, CheckpointTuple]] = defaultdict(dict)
        self._writes: dict[tuple[str, str], dict[tuple[str, int], Any]] = defaultdict(dict)

    def _with_writes(self, thread_id: str, found: CheckpointTuple) -> CheckpointTuple:
        writes = self._writes[thread_id, found.checkpoint["id"]]
        return found._replace(pending_writes=[(key[0], *write) for key, write in writes.items()])

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        """Return the checkpoint asked for, or the newest."""
        where = config["configurable"]
        saved = self._saved[where["thread_id"]]
        checkpoint_id = where.get("checkpoint_id") or next(reversed(saved), None)
        found = saved.get(checkpoint_id or "")
        return None if found is None else self._with_writes(where["thread_id"], found)

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        """Keep the checkpoint; its values stay the very objects of the graph."""
        where = config["configurable"]
        kept = copy_checkpoint(checkpoint)
        place = {"thread_id": where["thread_id"], "checkpoint_ns": where["checkpoint_ns"]}
        saved: Any = {"configurable": {**place, "checkpoint_id": kept["id"]}}
        parent: Any = {"configurable": {**place, "checkpoint_id": where.get("checkpoint_id")}}
        self._saved[where["thread_id"]][kept["id"]] = CheckpointTuple(
            saved, kept, metadata, parent if where.get("checkpoint_id") else None
        )
        return saved

    def put_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep a task's writes."""
        where = config["configurable"]
        kept = self._writes[where["thread_id"], where["checkpoint_id"]]
        for index, write in enumerate(writes):
            kept[task_id, WRITES_IDX_MAP.get(write[0], index)] = write

    def list(
        self, config: Any, *, filter: Any = None, before: Any = None, limit: int | None = None
    ) -> Iterator[CheckpointTuple]:
        """Yield a thread's checkpoints, newest first."""
        thread_id = config["configurable"]["thread_id"]
        for found in list(reversed(self._saved[thread_id].values()))[:limit]:
            yield self._with_writes(thread_id, found)


@dataclass(frozen=True, slots=True)
class Event:
    """One call: the method, its arguments, and what a reading call returned."""

    method: str
    args: tuple[Any, ...]
    result: Any = None


class Recorder(Keeper):
    """Notes each call in `events`; gives the channel versions that the replayed saver would."""

    def __init__(self, model: BaseCheckpointSaver[Any]) -> None:
        super().__init__()
        self._model = model
        self._inside = False
        self.events: list[Event] = []

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return the version that the replayed saver would give."""
        return self._model.get_next_version(current, channel)

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        """Return a copy, and note it: a replay compares it with what the saver returns."""
        if self._inside:
            return super().get_tuple(config)
        found = copy.deepcopy(super().get_tuple(config))
        self.events.append(Event("get_tuple", (config,), found))
        return found

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        """Keep the checkpoint and note the call."""
        kept = copy_checkpoint(checkpoint)  # LangGraph goes on changing the versions in place
        self.events.append(Event("put", (config, kept, metadata, dict(new_versions))))
        return super().put(config, checkpoint, metadata, new_versions)

    def put_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep a task's writes and note the call."""
        self.events.append(Event("put_writes", (config, list(writes), task_id, task_path)))
        super().put_writes(config, writes, task_id, task_path)

    def get_delta_channel_history(self, *, config: Any, channels: Sequence[str]) -> Any:
        """Walk the ancestors as the base class does, noted as one call."""
        self._inside = True
        try:
            found = super().get_delta_channel_history(config=config, channels=channels)
        finally:
            self._inside = False
        self.events.append(Event("get_delta_channel_history", (config, tuple(channels)), found))
        return copy.deepcopy(found)
