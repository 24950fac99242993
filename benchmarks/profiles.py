"""Where time and memory go: the storage workload under cProfile and memory_profiler.

    python -m benchmarks.profiles [--savers ours,sqlite] [--workload short] [--out DIR]

writes DIR/profile-SAVER.txt (top functions by own and by cumulative time, for writing and for
reading), DIR/memory-SAVER.dat (a curve as `mprof plot` reads it) and DIR/profiles.json, and prints
a summary. Needs the extra `bench` for the memory curve.

cProfile sees one thread, and LangGraph calls a saver from others: so what is profiled is the
saver alone, asked again in one thread what a recorded run asked it (see `replay.py`). The memory
curve is of a whole live run in a process of its own.

For notebooks: `profiled(saver, workload)` gives a `SaverProfile`, whose `rows()` are plain values
and whose `text()` is the table; `memory_curve(saver, workload)` gives a `MemoryCurve` of seconds
and MB.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import os
import pstats
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.contest import DATABASE, ROOT, Bout
from benchmarks.faces import open_face
from benchmarks.keeper import Recorder
from benchmarks.registry import entry
from benchmarks.replay import replay
from benchmarks.report import machine
from benchmarks.workloads import SCALES, Turn

TOP = 25
INTERVAL = 0.02  # seconds between two looks at the memory
READS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTime:
    """One row of a profile: seconds in the function alone, and with what it called."""

    function: str
    calls: int
    own: float
    cumulative: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SaverProfile:
    """What writing and reading a workload costs one saver, function by function."""

    saver: str
    workload: str
    writing: pstats.Stats
    reading: pstats.Stats

    def rows(self, *, reading: bool = False, by: str = "own", top: int = TOP) -> list[FunctionTime]:
        """Return the top functions by ``"own"`` or ``"cumulative"`` time, as plain values."""
        stats: Any = self.reading if reading else self.writing
        found = [
            FunctionTime(function=_named(*place), calls=int(calls), own=own, cumulative=cumulative)
            for place, (_, calls, own, cumulative, _) in stats.stats.items()
        ]
        return sorted(found, key=lambda row: -getattr(row, by))[:top]

    def text(self) -> str:
        """Return the tables for a person."""
        parts = [f"{self.saver} on {self.workload}: seconds in one thread, the saver alone"]
        for what, reading in (("writing (put, put_writes)", False), ("reading (get_tuple)", True)):
            for by in ("own", "cumulative"):
                parts.append(f"\n{what}, by {by} time\n\n   calls      own    cumul.  function")
                parts += [
                    f"{row.calls:8} {row.own:8.4f} {row.cumulative:9.4f}  {row.function}"
                    for row in self.rows(reading=reading, by=by)
                ]
        return "\n".join(parts) + "\n"


def _named(file: str, line: int, function: str) -> str:
    """Return a short name that does not say where packages are installed."""
    if file == "~" or not line:
        return function
    short = "/".join(Path(file).parts[-2:])
    return f"{short}:{line} {function}"


def profiled(saver: str, workload: str = "short", scale: str = "full") -> SaverProfile:
    """Return the profile of an entry's saver on a workload, replayed in this thread."""
    chosen = entry(saver).plugin
    if chosen.asynchronous:
        raise ValueError(f"{saver!r} is asynchronous: profile its synchronous side")
    bout = Bout(saver=saver, workload=workload, scale=scale)
    made = bout.make()
    if made is None:
        raise FileNotFoundError(f"the data of {workload!r} are not here")
    writing, reading = cProfile.Profile(), cProfile.Profile()
    with tempfile.TemporaryDirectory(prefix="profile-") as folder:
        path = os.path.join(folder, DATABASE)
        face = open_face(chosen, path, bout.entry.synchronous)
        recorder = Recorder(face.saver)
        graph = made.build(recorder, chosen.snapshot_frequency)
        for turn in made.turns:
            recorder.events = []
            graph.invoke(turn.inputs, turn.config)
            profile = _Profiled(face, writing)
            replay(profile, recorder.events, defaultdict(list))  # type: ignore[arg-type]
        face.close()
        config = Turn(thread_id=made.thread_ids[0], inputs={}).config
        for _ in range(READS):  # each on a saver opened anew, so that nothing is remembered
            face = open_face(chosen, path, bout.entry.synchronous)
            reading.runcall(face.call, "get_tuple", config)
            face.close()
    return SaverProfile(
        saver=saver, workload=workload, writing=pstats.Stats(writing), reading=pstats.Stats(reading)
    )


