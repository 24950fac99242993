"""SIGKILL around tool calls with real effects: none happens twice, none is lost, all are answered.

What happens by default is a part of the matrix that `ledger_matrix` holds; the whole of it is
``pytest -m campaign tests/crash/test_ledger_crash.py``, or ``python -m tests.crash.ledger_matrix``
for a table beside plain `SqliteSaver`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from effects import servers
from ledger_agents import BUILDS, SHAPES
from ledger_matrix import swept, table, ways
from ledger_runs import DURABILITIES, Moments, Way
from worldlog import WorldLog

from langgraph_resilient.testing import Kill, SweepReport

WAYS = list(product(BUILDS, DURABILITIES, (False, True)))
ONCE: list[tuple[str, int]] = [
    ("ledger.begin.before", 1),
    ("ledger.commit", 1),
    ("ledger.commit", 2),
    ("ledger.begin.after", 1),
    ("tool.before", 1),
    ("effect.before", 1),
    ("effect.refused", 1),
    ("effect.taken", 1),
    ("effect.after", 1),
    ("tool.after", 1),
    ("ledger.settle.before", 1),
    ("ledger.settle.after", 1),
    ("put_writes.before", 1),
    ("put_writes.commit", 1),
    ("put_writes.after", 1),
    ("put.before", 1),
    ("put.before", 2),
    ("put.commit", 1),
    ("put.commit", 2),
    ("put.after", 1),
    ("put.after", 2),
    ("model", 2),
    ("lease.renew.before", 1),
    ("lease.commit", 2),
    ("lease.renew.after", 1),
]
"""Moments that every run comes by."""
TWICE: list[tuple[tuple[str, int], tuple[str, int]]] = [
    (("effect.before", 1), ("ledger.resolve.before", 1)),
    (("effect.before", 1), ("ledger.resolve.after", 1)),
    (("effect.before", 1), ("put_writes.before", 1)),
    (("effect.before", 1), ("answer", 1)),
    (("effect.before", 1), ("ledger.resolve.before", 2)),
    (("effect.before", 1), ("ledger.resolve.after", 2)),
    (("effect.before", 1), ("lease.commit", 1)),
    (("effect.before", 1), ("ledger.begin.after", 1)),
    (("effect.before", 1), ("effect.taken", 1)),
    (("effect.before", 1), ("ledger.settle.before", 1)),
    (("effect.before", 1), ("lease.renew.after", 1)),
    (("effect.taken", 1), ("ledger.resolve.before", 2)),
    (("effect.taken", 1), ("ledger.resolve.after", 2)),
    (("tools.done", 1), ("ledger.replay", 1)),
]
"""A death, and another one while its traces are cleared up."""
DECIDED: list[tuple[str, int]] = [
    ("ledger.resolve.before", 1),
    ("ledger.resolve.after", 1),
    ("ledger.commit", 1),
]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorldLog]:
    with servers(tmp_path_factory.mktemp("world")) as world:
        yield WorldLog(world)


def killed(log: WorldLog, folder: Path, way: Way, moment: tuple[str, int]) -> Kill:
    """The one kill of a way at one moment."""
    [kill] = way.sweep(log, folder, only=lambda point, hit: (point, hit) == moment).kills
    assert kill.outcome == "resumed", f"{way.name}: {kill}"
    return kill


def check(log: WorldLog, folder: Path, way: Way, moment: tuple[str, int]) -> None:
    kill = killed(log, folder, way, moment)
    assert kill.ok, f"{way.name}: {kill}"


def turned(number: int, point: str, *, first: Moments = (), operator: bool = False) -> Way:
    """Another way and shape with each number, so that a short list meets all of them."""
    build, durability, is_async = WAYS[number * 7 % len(WAYS)]
    if durability == "exit" and point.startswith("put"):
        durability = "async"  # "exit" stores too little to come by there
    long = point.startswith("lease.renew") or (point == "lease.commit" and not first)
    return Way(
        build=build,
        durability=durability,
        is_async=is_async,
        shape="one" if long else list(SHAPES)[number % len(SHAPES)],
        first=first,
        operator=operator,
        long=long,
    )


@pytest.mark.parametrize("is_async", [False, True], ids=["invoke", "ainvoke"])
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("build", BUILDS)
def test_finished_calls_are_served_from_the_ledger(
    log: WorldLog, tmp_path: Path, build: str, durability: str, is_async: bool
) -> None:
    """Killed after the tools finished and before the next step: nothing is called again."""
    way = Way(build=build, durability=durability, is_async=is_async, shape="three")
    kill = killed(log, tmp_path, way, ("tools.done", 1))
    assert kill.ok, str(kill)
    assert kill.replayed == len(SHAPES["three"])
    assert kill.questions == 0


def test_a_plain_saver_repeats_them(log: WorldLog, tmp_path: Path) -> None:
    """The experiment would see a duplicate if there were one."""
    way = Way(saver="sqlite", shape="three")
    kill = killed(log, tmp_path, way, ("tools.done", 1))
    assert sum(kill.repeated.values()) == len(SHAPES["three"])


def test_the_table_shows_both_savers_beside_each_other() -> None:
    ours = Kill(point="tools.done", hit=1, durability="async")
    theirs = Kill(point="tools.done", hit=1, durability="async", repeated={"mail hello": 3})
    results = [
        (Way(saver=saver), SweepReport(kills=[kill]))
        for saver, kill in (("resilient", ours), ("sqlite", theirs))
    ]
    [row] = [line for line in table(results).splitlines() if line.startswith("tools.done")]
    assert [side.split() for side in row.split("|")[1:]] == [list("1000"), list("1300")]


@pytest.mark.parametrize(("number", "moment"), [*enumerate(ONCE)], ids=str)
def test_a_kill_at_any_moment_leaves_each_effect_once(
    log: WorldLog, tmp_path: Path, number: int, moment: tuple[str, int]
) -> None:
    check(log, tmp_path, turned(number, moment[0]), moment)


@pytest.mark.parametrize(("number", "moments"), [*enumerate(TWICE)], ids=str)
def test_a_kill_while_an_unknown_outcome_is_cleared_up_changes_nothing(
    log: WorldLog, tmp_path: Path, number: int, moments: Moments
) -> None:
    first, moment = moments
    check(log, tmp_path, turned(number, moment[0], first=(first,)), moment)


@pytest.mark.parametrize(("number", "moment"), [*enumerate(DECIDED)], ids=str)
def test_a_kill_while_an_operator_decides_changes_nothing(
    log: WorldLog, tmp_path: Path, number: int, moment: tuple[str, int]
) -> None:
    way = turned(number, moment[0], first=(("effect.taken", 1),), operator=True)
    check(log, tmp_path, way, moment)


@pytest.mark.parametrize("is_async", [False, True], ids=["invoke", "ainvoke"])
@pytest.mark.parametrize("point", ["effect.taken", "effect.after", "tools.done"])
def test_a_node_that_tells_errors_to_the_model_repeats_nothing(
    log: WorldLog, tmp_path: Path, point: str, is_async: bool
) -> None:
    """``handle_tool_errors=True`` must not turn a question or a refusal into a tool message."""
    way = Way(build="toolnode", shape="three", is_async=is_async, errors_told=True)
    check(log, tmp_path, way, (point, 1))


# --- the whole matrix -------------------------------------------------------------------------


@pytest.mark.campaign
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("is_async", [False, True], ids=["invoke", "ainvoke"])
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("build", BUILDS)
def test_every_moment(
    log: WorldLog, tmp_path: Path, build: str, durability: str, is_async: bool
) -> None:
    wrong = [
        f"{way.name}: {kill}"
        for way in ways()
        if way.saver == "resilient"
        and (way.build, way.durability, way.is_async) == (build, durability, is_async)
        for kill in swept(log, tmp_path, way).failures
    ]
    assert not wrong, "\n".join(wrong)
