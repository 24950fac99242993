"""Measure savers side by side: ours in all its ways, LangGraph's own, and rivals.

    python -m benchmarks [--quick] [--only short,files] [--match ours] [--out DIR]

writes DIR/results.json and DIR/RESULTS.md (a table a workload) and prints the second. Savers take
turns within each repetition; figures are medians over the repetitions, ratios medians of the pairs
that ran side by side. Progress goes to stderr. Exit code 1 when one of our promises is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from os import getloadavg
from pathlib import Path
from time import perf_counter, strftime
from typing import Any

from benchmarks import tables
from benchmarks.contest import Bout, BoutFailed, bout_figures, grown, in_child, stage
from benchmarks.promises import Promise, promises
from benchmarks.registry import Entry, entries, why_not
from benchmarks.report import commit, machine
from benchmarks.workloads import SCALES

WORKLOADS = tuple(tables.TITLES)
FULL_REPETITIONS = {"short": 3, "files": 3, "picture": 3, "chat": 2, "real": 2, "crowd": 3}


@dataclass(kw_only=True)
class Results:
    """What was measured so far."""

    timed: dict[tuple[str, str], list[dict[str, Any]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    grown: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    floors: dict[str, int] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    started: float = field(default_factory=perf_counter)

    def keep(self, written: dict[str, Any], but: Sequence[str]) -> None:
        """Take over what an earlier report says of workloads that are not run now."""
        for row in written["figures"]:
            if row["workload"] not in but:
                key = row["workload"], row["saver"]
                self.timed[key], self.grown[key] = row["repetitions"], row["witnessed"]
        for workload, saver, reason in written["failed"]:
            if workload not in but:
                self.failed[workload, saver] = reason
        for name in ("floors", "facts"):
            earlier = {key: value for key, value in written[name].items() if key not in but}
            getattr(self, name).update(earlier)

    def say(self, text: str) -> None:
        """Tell a person how far it has come."""
        print(f"[{perf_counter() - self.started:6.0f} s] {text}", file=sys.stderr, flush=True)


def _measure(
    workload: str, chosen: Sequence[Entry], options: argparse.Namespace, into: Results
) -> None:
    """Run a workload on every saver that takes part: once witnessed, then timed in turns."""
    plain = Bout(saver="nothing", workload=workload, scale=options.scale)
    made = plain.make()
    if made is None:
        into.missing.append(workload)
        into.say(f"{workload}: its data are not here")
        return
    into.floors[workload] = made.floor()
    into.facts[workload] = _moment(workload, options)
    stages = _here if options.in_process else in_child
    repetitions = _repetitions_of(workload, options)
    playing = [entry for entry in chosen if workload in entry.workloads]
    for repetition in range(-1, repetitions):
        what = "checked" if repetition < 0 else f"timed, {repetition + 1} of {repetitions}"
        for entry in playing:
            key = workload, entry.name
            if key in into.failed:
                continue
            bout = Bout(
                saver=entry.name,
                workload=workload,
                scale=options.scale,
                directory=options.directory,
                limit=options.limit,
            )
            try:
                if repetition < 0:
                    into.grown[key] = grown(bout, stages=stages)
                else:
                    into.timed[key].append(
                        _each(bout_figures(bout, stages=stages), into.grown[key])
                    )
            except BoutFailed as error:
                into.failed[key] = str(error)
                into.timed.pop(key, None)
            into.say(f"{workload} · {entry.name} · {into.failed.get(key, what)}")


def _repetitions_of(workload: str, options: argparse.Namespace) -> int:
    usual = FULL_REPETITIONS[workload] if options.scale == "full" else 1
    return int(options.repetitions or usual)


def _moment(workload: str, options: argparse.Namespace) -> str:
    """Return when and how a workload was run: what may differ within a report."""
    return (
        f"{strftime('%Y-%m-%d %H:%M')}, commit {commit()}, scale {options.scale}, "
        f"{_repetitions_of(workload, options)} repetitions; {getloadavg()[0]:.1f} programs "
        "wanted a processor when it began"
    )


def _here(bout: Bout, name: str, folder: str) -> dict[str, Any]:
    """Run a stage in this process: fast, but peaks of memory add up and nothing is cold."""
    try:
        return stage(bout, name, folder)
    except Exception as error:
        raise BoutFailed(f"{name}: {type(error).__name__}: {error}") from error


def _each(figures: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    count = figures["checkpoints"] or found["puts"]
    return figures | {"each": figures["size"] / count} if figures["size"] and count else figures


def _choice(match: str | None) -> tuple[list[Entry], dict[str, tuple[str, str]]]:
    """Return who takes part, baselines included, and who is left out for which reason."""
    known = entries()
    texts = (match or "").split(",")
    wanted = {entry.name for entry in known if any(text in entry.name for text in texts)}
    wanted |= {entry.baseline for entry in known if entry.name in wanted}
    asked = [entry for entry in known if entry.name in wanted]
    absent = {entry.name: (entry.about, why_not(entry)) for entry in asked if why_not(entry)}
    return [entry for entry in asked if entry.name not in absent], absent


def _markdown(
    facts: dict[str, str],
    options: argparse.Namespace,
    chosen: Sequence[Entry],
    absent: dict[str, tuple[str, str]],
    results: Results,
    found: Sequence[Promise],
) -> str:
    scale = SCALES[options.scale]
    parts = [
        "# Results\n\nMade by `python -m benchmarks`; [README.md](README.md) says how to read it.\n"
    ]
    parts.append("\n".join(f"- {name}: {value}" for name, value in facts.items()))
    if found:
        kept = sum(promise.result == "kept" for promise in found)
        parts.append(
            f"\n## Promises: {kept} kept, {len(found) - kept} missed or not measured\n\n"
            + tables.promise_table(found)
        )
    done = {key[0] for key in (*results.timed, *results.failed)} | set(results.missing)
    for workload in filter(done.__contains__, WORKLOADS):
        parts.append(f"\n## {tables.title(workload, scale)}\n")
        parts.append(f"{results.facts.get(workload, '')}\n")
        if workload in results.missing:
            parts.append("Skipped: its data are not here.")
            continue
        arguments = (workload, chosen, results.timed, results.grown, results.failed)
        parts.append(tables.workload_table(*arguments))
    parts.append("\n## Savers\n\n" + tables.who_table(chosen))
    if absent:
        parts.append("\n## Left out\n\n" + tables.absent_table(absent))
    return "\n".join(parts) + "\n"


def _as_json(facts: dict[str, str], absent: Any, results: Results, found: Sequence[Promise]) -> str:
    return json.dumps(
        {
            "machine": facts,
            "promises": [{**asdict(promise), "result": promise.result} for promise in found],
            "figures": [
                {
                    "workload": workload,
                    "saver": saver,
                    "repetitions": repetitions,
                    "witnessed": results.grown.get((workload, saver), {}),
                }
                for (workload, saver), repetitions in results.timed.items()
            ],
            "floors": results.floors,
            "facts": results.facts,
            "failed": [[*key, reason] for key, reason in results.failed.items()],
            "left_out": {name: reason for name, (_, reason) in absent.items()},
            "skipped": results.missing,
        },
        ensure_ascii=False,
        indent=1,
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_const", const="quick", dest="scale")
    parser.add_argument("--scale", choices=sorted(SCALES), help="how much to run (default: full)")
    parser.add_argument("--only", help=f"workloads to run, of {','.join(WORKLOADS)}; may be empty")
    parser.add_argument(
        "--match", help="only savers whose name holds one of these texts, and baselines"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmark-results"))
    parser.add_argument(
        "--keep", action="store_true", help="keep what DIR has of workloads that are not run now"
    )
    parser.add_argument("--repetitions", type=int, help="timed runs of each (default: by workload)")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds one stage may take")
    parser.add_argument("--directory", help="where databases are made (default: the system's)")
    parser.add_argument("--in-process", action="store_true", help="no child processes: a try-out")
    parser.add_argument("--list", action="store_true", help="only say who can take part")
    parser.set_defaults(scale="full")
    options = parser.parse_args(arguments)
    asked = WORKLOADS if options.only is None else options.only.split(",")
    options.workloads = [name for name in asked if name]
    if unknown := set(options.workloads) - set(WORKLOADS):
        parser.error(
            f"unknown workloads {', '.join(sorted(unknown))}; known: {', '.join(WORKLOADS)}"
        )
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write and print the report, and return the exit code."""
    options = _options(arguments)
    chosen, absent = _choice(options.match)
    if options.list:
        print(tables.who_table(chosen), tables.absent_table(absent), sep="\n\n")
        return 0
    facts = machine(options.directory)
    del facts["commit"]  # said of each workload
    results = Results()
    if options.keep:
        earlier = (options.out / "results.json").read_text("utf-8")
        results.keep(json.loads(earlier), options.workloads)
    found: list[Promise] = []
    for workload in options.workloads or [None]:
        if workload is not None:
            _measure(workload, chosen, options, results)
        if options.scale == "full":
            found = promises(results.timed, results.grown, results.floors)
        report = _markdown(facts, options, chosen, absent, results, found)
        _write(options.out, report, _as_json(facts, absent, results, found))
    print(report)
    return int(any(promise.result != "kept" for promise in found))


def _write(out: Path, report: str, written: str) -> None:
    """Write what there is so far: a long run that is stopped has not been for nothing."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "RESULTS.md").write_text(report, encoding="utf-8")
    (out / "results.json").write_text(written, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
