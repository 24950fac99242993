"""Ask a saver again, in one thread and without LangGraph, what a `Recorder` has noted.

In a live run a `put` waits for the interpreter while nodes run; a replay shows the saver's own
work. Each turn is recorded once per saver (its own channel versions) and replayed at once.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from time import process_time
from typing import Any

from benchmarks.faces import Face, Timings
from benchmarks.keeper import Event


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
