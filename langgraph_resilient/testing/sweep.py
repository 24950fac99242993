"""Kills a graph at every moment of its run, resumes it, and compares: is it as if nothing had been?"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from langgraph_resilient.errors import ConfigurationError
from langgraph_resilient.saver import ResilientSaver
from langgraph_resilient.testing.effects import EffectLog, LoggedEffect
from langgraph_resilient.testing.faults import KILLED, chosen
from langgraph_resilient.testing.life import Life, Plan
from langgraph_resilient.testing.report import Kill, SweepReport
from langgraph_resilient.testing.states import differences

logger = logging.getLogger(__name__)

Effects: TypeAlias = "EffectLog | Callable[[], Mapping[str, int]] | None"
Durability = Literal["sync", "async", "exit"]
Mode = Literal["invoke", "ainvoke", "stream", "astream"]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The rarer options of `crash_sweep`.

    Attributes:
        saver: makes the saver from a path, as a context manager.
        normalize: takes out of the state's values what differs from run to run anyway, such as
            times; ids of messages are left out by themselves.
        may_repeat: names of effects that do no harm when they happen again. Those of tools that are
            ``pure`` or ``idempotent`` are known.
        check: looks at the saver and the state's values at the end of a run, in its process, and
            says what is not as it must be, a line for each.
        first: moments, each with its number, at which the run is killed before. Then it is the run
            that resumes it that is killed wherever it comes by: while a crash is cleared up, say.
        before_resume: what somebody does with the saver before a run is resumed, such as deciding
            about unknown outcomes; it may be killed there, too.
        only: whether to kill at a moment, from its name and number; None: at all.
        most: how often to kill at one point, at the most; None: each time that it is reached.
        timeout: seconds for each process.
        start: how children start; by default ``fork`` where there is one. With ``spawn`` all that
            is given must be importable by name.
        folder: where databases are made; by default a temporary one.
    """

    saver: Callable[[str], Any] = ResilientSaver.from_conn_string
    normalize: Callable[[Any], Any] | None = None
    may_repeat: Collection[str] = ()
    check: Callable[[Any, Any], Iterable[str]] | None = None
    first: Sequence[tuple[str, int]] = ()
    before_resume: Callable[[Any], None] | None = None
    only: Callable[[str, int], bool] | None = None
    most: int | None = None
    timeout: float = 60.0
    start: Literal["fork", "spawn"] | None = None
    folder: str | os.PathLike[str] | None = None

    @property
    def shared(self) -> dict[str, Any]:
        """What all processes have to know of it."""
        names = ("saver", "normalize", "check", "before_resume")
        return {name: getattr(self, name) for name in names}

    def wants(self, point: str, hit: int) -> bool:
        """Whether to kill at this moment."""
        few = self.most is None or hit <= self.most
        return few and (self.only is None or self.only(point, hit))

    @property
    def method(self) -> str:
        """How children start."""
        kinds = multiprocessing.get_all_start_methods()
        return self.start or ("fork" if "fork" in kinds else "spawn")


