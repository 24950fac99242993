"""Whether a saver gives back what was put: the last state of each thread, and earlier checkpoints.

`Witness` notes what a run puts; `disagreements` asks a saver opened anew. Values must be equal and
of the same types, all the way down.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import BaseMessage

from benchmarks.faces import Face, States
from benchmarks.workloads import Turn

SAMPLE = 12
"""At least so many earlier checkpoints are read back, where there are as many; never twice as many."""

_INPUT = "__start__"
"""A channel left out: LangGraph gives its messages their ids while a background put is reading."""


@dataclass(slots=True, kw_only=True)
class Seen:
    """What was put. Pickled from the process that wrote to the one that reads."""

    states: States = field(default_factory=dict)
    checkpoints: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    """Where, and the pickled values: LangGraph goes on changing messages that were put."""


class Witness:
    """Notes puts of a saver, evenly spread over the run, and how much it holds after each."""

    def __init__(
        self, saver: Any, held: Callable[[], int] | None, *, asynchronous: bool = False
    ) -> None:
        self.seen = Seen()
        self.sizes: list[int] = []
        self.puts = 0
        self._every = 1
        self._held = held
        name = "aput" if asynchronous else "put"
        setattr(saver, name, self._wrapped(getattr(saver, name), asynchronous))
        self._note_size()

    def _note_size(self) -> None:
        if self._held is not None:
            self.sizes.append(self._held())

    def _note(self, place: Mapping[str, Any], checkpoint: Mapping[str, Any]) -> None:
        self.puts += 1
        if (self.puts - 1) % self._every:
            return
        names = ("thread_id", "checkpoint_ns")
        where = {name: str(place.get(name, "")) for name in names}
        where["checkpoint_id"] = checkpoint["id"]
        values = {**checkpoint["channel_values"]}
        values.pop(_INPUT, None)
        kept = self.seen.checkpoints
        kept.append((where, pickle.dumps(values)))
        if len(kept) == 2 * SAMPLE:
            del kept[1::2]
            self._every *= 2

    def _wrapped(self, method: Callable[..., Any], asynchronous: bool) -> Callable[..., Any]:
        async def aput(config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
            self._note(config["configurable"], checkpoint)
            result = await method(config, checkpoint, metadata, new_versions)
            self._note_size()
            return result

        def put(config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
            self._note(config["configurable"], checkpoint)
            result = method(config, checkpoint, metadata, new_versions)
            self._note_size()
            return result

        return aput if asynchronous else put


def growth(sizes: Sequence[int]) -> list[int]:
    """Return the new bytes of each put that stored something."""
    steps = [after - before for before, after in itertools.pairwise(sizes)]
    return [step for step in steps if step > 0]


def difference(put: Any, found: Any, path: str = "state") -> str:
    """Return where two values differ first; empty if they are equal and of the same types."""
    if type(put) is not type(found):
        return f"{path}: {type(put).__name__} came back as {type(found).__name__}"
    if isinstance(put, BaseMessage):
        return difference(vars(put), vars(found), path)
    if isinstance(put, dict):
        if put.keys() != found.keys():
            return f"{path}: keys differ: {sorted(map(str, put.keys() ^ found.keys()))[:3]}"
        pairs: Iterable[tuple[Any, Any, Any]] = ((key, put[key], found[key]) for key in put)
    elif isinstance(put, (list, tuple)):
        if len(put) != len(found):
            return f"{path}: {len(put)} items came back as {len(found)}"
        pairs = ((index, *pair) for index, pair in enumerate(zip(put, found, strict=True)))
    else:
        return "" if put == found else f"{path}: the value differs"
    differences = (difference(old, new, f"{path}[{key}]") for key, old, new in pairs)
    return next(filter(None, differences), "")


def disagreements(seen: Seen, face: Face, graph: Any, *, sparse: bool, delta: bool) -> list[str]:
    """Return what an opened saver gives back differently from what was put.

    Args:
        seen: what was put.
        face: drives the opened saver.
        graph: a graph compiled with it.
        sparse: whether earlier checkpoints may be missing.
        delta: whether a channel is rebuilt from writes, and is not in every checkpoint.
    """
    found = []
    for thread_id, put in seen.states.items():
        values = face.values(graph, Turn(thread_id=thread_id, inputs={}).config)
        found.append(difference(put, values, f"thread {thread_id}"))
    for where, pickled in seen.checkpoints:
        put = pickle.loads(pickled)
        stored, _ = face.call("get_tuple", {"configurable": where})
        if stored is None:
            found.append("" if sparse else f"checkpoint {where['checkpoint_id']} is missing")
            continue
        values = {**stored.checkpoint["channel_values"]}
        values.pop(_INPUT, None)
        if delta:
            values = {name: values[name] for name in values.keys() & put.keys()}
            put = {name: put[name] for name in values}
        found.append(difference(put, values, f"checkpoint {where['checkpoint_id']}"))
    return [text for text in found if text]