class _Profiled:
    """A face whose calls, and nothing around them, run under a profile."""

    def __init__(self, face: Any, profile: cProfile.Profile) -> None:
        self._face = face
        self._profile = profile

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the saver; only writing ones are profiled."""
        if not name.startswith("put"):
            return self._face.call(name, *args, **kwargs)
        return self._profile.runcall(self._face.call, name, *args, **kwargs)


# ---- memory ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """Resident memory of a process that runs a workload and then reads what it stored.

    Attributes:
        seconds: times since the run began; earlier ones, of imports, are negative.
        megabytes: resident size at these times.
        run_seconds: how long the run took; later times are reading.
    """

    saver: str
    workload: str
    seconds: list[float]
    megabytes: list[float]
    run_seconds: float

    @property
    def before(self) -> float:
        """MB when the run began."""
        earlier = [mb for at, mb in zip(self.seconds, self.megabytes, strict=True) if at <= 0]
        return earlier[-1] if earlier else self.megabytes[0]

    @property
    def peak(self) -> float:
        """The greatest size during the run."""
        pairs = zip(self.seconds, self.megabytes, strict=True)
        return max((mb for at, mb in pairs if 0 <= at <= self.run_seconds), default=self.before)


def memory_curve(saver: str, workload: str = "short", scale: str = "full") -> MemoryCurve:
    """Run a workload live in a process of its own and return its memory over time.

    Raises:
        ModuleNotFoundError: memory_profiler is not installed; it is in the extra `bench`.
    """
    try:
        from memory_profiler import memory_usage
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "memory_profiler is not installed; pip install 'langgraph-resilient[bench]'"
        ) from error
    bout = Bout(saver=saver, workload=workload, scale=scale)
    with tempfile.TemporaryDirectory(prefix="memory-") as folder:
        command = [sys.executable, "-m", "benchmarks.contest", bout.to_json(), "run", folder]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            samples = memory_usage(process, interval=INTERVAL, timestamps=True)
            assert process.stdout is not None
            printed = process.stdout.read()
    if process.returncode:
        raise RuntimeError(f"{saver} on {workload}: the run ended with {process.returncode}")
    report = json.loads(printed.splitlines()[-1])
    kept = [(at - report["began"], mb) for mb, at in samples if mb > 0]
    return MemoryCurve(
        saver=saver,
        workload=workload,
        seconds=[at for at, _ in kept],
        megabytes=[mb for _, mb in kept],
        run_seconds=report["wall"],
    )


# ---- command ---------------------------------------------------------------------------------


def _dat(curve: MemoryCurve) -> str:
    lines = [f"CMDLINE {curve.saver} on {curve.workload}"]
    pairs = zip(curve.seconds, curve.megabytes, strict=True)
    lines += [f"MEM {mb:.3f} {at:.4f}" for at, mb in pairs]
    return "\n".join(lines) + "\n"


def _summary(profiles: Sequence[SaverProfile], curves: Sequence[MemoryCurve]) -> str:
    buffer = io.StringIO()
    for profile in profiles:
        for what, reading in (("writing", False), ("reading", True)):
            stats: Any = profile.reading if reading else profile.writing
            print(f"\n{profile.saver}, {what}: {stats.total_tt:.3f} s; most of it:", file=buffer)
            for row in profile.rows(reading=reading, top=6):
                print(f"  {row.own:7.3f} s  {row.calls:7} ×  {row.function}", file=buffer)
    for curve in curves:
        print(
            f"\n{curve.saver}, memory: {curve.before:.1f} MB before, {curve.peak:.1f} MB at most in"
            f" {curve.run_seconds:.2f} s",
            file=buffer,
        )
    return buffer.getvalue()


def _as_json(profiles: Sequence[SaverProfile], curves: Sequence[MemoryCurve]) -> str:
    rows = {
        profile.saver: {
            f"{what}, by {by}": [asdict(row) for row in profile.rows(reading=reading, by=by)]
            for what, reading in (("writing", False), ("reading", True))
            for by in ("own", "cumulative")
        }
        for profile in profiles
    }
    memory = [
        {**asdict(curve), "before_mb": curve.before, "peak_mb": curve.peak} for curve in curves
    ]
    return json.dumps({"machine": machine(None), "time": rows, "memory": memory}, indent=1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile, write the files and print a summary."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiles", description=__doc__)
    parser.add_argument("--savers", default="ours,sqlite")
    parser.add_argument("--workload", default="short")
    parser.add_argument("--scale", choices=sorted(SCALES), default="full")
    parser.add_argument("--no-memory", action="store_true", help="only the times")
    parser.add_argument("--out", type=Path, default=Path("benchmark-results"))
    options = parser.parse_args(arguments)
    names = options.savers.split(",")
    profiles = [profiled(name, options.workload, options.scale) for name in names]
    curves = [
        memory_curve(name, options.workload, options.scale)
        for name in names
        if not options.no_memory
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    for profile in profiles:
        (options.out / f"profile-{profile.saver}.txt").write_text(profile.text(), encoding="utf-8")
    for curve in curves:
        (options.out / f"memory-{curve.saver}.dat").write_text(_dat(curve), encoding="utf-8")
    (options.out / "profiles.json").write_text(_as_json(profiles, curves), encoding="utf-8")
    print(_summary(profiles, curves))
    return 0


if __name__ == "__main__":
    sys.exit(main())
