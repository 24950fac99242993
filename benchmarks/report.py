"""Figures to verdicts, and verdicts to a table: pure functions, and the facts about the machine."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter

from benchmarks.requirements import Bench, Probe, Requirement

PACKAGES = (
    "langgraph",
    "langgraph-checkpoint",
    "langgraph-checkpoint-sqlite",
    "langchain-core",
    "langgraph-resilient",
    "zstandard",
)

# bench, saver → the figures of each repetition, in order
Results = Mapping[tuple[Bench, str], Sequence[Mapping[str, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A row of the report. `result`: OK, MISS, FAILED (no figure), skipped, or — (not judged)."""

    requirement: Requirement
    ours: float | None
    rival: float | None
    ratio: float | None
    result: str


def _samples(results: Results, probe: Probe) -> list[float]:
    found = results.get((probe.bench, probe.saver), ())
    return [figures[probe.metric] for figures in found if probe.metric in figures]


def _ratio(ours: Sequence[float], rival: Sequence[float]) -> float | None:
    """Return the median of the pairs' ratios: a pair ran back to back, so drift cancels out."""
    if not ours or not rival:
        return None
    if len(ours) == len(rival):
        pairs = list(zip(ours, rival, strict=True))
    else:
        pairs = [(statistics.median(ours), statistics.median(rival))]
    if any(below == 0 for _, below in pairs):
        return None
    return statistics.median(above / below for above, below in pairs)


def judge(
    requirement: Requirement, results: Results, *, full: bool, missing: frozenset[str]
) -> Verdict:
    """Return the row's verdict; `missing` names the workloads whose data are not here."""
    ours = _samples(results, requirement.ours)
    rival = (
        _samples(results, requirement.rival)
        if isinstance(requirement.rival, Probe)
        else [requirement.rival] * len(ours)
    )
    ratio = _ratio(ours, rival)
    if requirement.ours.bench.workload in missing:
        result = "skipped"
    elif ratio is None:
        result = "FAILED"
    elif requirement.limit is None or (requirement.scaled and not full):
        result = "—"
    else:
        result = "OK" if ratio <= requirement.limit else "MISS"
    return Verdict(
        requirement=requirement,
        ours=statistics.median(ours) if ours else None,
        rival=statistics.median(rival) if rival else None,
        ratio=ratio,
        result=result,
    )


def shown(metric: str, value: float | None) -> str:
    """Return a figure with its unit: bytes for sizes and peaks, time for everything else."""
    if value is None:
        return "—"
    if metric.startswith(("size", "peak", "bytes")):
        return f"{value / 1e6:.3f} MB"
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1e3:.3f} ms"


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts as a Markdown table."""
    lines = [
        "| area | requirement | ours | rival | ratio | limit | result |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for verdict in verdicts:
        row = verdict.requirement
        metric = row.ours.metric
        ratio = "—" if verdict.ratio is None else f"{verdict.ratio:.3f}"
        limit = "—" if row.limit is None else f"{row.limit:g}"
        cells = (
            row.area,
            row.title,
            shown(metric, verdict.ours),
            shown(metric, verdict.rival),
            ratio,
            limit,
            verdict.result,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def commit() -> str:
    """Return the commit that is measured, and whether files differ from it."""
    root = Path(__file__).resolve().parents[1]
    git = ["git", "-C", str(root)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + (" with changes" if changed else "")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def flush_seconds(directory: str | None, times: int = 50) -> float:
    """Return the median time to write and flush 4 KB in the directory: the disk's part of a put."""
    spent: list[float] = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(times):
            start = perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
            spent.append(perf_counter() - start)
    return statistics.median(spent)


def machine(directory: str | None) -> dict[str, str]:
    """Return what a reader needs to place the figures: hardware, versions, commit, disk."""
    facts = {
        "processor": f"{_processor()} × {os.cpu_count()}",
        "system": platform.platform(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "commit": commit(),
        "directory": directory or tempfile.gettempdir(),
        "fsync of 4 KB": f"{flush_seconds(directory) * 1e3:.2f} ms",
    }
    return facts | {package: _version(package) for package in PACKAGES}
