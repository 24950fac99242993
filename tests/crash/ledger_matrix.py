"""The crash matrix: an agent is killed at every moment of a tool call's life, and resumed.

    python -m tests.crash.ledger_matrix              # everything; some tens of minutes
    python -m tests.crash.ledger_matrix --every 20   # every 20th kill
    python -m tests.crash.ledger_matrix --json matrix.json

Prints, by the moment of death, how often effects happened twice with `ResilientSaver` and its ledger,
and with a plain `SqliteSaver`. ``pytest -m campaign tests/crash/test_ledger_crash.py`` runs the same
and demands that ours has none. It runs on the crash kit that ships with the package: the moments are
found by looking where an undisturbed run comes by.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from effects import servers
from ledger_agents import BUILDS, SHAPES
from ledger_runs import DURABILITIES, Way
from worldlog import WorldLog

from langgraph_resilient.testing import Kill, SweepReport

SECOND_SHAPES = ("one", "three", "twins")
FIRST = [("effect.before", 1), ("effect.taken", 1), ("tools.done", 1)]
"""Where the first process dies when the one that resumes is to be killed, too: it has to ask about
an unknown outcome that was none, about one that was one, or has everything recorded."""
LEASES = ["lease.*"]
"""Where a process dies whose calls take long: in the thread that gives a sign of life."""
Found = tuple[Way, SweepReport]


def ways() -> list[Way]:
    """The whole matrix."""
    found = [
        Way(saver=saver, build=build, shape=shape, durability=durability, is_async=is_async)
        for saver, build, durability, is_async, shape in product(
            ("resilient", "sqlite"), BUILDS, DURABILITIES, (False, True), SHAPES
        )
    ]
    ours = [one for one in found if one.saver == "resilient"]
    again = [
        replace(one, first=(first,), operator=operator)
        for one, first, operator in product(ours, FIRST, (False, True))
        if one.shape in SECOND_SHAPES
        if not operator or (one.shape == "three" and first[0] != "tools.done")
    ]
    told = [replace(one, errors_told=True) for one in found if one.build == "toolnode"]
    long = [
        replace(one, long=True, first=first)
        for one, first in product(ours, ((), (FIRST[0],)))
        if one.shape == "one"
    ]
    return found + again + told + long


def swept(log: WorldLog, folder: Path, way: Way, every: int = 1) -> SweepReport:
    """Kill one way at all of its moments, or at every n-th."""

    def wanted(point: str, hit: int) -> bool:
        if way.first and point == "tools.done":
            return False  # it waits for all calls of a message; some do not come any more
        if point.startswith("journal."):
            return False  # a model call's life: see seed_runs
        return hash_of(f"{way.name} {point} {hit}") % every == 0

    points = LEASES if way.long else None
    return way.sweep(log, folder, points=points, only=wanted)


def hash_of(text: str) -> int:
    """A number that is the same in every process."""
    return sum(text.encode())


_log: WorldLog
_stay = ExitStack()


def _begin(folder: Path) -> None:
    """Start servers of its own for a process that sweeps."""
    global _log
    own = Path(tempfile.mkdtemp(dir=folder))
    _log = WorldLog(_stay.enter_context(servers(own)))


def _work(folder: Path, every: int, way: Way) -> Found:
    return way, swept(_log, folder, way, every)


def run(folder: Path, chosen: Iterable[Way], every: int = 1, jobs: int = 1) -> Iterator[Found]:
    """Sweep all of them, several at once."""
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_begin, initargs=(folder,)
    ) as pool:
        yield from pool.map(partial(_work, folder, every), chosen)


# --- the table --------------------------------------------------------------------------------

_COLUMNS = ("kills", "duplicates", "lost", "wrong")
_WIDTH = 11


def table(results: Iterable[Found]) -> str:
    """Ours and the plain saver beside each other, by the moment of death."""
    rows: dict[str, dict[str, list[int]]] = defaultdict(
        lambda: {saver: [0] * len(_COLUMNS) for saver in ("resilient", "sqlite")}
    )
    for way, report in results:
        for kill in report.kills:
            for name in (moment(kill), "all"):
                kept = rows[name][way.saver]
                rows[name][way.saver] = [a + b for a, b in zip(kept, counted(kill), strict=True)]
    width, side = max(map(len, [*rows, "killed at"])), _WIDTH * len(_COLUMNS)
    head = "".join(f"{column:>{_WIDTH}}" for column in _COLUMNS)
    lines = [
        f"{'':{width}} | {'ResilientSaver with ledger':^{side}} | {'SqliteSaver':^{side}}",
        f"{'killed at':{width}} | {head} | {head}",
    ]
    for name in sorted(rows, key=lambda name: (name == "all", name)):
        sides = [
            "".join(f"{value:>{_WIDTH}}" for value in values) if values[0] else f"{'-':>{side}}"
            for values in rows[name].values()
        ]
        lines.append(f"{name:{width}} | {sides[0]} | {sides[1]}")
    return "\n".join(lines)


def counted(kill: Kill) -> tuple[int, ...]:
    """A kill, for the columns of the table."""
    wrong = kill.differences or kill.problems or kill.outcome in ("failed", "hung")
    happened = kill.outcome != "not reached"
    return int(happened), sum(kill.repeated.values()), sum(kill.lost.values()), int(bool(wrong))


def moment(kill: Kill) -> str:
    """The row of the table."""
    return f"resuming: {kill.point}" if kill.first else kill.point


def as_json(results: Iterable[Found]) -> list[dict[str, Any]]:
    """Everything, for other programs."""
    return [
        {"name": way.name, **asdict(way), "kills": [asdict(kill) for kill in report.kills]}
        for way, report in results
    ]


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 when ours has a duplicate or a wrong end."""
    parser = argparse.ArgumentParser(prog="ledger_matrix", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="do every n-th kill only")
    parser.add_argument("--jobs", type=int, default=1, help="agents at once")
    parser.add_argument("--only", default="", help="agents whose name has this text")
    parser.add_argument("--json", type=Path, help="where to write all results")
    options = parser.parse_args(arguments)
    chosen = [one for one in ways() if options.only in one.name]
    results: list[Found] = []
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for number, (way, report) in enumerate(
            run(Path(folder), chosen, options.every, options.jobs), 1
        ):
            results.append((way, report))
            print(f"{number} of {len(chosen)}: {way.name}", file=sys.stderr, flush=True)
            if way.saver == "resilient":
                for kill in report.failures:
                    print(f"WRONG {way.name}: {kill}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(as_json(results), indent=1))
    print(table(results))
    kills = sum(len(report.kills) for _, report in results)
    print(f"{kills} kills of {len(chosen)} agents in {time.monotonic() - begun:.0f} s")
    return int(any(report.failures for way, report in results if way.saver == "resilient"))


if __name__ == "__main__":
    sys.exit(main())