def crash_sweep(
    graph_factory: Callable[[Any], Any],
    input: Any,
    *,
    config: Mapping[str, Any] | None = None,
    points: Iterable[str] | None = None,
    durability: Durability | Sequence[Durability] = ("sync",),
    mode: Mode = "invoke",
    answer: Callable[[Any], Any] | None = None,
    effects: Effects = None,
    **setup: Any,
) -> SweepReport:
    """Kill a graph at every fault point it comes by, resume each run, and compare.

    The graph runs undisturbed in a child process. Then, for each fault point and each time it was
    reached, a child on a database of its own is killed there by SIGKILL, another one resumes the run
    until it ends, and a third one resumes it once more. Final state and effects must be those of the
    undisturbed run; each tool call must have one tool message, with the recorded result; what was
    shown of a streamed answer must begin it; the third process must change nothing.

    Args:
        graph_factory: makes the compiled graph from a saver, in each child; may be a coroutine
            function where ``mode`` is.
        input: what the first run is given.
        config: a run config; its thread is the same in all runs.
        points: fault points, or patterns such as ``"put*"``; None for all. See `POINTS`, `fault_point`.
        durability: LangGraph's, one or several.
        mode: how the graph is run; ``stream`` and ``astream`` ask models for their pieces.
        answer: what a human says to an interrupt, from its value; None leaves it open. Without it, a
            question of the ledger is answered truthfully from the effect log.
        effects: an `EffectLog` that the tools write to (it is emptied before every run), or a
            function that tells how often each effect has happened so far; None: none are compared.
        **setup: see `Setup`.

    Raises:
        ConfigurationError: a point fits nothing, the undisturbed run fails, or two of them differ.
    """
    options = Setup(**setup)
    plan = Plan(
        graph_factory=graph_factory,
        input=input,
        config=_on_a_thread(config or {}),
        mode=mode,
        answer=answer,
        effects=effects if isinstance(effects, EffectLog) else None,
        **options.shared,
    )
    return _swept(_Workshop(plan=plan, effects=effects, setup=options), durability, points)


def _on_a_thread(config: Mapping[str, Any]) -> dict[str, Any]:
    configurable = {"thread_id": "crash-sweep", **config.get("configurable", {})}
    return {**config, "configurable": configurable}


def assert_crash_safe(
    graph_factory: Callable[[Any], Any], input: Any, **options: Any
) -> SweepReport:
    """`crash_sweep` for tests: fails when a kill did harm.

    Args:
        graph_factory: see `crash_sweep`.
        input: see `crash_sweep`.
        **options: see `crash_sweep`.

    Raises:
        AssertionError: with the report's table.
    """
    __tracebackhide__ = True
    report = crash_sweep(graph_factory, input, **options)
    if not report.ok:
        harm = f"{len(report.failures)} of {len(report.kills)} kills did harm"
        raise AssertionError(f"{harm if report.kills else 'nothing was killed'}\n{report.table()}")
    return report


def _swept(
    workshop: _Workshop, durability: str | Sequence[str], points: Iterable[str] | None
) -> SweepReport:
    report, setup = SweepReport(), workshop.setup
    patterns = None if points is None else list(points)
    for one in (durability,) if isinstance(durability, str) else durability:
        calm = workshop.calm(one)
        report.hits[one] = calm.report["hits"]
        report.effects, report.state = dict(calm.counts), calm.report["state"]["values"]
        hits = workshop.resumed(one, calm) if setup.first else calm.report["hits"]
        moments = [moment for moment in chosen(hits, patterns) if setup.wants(*moment)]
        for number, (point, hit) in enumerate(moments, 1):
            kill = Kill(point=point, hit=hit, durability=one, first=tuple(setup.first))
            workshop.kill(kill, calm)
            report.kills.append(kill)
            logger.info("crash_sweep, kill %d of %d: %s", number, len(moments), kill)
    return report


@dataclass(kw_only=True)
class _Run:
    """What a run has left behind.

    Attributes:
        report: of the process that ended it.
        counts: its effects, by name.
        log: its effects in full, where there is a log.
        keys_hold: whether its effects had the same keys in another undisturbed run.
    """

    report: dict[str, Any] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    log: list[LoggedEffect] = field(default_factory=list)
    keys_hold: bool = False

    @property
    def keys(self) -> Counter[tuple[str, str | None]]:
        return Counter((effect.name, effect.key) for effect in self.log)

    def truths(self) -> list[dict[str, Any]]:
        """Its recorded calls, and how many effects each had."""
        return [
            {**entry, "effects": sum(entry["key"] in effect.call for effect in self.log)}
            for entry in self.report["entries"]
        ]


class _Hung(Exception):
    """A process did not end in time."""


class _Failed(Exception):
    """A process ended with an error."""

    def __init__(self, who: str, code: int, report: Mapping[str, Any]):
        super().__init__(f"{who} ended with {code}: {report.get('error', 'no report')}")


