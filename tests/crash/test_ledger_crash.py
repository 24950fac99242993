"""SIGKILL around tool calls with real effects: none happens twice, none is lost, all are answered.

What happens by default is a part of the matrix that `ledger_matrix` holds; the whole of it is
``pytest -m campaign tests/crash/test_ledger_crash.py``, or ``python -m tests.crash.ledger_matrix``
for a table beside plain `SqliteSaver`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from effects import World, servers
from ledger_agents import BUILDS, SHAPES
from ledger_matrix import sweeps, table
from ledger_runs import DURABILITIES, Experiment, Outcome, perform

WAYS = list(product(BUILDS, DURABILITIES, (False, True)))
ONCE: list[tuple[str, int]] = [
    ("begin.before", 1),
    ("commit.calls", 1),
    ("commit.calls", 2),
    ("begin.after", 1),
    ("tool.before", 1),
    ("effect.refused", 1),
    ("effect.taken", 1),
    ("tool.after", 1),
    ("settle.succeeded.before", 1),
    ("settle.succeeded.after", 1),
    ("put_writes.before", 1),
    ("commit.writes", 1),
    ("put_writes.after", 1),
    ("put.before", 1),
    ("put.before", 2),
    ("commit.checkpoints", 1),
    ("commit.checkpoints", 2),
    ("put.after", 1),
    ("put.after", 2),
    ("model", 2),
    ("renew.before", 1),
    ("commit.renewal", 1),
    ("renew.after", 1),
]
"""Moments that every run comes by."""
TWICE: list[tuple[tuple[str, int], tuple[str, int]]] = [
    (("tool.before", 1), ("resolve.unknown.before", 1)),
    (("tool.before", 1), ("resolve.unknown.after", 1)),
    (("tool.before", 1), ("put_writes.before", 1)),
    (("tool.before", 1), ("answer", 1)),
    (("tool.before", 1), ("resolve.failed.before", 1)),
    (("tool.before", 1), ("resolve.failed.after", 1)),
    (("tool.before", 1), ("commit.leases", 1)),
    (("tool.before", 1), ("begin.after", 1)),
    (("tool.before", 1), ("effect.taken", 1)),
    (("tool.before", 1), ("settle.succeeded.before", 1)),
    (("tool.before", 1), ("renew.after", 1)),
    (("effect.taken", 1), ("resolve.succeeded.before", 1)),
    (("effect.taken", 1), ("resolve.succeeded.after", 1)),
    (("tools.done", 1), ("replay.before", 1)),
    (("tools.done", 1), ("replay.after", 1)),
]
"""A death, and another one while its traces are cleared up."""
DECIDED: list[tuple[str, int]] = [
    ("resolve.succeeded.before", 1),
    ("resolve.succeeded.after", 1),
    ("commit.calls", 1),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with servers(tmp_path_factory.mktemp("world")) as found:
        yield found


def check(world: World, folder: Path, experiment: Experiment) -> None:
    outcome = perform(world, folder, experiment)
    assert outcome.killed == len(experiment.kills), "a process came to its end without being killed"
    assert outcome.good, f"{experiment.name}: {outcome.said}"


def turned(number: int, point: str) -> Experiment:
    """Another way and shape with each number, so that a short list meets all of them."""
    build, durability, is_async = WAYS[number * 7 % len(WAYS)]
    if durability == "exit" and point.startswith(("put", "commit")):
        durability = "async"  # "exit" stores too little to come by there
    shape = "one" if "renew" in point else list(SHAPES)[number % len(SHAPES)]
    return Experiment(build=build, durability=durability, is_async=is_async, shape=shape)


@pytest.mark.parametrize("is_async", [False, True], ids=["invoke", "ainvoke"])
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("build", BUILDS)
def test_finished_calls_are_served_from_the_ledger(
    world: World, tmp_path: Path, build: str, durability: str, is_async: bool
) -> None:
    """Killed after the tools finished and before the next step: nothing is called again."""
    experiment = Experiment(
        build=build,
        durability=durability,
        is_async=is_async,
        shape="three",
        kills=(("tools.done", 1),),
    )
    outcome = perform(world, tmp_path, experiment)
    assert outcome.killed == 1
    assert outcome.good, outcome.said
    assert outcome.replays == len(SHAPES["three"])
    assert outcome.questions == 0
    assert "tool.before" not in outcome.hits


def test_a_plain_saver_repeats_them(world: World, tmp_path: Path) -> None:
    """The experiment would see a duplicate if there were one."""
    experiment = Experiment(saver="sqlite", shape="three", kills=(("tools.done", 1),))
    assert perform(world, tmp_path, experiment).duplicates == len(SHAPES["three"])


def test_the_table_shows_both_savers_beside_each_other() -> None:
    kills = (("tools.done", 1),)
    ours, theirs = (Experiment(saver=saver, kills=kills) for saver in ("resilient", "sqlite"))
    text = table([(ours, Outcome(killed=1)), (theirs, Outcome(killed=1, duplicates=3))])
    [row] = [line for line in text.splitlines() if line.startswith("tools.done")]
    assert [side.split() for side in row.split("|")[1:]] == [list("11000"), list("11300")]


@pytest.mark.parametrize(("number", "kill"), [*enumerate(ONCE)], ids=str)
def test_a_kill_at_any_moment_leaves_each_effect_once(
    world: World, tmp_path: Path, number: int, kill: tuple[str, int]
) -> None:
    check(world, tmp_path, replace(turned(number, kill[0]), kills=(kill,)))


@pytest.mark.parametrize(("number", "kills"), [*enumerate(TWICE)], ids=str)
def test_a_kill_while_an_unknown_outcome_is_cleared_up_changes_nothing(
    world: World, tmp_path: Path, number: int, kills: tuple[tuple[str, int], ...]
) -> None:
    check(world, tmp_path, replace(turned(number, kills[-1][0]), kills=kills))


@pytest.mark.parametrize(("number", "kill"), [*enumerate(DECIDED)], ids=str)
def test_a_kill_while_an_operator_decides_changes_nothing(
    world: World, tmp_path: Path, number: int, kill: tuple[str, int]
) -> None:
    experiment = turned(number, kill[0])
    check(world, tmp_path, replace(experiment, kills=(("effect.taken", 1), kill), operator=True))


@pytest.mark.parametrize("is_async", [False, True], ids=["invoke", "ainvoke"])
@pytest.mark.parametrize("point", ["effect.taken", "tool.after", "tools.done"])
def test_a_node_that_tells_errors_to_the_model_repeats_nothing(
    world: World, tmp_path: Path, point: str, is_async: bool
) -> None:
    """``handle_tool_errors=True`` must not turn a question or a refusal into a tool message."""
    experiment = Experiment(build="toolnode", shape="three", is_async=is_async, errors_told=True)
    check(world, tmp_path, replace(experiment, kills=((point, 1),)))


# --- the whole matrix -------------------------------------------------------------------------


@pytest.mark.campaign
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("is_async", [False, True], ids=["invoke", "ainvoke"])
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("build", BUILDS)
def test_every_moment(
    world: World, tmp_path: Path, build: str, durability: str, is_async: bool
) -> None:
    way, wrong = (build, durability, is_async), []
    for sweep in sweeps():
        base = sweep.base
        if base.saver != "resilient" or (base.build, base.durability, base.is_async) != way:
            continue
        for experiment, outcome in sweep.run(world, tmp_path):
            if not outcome.good:
                wrong.append(f"{experiment.name}: {outcome.said}")
    assert not wrong, "\n".join(wrong)
