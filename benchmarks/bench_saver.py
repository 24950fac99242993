"""Measure every promise on size and speed, and say which ones hold.

    python -m benchmarks.bench_saver [--quick] [--only size,put] [--json out.json]

prints a Markdown table; exit code 1 when a row is missed or could not be measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

from benchmarks.measure import Figures, Trial, measure
from benchmarks.report import Verdict, judge, machine, table
from benchmarks.requirements import AREAS, REQUIREMENTS, Bench, Requirement
from benchmarks.savers import OURS
from benchmarks.workloads import SCALES

ROOT = Path(__file__).resolve().parents[1]


def planned(rows: Sequence[Requirement], repetitions: int) -> Iterator[tuple[Bench, list[str]]]:
    """Yield the trials that the rows need, each repetition going once through all the savers."""
    savers: dict[Bench, dict[str, None]] = defaultdict(dict)
    for row in rows:
        for probe in row.probes:
            savers[probe.bench][probe.saver] = None
    for bench, names in savers.items():
        together = [list(names)] if bench.kind in ("replay", "floor") else [[n] for n in names]
        for _ in range(1 if bench.kind == "floor" else repetitions):
            for group in together:
                yield bench, group


def _in_child(trial: Trial) -> dict[str, Figures]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.measure", trial.to_json()],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        return {name: {} for name in trial.savers}
    figures: dict[str, Figures] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _run_all(
    rows: Sequence[Requirement], options: argparse.Namespace
) -> tuple[dict[tuple[Bench, str], list[Figures]], frozenset[str]]:
    """Run the planned trials; return their figures and the workloads whose data are missing."""
    results: dict[tuple[Bench, str], list[Figures]] = defaultdict(list)
    missing: set[str] = set()
    trials = list(planned(rows, options.repetitions))
    started = perf_counter()
    for number, (bench, savers) in enumerate(trials, 1):
        if bench.workload in missing:
            continue
        trial = Trial(
            kind=bench.kind,
            workload=bench.workload,
            savers=tuple(savers),
            synchronous=bench.synchronous,
            scale=options.scale,
            ours=options.ours,
            directory=options.directory,
        )
        before = perf_counter()
        figures = measure(trial) if options.in_process else _in_child(trial)
        now = perf_counter()
        failed = "" if all(figures.values()) else "  FAILED"
        print(
            f"[{number}/{len(trials)}] {bench} · {', '.join(savers)}: {now - before:.1f} s"
            f" (since start {now - started:.0f} s){failed}",
            file=sys.stderr,
            flush=True,
        )
        if not figures:
            missing.add(bench.workload)
        for saver, found in figures.items():
            results[bench, saver].append(found)
    return results, frozenset(missing)


def _as_json(
    facts: dict[str, str],
    verdicts: Sequence[Verdict],
    results: dict[tuple[Bench, str], list[Figures]],
) -> str:
    return json.dumps(
        {
            "machine": facts,
            "rows": [asdict(verdict) for verdict in verdicts],
            "figures": [
                {"trial": str(bench), "saver": saver, "repetitions": found}
                for (bench, saver), found in results.items()
            ],
        },
        ensure_ascii=False,
        indent=1,
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_saver", description=__doc__)
    parser.add_argument("--quick", action="store_const", const="quick", dest="scale")
    parser.add_argument("--scale", choices=sorted(SCALES), help="how much to run (default: full)")
    parser.add_argument("--only", help=f"areas to measure, of {','.join(AREAS)}")
    parser.add_argument("--match", help="only rows whose title holds this text")
    parser.add_argument("--repetitions", type=int, help="runs of each trial (default: by scale)")
    parser.add_argument("--json", type=Path, help="also write figures and verdicts to this file")
    parser.add_argument("--directory", help="where databases are made (default: the system's)")
    parser.add_argument("--ours", default=OURS, help="module:factory of the saver under test")
    parser.add_argument(
        "--in-process", action="store_true", help="no child processes: fast, but peaks add up"
    )
    parser.set_defaults(scale="full")
    options = parser.parse_args(arguments)
    options.repetitions = options.repetitions or SCALES[options.scale].repetitions
    options.areas = set(options.only.split(",")) if options.only else set(AREAS)
    if unknown := options.areas - set(AREAS):
        parser.error(f"unknown areas {', '.join(sorted(unknown))}; known: {', '.join(AREAS)}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and return the exit code."""
    options = _options(arguments)
    facts = machine(options.directory)
    rows = [
        row
        for row in REQUIREMENTS
        if row.area in options.areas and (not options.match or options.match in row.title)
    ]
    results, missing = _run_all(rows, options)
    full = options.scale == "full"
    verdicts = [judge(row, results, full=full, missing=missing) for row in rows]
    for name, value in facts.items():
        print(f"- {name}: {value}")
    print(f"- scale: {options.scale}, {options.repetitions} repetitions\n")
    print(table(verdicts))
    bad = [verdict for verdict in verdicts if verdict.result in ("MISS", "FAILED")]
    held = sum(verdict.result == "OK" for verdict in verdicts)
    print(f"\n{held} held, {len(bad)} missed, {len(verdicts) - held - len(bad)} not judged")
    if options.json:
        options.json.write_text(_as_json(facts, verdicts, results), encoding="utf-8")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