@dataclass(kw_only=True)
class _Workshop:
    """Starts the processes of a sweep and looks at what they leave; see `crash_sweep`."""

    plan: Plan
    effects: Effects
    setup: Setup

    def calm(self, durability: str) -> _Run:
        """The undisturbed run; two of them, to know what is the same in each.

        Raises:
            ConfigurationError: it fails, or the two differ.
        """
        first, second = self._calm(durability), self._calm(durability, "again")
        differing = differences(first.report["state"], second.report["state"])
        if first.counts != second.counts:
            differing.append(f"effects are {dict(first.counts)} and {dict(second.counts)}")
        if differing:
            raise ConfigurationError(
                "two undisturbed runs differ, so that a crash could not be told from chance: "
                f"{'; '.join(differing)}. Take chance out of the graph, or pass normalize="
            )
        first.keys_hold = first.keys == second.keys
        return first

    def _calm(self, durability: str, name: str = "calm") -> _Run:
        with self._experiment(durability) as (life, before):
            code, report = self._process(replace(life, name=name, fresh=True))
            wrong = report.get("error") or "; ".join(report.get("problems", ()))
            if code != 0 or wrong:
                raise ConfigurationError(
                    f"the undisturbed run does not come to a good end: {wrong or code}\n"
                    f"{report.get('traceback', '')}"
                )
            return self._seen(report, before)

    def kill(self, kill: Kill, calm: _Run) -> None:
        """Kill a run as a `Kill` says, and write into it what became of the run."""
        with self._experiment(kill.durability) as (life, before):
            life.truths = calm.truths()
            try:
                self._compare(kill, calm, self._killed(kill, life, before))
            except (_Hung, _Failed) as error:
                kill.outcome = "hung" if isinstance(error, _Hung) else "failed"
                kill.problems.append(str(error))

    def _killed(self, kill: Kill, life: Life, before: Mapping[str, int]) -> _Run:
        """The run, killed and resumed.

        Raises:
            _Failed, _Hung: a process did not do its part.
        """
        early = self._die(life, (*kill.first, kill.moment))
        if early is not None:
            kill.outcome = "not reached"
            return self._seen(early, before)
        code, report = self._process(replace(life, name="resumed"))
        if code != 0:
            raise _Failed("the process that resumed it", code, report)
        found = self._seen(report, before)
        kill.replayed = report["hits"].get("ledger.replay", 0)
        if not report["state"]["interrupts"]:
            code, again = self._process(replace(life, name="again"))
            if code != 0:
                raise _Failed("the process that resumed it again", code, again)
            kill.problems += [
                f"resumed once more: {line}"
                for what in ("state", "entries")
                for line in differences(report[what], again[what], what)
            ]
            if (more := self._seen(again, before).counts - found.counts) != Counter():
                kill.problems.append(f"resumed once more, there were more effects: {dict(more)}")
        return found

    def _die(self, life: Life, moments: Iterable[tuple[str, int]]) -> dict[str, Any] | None:
        """Run it, and resume it, to one death after the other; the report, if it ended before.

        Raises:
            _Failed, _Hung: a process ended in another way.
        """
        for number, (point, hit) in enumerate(moments):
            name = f"killed-{number}"
            dying = replace(life, name=name, fresh=not number, point=point, hit=hit)
            code, report = self._process(dying)
            if code == 0:
                return report
            if code != KILLED:
                raise _Failed("the process to be killed", code, report)
        return None

    def resumed(self, durability: str, calm: _Run) -> dict[str, int]:
        """How often each moment is reached by a run that resumes one killed at the first moments.

        Raises:
            ConfigurationError: it was not killed there, or was not resumed.
        """
        first = self.setup.first
        with self._experiment(durability) as (life, _):
            life.truths = calm.truths()
            try:
                if self._die(life, first) is None:
                    code, report = self._process(replace(life, name="resumed"))
                    if code == 0:
                        found: dict[str, int] = report["hits"]
                        return found
                    raise _Failed("the process that resumed it", code, report)
                why = "it ended before one of them came"
            except (_Hung, _Failed) as error:
                why = str(error)
        moments = " > ".join(f"{point} * {hit}" for point, hit in first)
        raise ConfigurationError(f"no run can be killed at first={moments} and resumed: {why}")

    def _compare(self, kill: Kill, calm: _Run, found: _Run) -> None:
        report = found.report
        kill.questions = report["questions"]
        kill.differences = differences(calm.report["state"], report["state"])
        kill.problems += report["problems"]
        if not calm.report["unequal"]:
            kill.problems += report["unequal"]
        repeated, lost = compared(calm.keys_hold, calm, found)
        fine = {*self.setup.may_repeat} | _lenient(found)
        kill.repeated = {name: n for name, n in repeated.items() if name not in fine}
        kill.allowed = {name: n for name, n in repeated.items() if name in fine}
        kill.lost = dict(lost)

    # --- processes and effects ----------------------------------------------------------------

    @contextmanager
    def _experiment(self, durability: str) -> Iterator[tuple[Life, Mapping[str, int]]]:
        """A folder of its own, and the effects before it."""
        before: Mapping[str, int] = {}
        if isinstance(self.effects, EffectLog):
            self.effects.clear()
        elif self.effects is not None:
            before = dict(self.effects())
        with tempfile.TemporaryDirectory(prefix="sweep-", dir=self.setup.folder) as own:
            yield Life(plan=self.plan, durability=durability, folder=own, name=""), before

    def _process(self, life: Life) -> tuple[int, dict[str, Any]]:
        """Exit code and report of a process.

        Raises:
            _Hung: it did not end; it was killed.
        """
        context: Any = multiprocessing.get_context(self.setup.method)
        process = context.Process(target=life.main, name=f"crash-sweep-{life.name}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # 3.12+: fork with other threads
            process.start()
        try:
            process.join(self.setup.timeout)
            code = process.exitcode
        finally:
            if process.exitcode is None:
                process.kill()
                process.join()
            process.close()
        if code is None:
            raise _Hung(f"a process ({life.name}) did not end in {self.setup.timeout:g} s")
        path = Path(life.report)
        return code, json.loads(path.read_text()) if path.exists() else {}

    def _seen(self, report: dict[str, Any], before: Mapping[str, int]) -> _Run:
        if isinstance(self.effects, EffectLog):
            log = self.effects.entries()
            return _Run(report=report, log=log, counts=Counter(effect.name for effect in log))
        now = {} if self.effects is None else self.effects()
        return _Run(report=report, counts=Counter(now) - Counter(before))


def compared(keys_hold: bool, calm: _Run, found: _Run) -> tuple[Counter[str], Counter[str]]:
    """Effects that happened too often, and those that did not happen, by name.

    Args:
        keys_hold: whether equal effects have equal keys in every run.
        calm: the undisturbed run.
        found: the one that was killed.
    """
    repeated, lost = found.counts - calm.counts, calm.counts - found.counts
    by_key: Counter[str] = Counter()
    if keys_hold:
        for (name, _), count in (found.keys - calm.keys).items():
            by_key[name] += count
    else:
        usual: Counter[str] = Counter()
        for (name, _), count in calm.keys.items():
            usual[name] = max(usual[name], count)
        for (name, key), count in found.keys.items():
            if key is not None and count > usual[name]:
                by_key[name] += count - max(usual[name], 1)
    for name, count in by_key.items():
        repeated[name] = max(repeated[name], count)
        missing = calm.counts[name] + count - found.counts[name]
        lost[name] = max(lost[name], missing)
    return +repeated, +lost


def _lenient(run: _Run) -> set[str]:
    """Effects of calls that may run again: by their effect class, or by somebody's word.

    What a recorded call does inside one that may run again is not done again.
    """
    entries = run.report["entries"]
    may = {entry["key"] for entry in entries if entry["effect"] in ("pure", "idempotent")}
    may |= set(run.report["retried"])
    return {effect.name for effect in run.log if may & set(effect.call[:1])}
