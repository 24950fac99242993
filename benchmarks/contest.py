"""One bout: one saver on one workload, each stage of it in a process of its own.

    python -m benchmarks.contest '{"saver": "ours", "workload": "short", …}' STAGE FOLDER

prints one JSON object of figures (seconds, bytes, counts). The stages, on one folder:

* ``run``: the workload in a real graph, every call of the saver timed; then warm reads;
* ``cold``: what a new process pays for the first read;
* ``shrink``: the saver's own compaction, where it has one, followed by ``cold`` again;
* ``witness``: the same run untimed, with what it puts and how much it stores written down;
* ``check``: a new process compares what it reads with that.

For notebooks: `stage(bout, name, folder)` runs a stage here, `bout_figures(bout)` a whole timed
bout in new processes, `grown(bout)` the witnessed one: it returns the saver's size after each put.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.agreement import Seen, Witness, disagreements, growth
from benchmarks.faces import Face, States, open_face, timing
from benchmarks.measure import _groups, _sampled, figures_of, peak_bytes
from benchmarks.payloads import bytes_on_disk
from benchmarks.registry import CROWD, Entry, entry
from benchmarks.workloads import SCALES, WORKLOADS, Turn, Workload

ROOT = Path(__file__).resolve().parents[1]
DATABASE = "agent.db"
SEEN = "seen.pickle"
WEIGHED = ("short", "files", "picture")
"""Workloads whose new bytes are counted after each put (costs too much on longer ones)."""
REAL_THREADS = 40
"""How many recorded conversations take part: enough to compare, in a bearable time."""
LISTED = 100
COLD_STARTS = 5
"""New processes whose first read is timed."""
Report = dict[str, Any]


class BoutFailed(Exception):
    """A stage ended with an error; the text is the error's last line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bout:
    """What to run: an entry's name, a workload's name, a scale's name, and a limit in seconds."""

    saver: str
    workload: str
    scale: str = "full"
    directory: str | None = None
    limit: float = 600.0

    def to_json(self) -> str:
        """Return the form that a child process takes as its argument."""
        return json.dumps(asdict(self))

    @property
    def entry(self) -> Entry:
        """The saver's entry."""
        return entry(self.saver)

    def make(self) -> Workload | None:
        """Return the workload, None where its data are missing."""
        scale = SCALES[self.scale]
        most = min(scale.conversations or REAL_THREADS, REAL_THREADS)
        return WORKLOADS[self.workload](replace(scale, conversations=most))


# ---- stages ----------------------------------------------------------------------------------


def _opened(bout: Bout, path: str, durability: str | None = None) -> tuple[Face, Any, Workload]:
    workload = bout.make()
    if workload is None:
        raise BoutFailed(f"the data of {bout.workload} are not here")
    chosen = bout.entry
    plugin = replace(chosen.plugin, durability=durability or chosen.plugin.durability)
    face = open_face(plugin, path, chosen.synchronous)
    return face, workload.build(face.saver, plugin.snapshot_frequency), workload


def _play(bout: Bout, face: Face, graph: Any, workload: Workload) -> States:
    if bout.workload == CROWD:
        return face.play_together(graph, _groups(workload))
    return face.play(graph, workload.turns)


def _first(workload: Workload) -> Any:
    return Turn(thread_id=workload.thread_ids[0], inputs={}).config


def _run(bout: Bout, path: str) -> Report:
    """Time a run on a new database, and warm reads after it."""
    face, graph, workload = _opened(bout, path)
    empty = bytes_on_disk(path) if bout.entry.server else 0
    before = peak_bytes()
    gc.collect()
    began = time.time()
    with timing(face.saver, asynchronous=face.asynchronous) as timings:
        start = perf_counter()
        _play(bout, face, graph, workload)
        wall = perf_counter() - start
    report: Report = {"wall": wall, "size_open": bytes_on_disk(path) - empty, "empty": empty}
    report |= {"peak": peak_bytes(), "peak_growth": peak_bytes() - before}
    report |= {"began": began, "ended": began + wall, "put_max": max(timings["put"], default=0.0)}
    report |= figures_of(timings)
    samples = SCALES[bout.scale].samples
    config = _first(workload)
    report["get_warm"] = _sampled(lambda: face.call("get_tuple", config)[1], samples)
    report["state_warm"] = _sampled(lambda: face.state(graph, config), samples)
    report["list"] = _sampled(lambda: face.read_list(config, limit=LISTED)[1], min(samples, 5))
    report["listed"] = face.read_list(config, limit=LISTED)[0]
    report["checkpoints"] = sum(
        face.read_list(Turn(thread_id=thread_id, inputs={}).config)[0]
        for thread_id in workload.thread_ids
        if bout.workload != "chat" or bout.entry.sparse  # else it is the number of puts
    )
    face.close()
    return report | {"size": bytes_on_disk(path) - empty}


