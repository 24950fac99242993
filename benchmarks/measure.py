"""One trial: one saver (or several, replayed in turn) on one workload, in a process of its own.

    python -m benchmarks.measure '{"kind": "run", "workload": "chat", "savers": ["ours"], …}'

prints one JSON object of figures per saver: seconds, bytes, counts. A process of its own makes
peaks of memory comparable and keeps one saver's garbage out of the next one's time.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.faces import Face, Timings, open_face, timing
from benchmarks.keeper import Recorder
from benchmarks.payloads import bytes_on_disk
from benchmarks.replay import replay
from benchmarks.savers import OURS, plugin
from benchmarks.workloads import SCALES, WORKLOADS, Turn, Workload

Figures = dict[str, float]
ENDS = 50  # calls at either end of a run that are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What to run. `kind`: run, together, replay or floor."""

    kind: str
    workload: str
    savers: tuple[str, ...]
    synchronous: str = "FULL"
    scale: str = "full"
    ours: str = OURS
    directory: str | None = None

    def to_json(self) -> str:
        """Return the form that the child process takes as its argument."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, content: str) -> Trial:
        """Return the trial that `to_json` wrote."""
        fields = json.loads(content)
        return cls(**{**fields, "savers": tuple(fields["savers"])})


# ---- figures ---------------------------------------------------------------------------------


def peak_bytes() -> int:
    """Return the greatest resident size so far of this process.

    Linux's VmHWM belongs to the program alone; `ru_maxrss` may hold the parent's size at fork.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(row for row in status.read_text().splitlines() if row.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def figures_of(timings: Timings) -> Figures:
    """Return medians, tails and both ends of each call's times."""
    figures: Figures = {}
    for method, values in timings.items():
        if values:
            figures[f"{method}_count"] = len(values)
            figures[f"{method}_p50"] = statistics.median(values)
            figures[f"{method}_p99"] = _quantile(values, 0.99)
            figures[f"{method}_first"] = statistics.median(values[:ENDS])
            figures[f"{method}_last"] = statistics.median(values[-ENDS:])
            figures[f"{method}_total"] = sum(values)
    return figures


def _sampled(sample: Callable[[], float], most: int, *, budget: float = 2.0) -> float:
    """Return the median of up to `most` samples, fewer (at least one) once `budget` s are spent."""
    values = [sample()]
    started = perf_counter()
    while len(values) < most and perf_counter() - started < budget:
        values.append(sample())
    return statistics.median(values)


# ---- reading ---------------------------------------------------------------------------------


def _reading(face: Face, graph: Any, workload: Workload, samples: int) -> Figures:
    """Time what a user reads: the latest state of each thread, and one thread's history."""
    configs = [Turn(thread_id=thread_id, inputs={}).config for thread_id in workload.thread_ids]
    getting, stating = cycle(configs), cycle(configs)
    first = configs[0]
    filtered = {"source": "input"}
    count, whole = face.read_list(first)
    if whole < 1:
        whole = _sampled(lambda: face.read_list(first)[1], samples)
    return {
        "get_latest": _sampled(lambda: face.call("get_tuple", next(getting))[1], samples),
        "get_state": _sampled(lambda: face.state(graph, next(stating)), samples),
        "list_10": _sampled(lambda: face.read_list(first, limit=10)[1], samples),
        "list_filter": _sampled(
            lambda: face.read_list(first, filter=filtered, limit=10)[1], samples
        ),
        "list_all": whole,
        "list_count": count,
    }


def _cold(trial: Trial, name: str, path: str, thread_id: str) -> Figures:
    """Time a new start on the file: opening it, the first read after that, and a deletion."""
    start = perf_counter()
    face = open_face(plugin(name, trial.ours), path, trial.synchronous)
    _, getting = face.call("get_tuple", Turn(thread_id=thread_id, inputs={}).config)
    opened = perf_counter() - start
    _, deleting = face.call("delete_thread", thread_id)
    face.close()
    return {"open_and_get": opened, "get_first": getting, "delete_thread": deleting}


# ---- trials ----------------------------------------------------------------------------------


@contextmanager
def _database(trial: Trial) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="saver-bench-", dir=trial.directory) as folder:
        yield os.path.join(folder, "agent.db")


def _groups(workload: Workload) -> list[list[Turn]]:
    by_thread: dict[str, list[Turn]] = defaultdict(list)
    for turn in workload.turns:
        by_thread[turn.thread_id].append(turn)
    return list(by_thread.values())


def _live(trial: Trial, name: str, workload: Workload, path: str) -> Figures:
    """Run the graph on a new database, then read it, close it and open it again."""
    chosen = plugin(name, trial.ours)
    face = open_face(chosen, path, trial.synchronous)
    graph = workload.build(face.saver, chosen.snapshot_frequency)
    before = peak_bytes()
    gc.collect()
    with timing(face.saver, asynchronous=face.asynchronous) as timings:
        start = perf_counter()
        if trial.kind == "together":
            face.play_together(graph, _groups(workload))
        else:
            face.play(graph, workload.turns)
        wall = perf_counter() - start
    figures = {"wall": wall, "size_open": bytes_on_disk(path), "peak_run": peak_bytes()}
    figures |= figures_of(timings) | _reading(face, graph, workload, SCALES[trial.scale].samples)
    face.close()
    figures["size_closed"] = bytes_on_disk(path)
    if figures["size_closed"]:
        figures |= _cold(trial, name, path, workload.thread_ids[-1])
    peak = peak_bytes()
    return figures | {"peak": peak, "peak_growth": peak - before}


def _replayed(trial: Trial, workload: Workload) -> dict[str, Figures]:
    """Replay each turn on every saver in turn, so that all meet the same moments."""
    with tempfile.TemporaryDirectory(prefix="saver-bench-", dir=trial.directory) as folder:
        faces: dict[str, Face] = {}
        recorders: dict[str, tuple[Recorder, Any]] = {}
        timings: dict[str, Timings] = {}
        for name in trial.savers:
            chosen = plugin(name, trial.ours)
            path = os.path.join(folder, name, "agent.db")
            os.mkdir(os.path.dirname(path))
            faces[name] = open_face(chosen, path, trial.synchronous)
            recorder = Recorder(faces[name].saver)
            recorders[name] = recorder, workload.build(recorder, chosen.snapshot_frequency)
            timings[name] = defaultdict(list)
        for turn in workload.turns:
            for name, (recorder, graph) in recorders.items():
                recorder.events = []
                graph.invoke(turn.inputs, turn.config)
                replay(faces[name], recorder.events, timings[name])
        for face in faces.values():
            face.close()
    return {name: figures_of(found) for name, found in timings.items()}


def measure(trial: Trial) -> dict[str, Figures]:
    """Run the trial here; return the figures of each saver, nothing where its data is missing."""
    workload = WORKLOADS[trial.workload](SCALES[trial.scale])
    if workload is None:
        return {}
    if trial.kind == "floor":
        return {"floor": {"bytes": workload.floor()}}
    if trial.kind == "replay":
        return _replayed(trial, workload)
    (name,) = trial.savers
    with _database(trial) as path:
        return {name: _live(trial, name, workload, path)}


if __name__ == "__main__":
    print(json.dumps(measure(Trial.from_json(sys.argv[1]))))
