"""Five model calls, three tool calls, SIGKILL: the resumed run ends as the undisturbed one.

Twenty runs by default, killed at moments spread over the whole run; two hundred, some of them killed
twice, by ``pytest -m campaign tests/crash/test_seed_recovery.py``. Figures are printed (``-rP``).
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from seed_runs import BUILDS, MODEL_CALLS, TOOL_CALLS, WAYS, Found, Kill, Way, perform

THIRD: Kill = ("journal.end.after", 3)
"""Model call three has ended and nobody has its answer but the journal and this process."""
DEFAULT_RUNS, CAMPAIGN_RUNS = 20, 200
Undisturbed = Callable[[Way], Found]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """The run that nobody kills, for each way; made when it is asked for."""
    known: dict[Way, Found] = {}

    def of(way: Way) -> Found:
        if way not in known:
            known[way] = perform(way, tmp_path_factory.mktemp("undisturbed"))
        return known[way]

    return of


def assert_whole(found: Found, what: str) -> None:
    """The run ended as it must, and nothing that had ended was done again."""
    assert not found.wrong, f"{what}: {'; '.join(found.wrong)}"
    repeated = (found.repeated_model_calls, found.repeated_tool_calls)
    assert repeated == (0, 0), f"{what}: model calls, tool calls repeated: {repeated}"


def summary(runs: Iterable[Found], whole: int) -> str:
    """The figures of some runs.

    Args:
        runs: the runs.
        whole: tokens of an undisturbed run.
    """
    runs = list(runs)
    finished, saved = (sum(getattr(r, f"tokens_{n}") for r in runs) for n in ("finished", "saved"))
    after = sum(run.tokens_after for run in runs)
    times = sorted(run.resume_ms for run in runs if run.resume_ms is not None) or [0.0]
    cpu = [run.resume_cpu_ms for run in runs if run.resume_ms is not None] or [0.0]
    return (
        f"{len(runs)} runs, {sum(run.killed for run in runs)} kills: "
        f"{saved:,} of {finished:,} finished tokens saved ({saved / max(finished, 1):.0%}); the "
        f"resumed process paid {after / whole / len(runs):.0%} of a whole run; opening the saver to "
        f"the first new model call: median {statistics.median(times):.1f} ms, most {times[-1]:.1f} ms "
        f"(processor time: median {statistics.median(cpu):.1f} ms)"
    )


def spread(count: int, undisturbed: Undisturbed, *, twice: int = 0) -> list[tuple[Way, list[Kill]]]:
    """Runs, each killed at another moment between the first and the last of its way.

    Args:
        count: how many.
        undisturbed: tells the moments.
        twice: every so many of them are killed again while they resume.
    """
    planned = []
    dice = random.Random(4)
    for number in range(count):
        way = WAYS[number * 5 % len(WAYS)]
        course = [one for one in undisturbed(way).course if _is_sure(way, one)]
        kills = [course[int((number + 0.5) / count * len(course))]]
        if twice and number % twice == 0:
            point, hit = dice.choice(course)
            kills.append((point, min(hit, 2)))  # a resumed run comes by fewer moments
        planned.append((way, kills))
    return planned


def _is_sure(way: Way, moment: Kill) -> bool:
    """Whether every run of its way comes by a moment.

    In "async" commits are shared by chance, and how often a tool call has to look whether its checkpoint
    is stored is chance, too.
    """
    point, hit = moment
    looks = point == "ledger.begin.before" and hit > TOOL_CALLS
    return way[1] != "async" or not (looks or point.endswith(".commit"))


def run_all(planned: list[tuple[Way, list[Kill]]], undisturbed: Undisturbed, folder: Path) -> None:
    found = []
    for number, (way, kills) in enumerate(planned):
        place = folder / str(number)
        place.mkdir()
        run = perform(way, place, kills, undisturbed(way))
        assert_whole(run, f"{way} {kills}")
        assert run.killed, f"{way} {kills}: the process ended without being killed"
        found.append(run)
    whole = statistics.mean(undisturbed(way).tokens_after for way in WAYS)
    print("\n" + summary(found, int(whole)))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way)))
def test_killed_after_the_third_model_call(
    way: Way, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    plain = undisturbed(way)
    assert (plain.model_calls, plain.tool_calls) == (MODEL_CALLS, TOOL_CALLS)
    found = perform(way, tmp_path, [THIRD], plain)
    assert_whole(found, str(way))
    assert found.killed == 1
    assert (found.model_calls, found.tool_calls) == (MODEL_CALLS, TOOL_CALLS)
    assert found.tokens_finished > 0
    assert found.tokens_saved >= 0.6 * found.tokens_finished  # what is required
    assert found.tokens_saved == found.tokens_finished  # what we hold ourselves to
    print("\n" + summary([found], plain.tokens_after))


@pytest.mark.parametrize("is_async", [False, True], ids=["invoke", "ainvoke"])
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize(("slow_from", "call"), [(1, 1), (2, 1), (2, 2), (4, 2)])
def test_answers_outlive_checkpoints_that_were_lost(
    undisturbed: Undisturbed,
    tmp_path: Path,
    slow_from: int,
    call: int,
    build: str,
    is_async: bool,
) -> None:
    """A run ahead of a slow database is killed: its checkpoints are gone, its calls are recorded.

    The resumed run stores them anew before it asks; they must not retire what it has not asked.
    (The third call comes behind an external tool, which waits for its checkpoint.)
    """
    way = (build, "async", is_async)
    kills = [("journal.end.after", call)]
    found = perform(way, tmp_path, kills, undisturbed(way), slow_from=slow_from)
    assert_whole(found, str(way))
    assert found.killed == 1
    assert (found.model_calls, found.tool_calls) == (MODEL_CALLS, TOOL_CALLS)


def test_killed_at_moments_spread_over_the_whole_run(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run_all(spread(DEFAULT_RUNS, undisturbed), undisturbed, tmp_path)


@pytest.mark.campaign
@pytest.mark.timeout(3000)
def test_killed_two_hundred_times(undisturbed: Undisturbed, tmp_path: Path) -> None:
    run_all(spread(CAMPAIGN_RUNS, undisturbed, twice=4), undisturbed, tmp_path)
