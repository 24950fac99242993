"""Record what LangGraph asks of a saver, and ask it again in one thread, without LangGraph.

In a live run a `put` waits for the interpreter while nodes run; a replay shows the saver's own
work. Each turn is recorded once per saver (its own channel versions) and replayed at once.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import process_time
from typing import Any

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    copy_checkpoint,
)

from benchmarks.faces import Face, Timings


@dataclass(frozen=True, slots=True)
class Event:
    """One call: the method, its arguments, and what a reading call returned."""

    method: str
    args: tuple[Any, ...]
    result: Any = None


class Recorder(BaseCheckpointSaver[Any]):
    """Keeps everything by reference and hands out deep copies, as a database hands out new objects.

    Serves one thread id at a time in one process: enough to drive a graph, not a real saver.
    """

    def __init__(self, model: BaseCheckpointSaver[Any]) -> None:
        super().__init__()
        self._model = model
        self._saved: dict[str, dict[str, CheckpointTuple]] = defaultdict(dict)
        self._writes: dict[tuple[str, str], dict[tuple[str, int], Any]] = defaultdict(dict)
        self._inside = False
        self.events: list[Event] = []

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return the version that the replayed saver would give."""
        return self._model.get_next_version(current, channel)

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        """Return a copy of the checkpoint asked for, or of the newest."""
        where = config["configurable"]
        saved = self._saved[where["thread_id"]]
        checkpoint_id = where.get("checkpoint_id") or next(reversed(saved), None)
        found = saved.get(checkpoint_id or "")
        if found is not None:
            writes = self._writes[where["thread_id"], found.checkpoint["id"]]
            pending = [(key[0], *write) for key, write in writes.items()]
            found = found._replace(pending_writes=pending)
        if self._inside:
            return found
        found = copy.deepcopy(found)
        self.events.append(Event("get_tuple", (config,), found))
        return found

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        """Keep the checkpoint; its values stay the very objects of the graph."""
        where = config["configurable"]
        kept = copy_checkpoint(checkpoint)
        self.events.append(Event("put", (config, kept, metadata, dict(new_versions))))
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
        self.events.append(Event("put_writes", (config, list(writes), task_id, task_path)))
        kept = self._writes[where["thread_id"], where["checkpoint_id"]]
        for index, write in enumerate(writes):
            kept[task_id, WRITES_IDX_MAP.get(write[0], index)] = write

    def list(self, *args: Any, **kwargs: Any) -> Iterator[CheckpointTuple]:
        """Refuse: a replayed graph lists nothing."""
        raise NotImplementedError("the recorder keeps no order to list by")

    def get_delta_channel_history(self, *, config: Any, channels: Sequence[str]) -> Any:
        """Walk the ancestors as the base class does, recorded as one call."""
        self._inside = True
        try:
            found = super().get_delta_channel_history(config=config, channels=channels)
        finally:
            self._inside = False
        self.events.append(Event("get_delta_channel_history", (config, tuple(channels)), found))
        return copy.deepcopy(found)


def _seed(memo: dict[int, Any], recorded: Any, live: Any) -> None:
    """Let later puts carry the objects that the saver itself has just read, as a real run does."""
    if isinstance(recorded, list) and isinstance(live, list) and len(recorded) == len(live):
        memo.update({id(old): new for old, new in zip(recorded, live, strict=True)})
    elif recorded is not None and type(recorded) is type(live):
        memo[id(recorded)] = live


def _read(face: Face, event: Event, memo: dict[int, Any]) -> float:
    if event.method == "get_delta_channel_history":
        config, channels = event.args
        _, seconds = face.call(event.method, config=config, channels=channels)
        return seconds
    found, seconds = face.call(event.method, *event.args)
    values: Mapping[str, Any] = event.result.checkpoint["channel_values"] if event.result else {}
    for channel, recorded in values.items():
        _seed(memo, recorded, found.checkpoint["channel_values"].get(channel))
    return seconds


def replay(face: Face, events: Sequence[Event], timings: Timings) -> None:
    """Make the recorded calls of one turn on the face's saver and add their times.

    Arguments are copied anew, sharing one memo: within a turn the same message is the same
    object in each put, and nothing of it is the object of another turn. `…_cpu` is the time on the
    processor: without waiting for the disk or for other programs.
    """
    memo: dict[int, Any] = {}
    for event in events:
        if event.result is not None or event.method.startswith("get"):
            timings[event.method].append(_read(face, event, memo))
            continue
        config, *rest = event.args
        args = copy.deepcopy(rest, memo)
        busy = process_time()
        _, seconds = face.call(event.method, config, *args)
        timings[event.method].append(seconds)
        timings[event.method + "_cpu"].append(process_time() - busy)