def _cold(bout: Bout, path: str) -> Report:
    """Time the first read of a new process: opening, the read alone, and `get_state` after it."""
    start = perf_counter()
    face, graph, workload = _opened(bout, path)
    built = perf_counter() - start
    config = _first(workload)
    _, cold = face.call("get_tuple", config)
    state = face.state(graph, config)
    face.close()
    return {"get_cold": cold, "state_second": state, "start": built}


def _shrink(bout: Bout, path: str) -> Report:
    """Let the saver make its files smaller; how long that takes, and what they take then."""
    face, _, _ = _opened(bout, path)
    shrink = bout.entry.shrink
    assert shrink is not None, "only entries with `shrink` have this stage"
    start = perf_counter()
    shrink(face.saver)
    seconds = perf_counter() - start
    face.close()
    return {"shrink_seconds": seconds, "size_shrunk": bytes_on_disk(path)}


def _witness(bout: Bout, path: str) -> Report:
    """Run once more, noting what is put. Nothing here is timed.

    With "sync" in the place of "async", so that what is new belongs to the checkpoint just put.
    """
    exiting = bout.entry.plugin.durability == "exit"
    face, graph, workload = _opened(bout, path, None if exiting else "sync")
    weigh = bout.entry.weigh if bout.workload in WEIGHED else None
    held = None if weigh is None else (lambda: weigh(face.saver, path))
    witness = Witness(face.saver, held, asynchronous=face.asynchronous)
    witness.seen.states = _play(bout, face, graph, workload)
    report: Report = {"sizes": witness.sizes, "puts": witness.puts}
    if not bout.entry.reopens:
        report["wrong"] = _compared(bout, witness.seen, face, graph)
    face.close()
    Path(path).with_name(SEEN).write_bytes(pickle.dumps(witness.seen))
    return report


def _check(bout: Bout, path: str) -> Report:
    """Compare what a new process reads with what was put."""
    face, graph, _ = _opened(bout, path)
    seen: Seen = pickle.loads(Path(path).with_name(SEEN).read_bytes())
    wrong = _compared(bout, seen, face, graph)
    face.close()
    return {"wrong": wrong}


def _compared(bout: Bout, seen: Seen, face: Face, graph: Any) -> list[str]:
    chosen = bout.entry
    delta = chosen.plugin.snapshot_frequency is not None
    return disagreements(seen, face, graph, sparse=chosen.sparse, delta=delta)


STAGES: dict[str, Callable[[Bout, str], Report]] = {
    "run": _run,
    "cold": _cold,
    "shrink": _shrink,
    "witness": _witness,
    "check": _check,
}


def stage(bout: Bout, name: str, folder: str) -> Report:
    """Run one stage in this process, on the database in `folder`."""
    return STAGES[name](bout, os.path.join(folder, DATABASE))


def in_child(bout: Bout, name: str, folder: str) -> Report:
    """Run one stage in a new process.

    Raises:
        BoutFailed: it ended with an error, or took longer than the bout's limit.
    """
    command = [sys.executable, "-m", "benchmarks.contest", bout.to_json(), name, folder]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=bout.limit
        )
    except subprocess.TimeoutExpired:
        raise BoutFailed(f"{name}: took longer than {bout.limit:g} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise BoutFailed(f"{name}: {lines[-1]}")
    report: Report = json.loads(done.stdout.splitlines()[-1])
    return report


# ---- bouts -----------------------------------------------------------------------------------


def bout_figures(bout: Bout, *, stages: Callable[..., Report] = in_child) -> Report:
    """Return the figures of a timed bout: run, cold and, where the saver has it, shrink."""
    with tempfile.TemporaryDirectory(prefix="bout-", dir=bout.directory) as folder:
        report = stages(bout, "run", folder)
        if bout.entry.reopens:
            report |= _colds(bout, stages, folder)
        if bout.entry.shrink is not None:
            report |= stages(bout, "shrink", folder)
            report["get_cold_shrunk"] = _colds(bout, stages, folder)["get_cold"]
    return report


def _colds(bout: Bout, stages: Callable[..., Report], folder: str) -> Report:
    """Return the medians of several first reads: one alone says little on a busy machine."""
    found = [stages(bout, "cold", folder) for _ in range(COLD_STARTS)]
    return {name: statistics.median(report[name] for report in found) for name in found[0]}


def grown(bout: Bout, *, stages: Callable[..., Report] = in_child) -> Report:
    """Return what a witnessed bout found.

    ``sizes`` is how many bytes the saver held before the first and after each put, ``new`` the
    new bytes of each put that stored some, ``wrong`` what came back differently.
    """
    with tempfile.TemporaryDirectory(prefix="bout-", dir=bout.directory) as folder:
        report = stages(bout, "witness", folder)
        if bout.entry.reopens:
            report |= stages(bout, "check", folder)
    return report | {"new": growth(report["sizes"])}


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    print(json.dumps(stage(Bout(**arguments), sys.argv[2], sys.argv[3])))
