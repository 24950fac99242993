"""The crash matrix: an agent is killed at every moment of a tool call's life, and resumed.

    python -m tests.crash.ledger_matrix              # everything; some tens of minutes
    python -m tests.crash.ledger_matrix --every 20   # every 20th experiment
    python -m tests.crash.ledger_matrix --json matrix.json

Prints, by the moment of death, how often effects happened twice with `ResilientSaver` and its ledger,
and with a plain `SqliteSaver`. ``pytest -m campaign tests/crash/test_ledger_crash.py`` runs the same
and demands that ours has none. The moments are found by looking where an undisturbed run comes by.
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
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from effects import World, servers
from ledger_agents import BUILDS, SHAPES
from ledger_runs import DURABILITIES, Experiment, Outcome, perform

MOST_HITS = 12
SECOND_SHAPES = ("one", "three", "twins")
RENEWALS = [("renew.before", 1), ("commit.renewal", 1), ("renew.after", 1), ("renew.before", 3)]
PREFIXES = [("tool.before", 1), ("effect.taken", 1), ("tools.done", 1)]
"""Where the first process dies when the one that resumes is to be killed, too: it has to ask about
an unknown outcome that was none, about one that was one, or has everything recorded."""
_NOT_AGAIN = {"tools.done"}
"""Moments that wait for all calls of a message; in a resumed run some may not come any more."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """An experiment, undisturbed but for its first kills, and then killed wherever it comes by."""

    base: Experiment

    def run(
        self, world: World, folder: Path, every: int = 1
    ) -> Iterator[tuple[Experiment, Outcome]]:
        """Do all experiments of the sweep, or every n-th."""
        calm = _performed(world, folder, self.base)
        yield self.base, calm
        for number, (point, hit) in enumerate(self._moments(calm)):
            if (number + hash_of(self.base.name)) % every == 0:
                one = replace(self.base, kills=(*self.base.kills, (point, hit)))
                yield one, _performed(world, folder, one)

    def _moments(self, calm: Outcome) -> list[tuple[str, int]]:
        found = [
            (point, hit)
            for point, count in sorted(calm.hits.items())
            for hit in range(1, min(count, MOST_HITS) + 1)
            if not (self.base.kills and point in _NOT_AGAIN)
        ]
        base = self.base
        alone = base.kills in ((), (("tool.before", 1),)) and base.shape == "one"
        if base.saver == "resilient" and alone and not base.operator:
            found += RENEWALS
        return found


def hash_of(text: str) -> int:
    """A number that is the same in every process."""
    return sum(text.encode())


def sweeps() -> list[Sweep]:
    """The whole matrix."""
    ways = list(product(BUILDS, DURABILITIES, (False, True)))
    found = [
        Experiment(saver=saver, build=build, shape=shape, durability=durability, is_async=is_async)
        for saver, (build, durability, is_async), shape in product(
            ("resilient", "sqlite"), ways, SHAPES
        )
    ]
    again = [
        replace(one, kills=(prefix,), operator=operator)
        for one, prefix, operator in product(found, PREFIXES, (False, True))
        if one.saver == "resilient" and one.shape in SECOND_SHAPES
        if not operator or (one.shape == "three" and prefix[0] != "tools.done")
    ]
    told = [replace(one, errors_told=True) for one in found if one.build == "toolnode"]
    return [Sweep(base=one) for one in found + again + told]


def _performed(world: World, folder: Path, experiment: Experiment) -> Outcome:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        return perform(world, Path(own), experiment)


def run(
    world: World, folder: Path, chosen: Iterable[Sweep], every: int = 1, jobs: int = 1
) -> Iterator[tuple[Experiment, Outcome]]:
    """Do the sweeps, several at once."""
    work = partial(_swept, world, folder, every)
    if jobs == 1:
        for one in chosen:
            yield from work(one)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for found in pool.imap_unordered(work, chosen):
            yield from found


def _swept(
    world: World, folder: Path, every: int, sweep: Sweep
) -> list[tuple[Experiment, Outcome]]:
    return list(sweep.run(world, folder, every))


# --- the table --------------------------------------------------------------------------------

Results = list[tuple[Experiment, Outcome]]
_COLUMNS = ("runs", "kills", "duplicates", "lost", "wrong")


def table(results: Results) -> str:
    """Ours and the plain saver beside each other, by the moment of death."""
    rows: dict[str, dict[str, list[int]]] = defaultdict(
        lambda: {saver: [0] * len(_COLUMNS) for saver in ("resilient", "sqlite")}
    )
    for experiment, outcome in results:
        values = (1, outcome.killed, outcome.duplicates, outcome.lost, int(bool(outcome.wrong)))
        for name in (moment(experiment), "all"):
            kept = rows[name][experiment.saver]
            rows[name][experiment.saver] = [a + b for a, b in zip(kept, values, strict=True)]
    width = max(map(len, rows))
    head = "".join(f"{column:>11}" for column in _COLUMNS)
    lines = [
        f"{'':{width}} | {'ResilientSaver with ledger':^55} | {'SqliteSaver':^55}",
        f"{'killed at':{width}} |{head} |{head}",
    ]
    for name in sorted(rows, key=lambda name: (name == "all", name)):
        sides = [
            "".join(f"{value:>11}" for value in values) if values[0] else f"{'-':>55}"
            for values in rows[name].values()
        ]
        lines.append(f"{name:{width}} |{sides[0]} |{sides[1]}")
    return "\n".join(lines)


def moment(experiment: Experiment) -> str:
    """The row of the table."""
    kills = [point for point, _ in experiment.kills]
    if not kills:
        return "(not killed)"
    return kills[0] if len(kills) == 1 else f"resuming: {kills[-1]}"


def as_json(results: Results) -> list[dict[str, Any]]:
    """Everything, for other programs."""
    return [
        {"name": experiment.name, **asdict(experiment), **asdict(outcome)}
        for experiment, outcome in results
    ]


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 when ours has a duplicate or a wrong end."""
    parser = argparse.ArgumentParser(prog="ledger_matrix", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="do every n-th experiment only")
    parser.add_argument("--jobs", type=int, default=1, help="sweeps at once")
    parser.add_argument("--only", default="", help="sweeps whose name has this text")
    parser.add_argument("--json", type=Path, help="where to write all results")
    options = parser.parse_args(arguments)
    chosen = [one for one in sweeps() if options.only in one.base.name]
    results: Results = []
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder)) as world:
        for experiment, outcome in run(world, Path(folder), chosen, options.every, options.jobs):
            results.append((experiment, outcome))
            if len(results) % 100 == 0:
                print(f"{len(results)} experiments …", file=sys.stderr, flush=True)
            if experiment.saver == "resilient" and not outcome.good:
                print(f"WRONG {experiment.name}: {outcome.said}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(as_json(results), indent=1))
    print(table(results))
    print(f"{len(results)} experiments in {time.monotonic() - begun:.0f} s")
    return int(any(not o.good for e, o in results if e.saver == "resilient"))


if __name__ == "__main__":
    sys.exit(main())
