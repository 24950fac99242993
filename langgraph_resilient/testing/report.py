"""What a sweep found: one line for each kill, as a table and as JSON."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

_COLUMNS = ("kills", "ok", "repeated", "lost", "differ", "asked")
_SHOWN = 20
"""Failed kills that a table tells in full."""


@dataclass(kw_only=True)
class Kill:
    """One process that was killed, and what became of its run.

    Attributes:
        point: the moment of death; see `langgraph_resilient.testing.POINTS`.
        hit: at which time it was reached, from 1.
        durability: LangGraph's.
        outcome: ``resumed`` (killed, and brought to its end), ``not reached`` (the run ended before
            the moment came, which chance may bring), ``failed`` (a process ended with an error) or
            ``hung`` (it did not end in time).
        repeated: effects beyond those of the undisturbed run, by name.
        allowed: the same, where the tool's effect class, or who answered, lets it be repeated.
        lost: effects that the undisturbed run has and this one has not, by name.
        differences: where the final state is not the undisturbed run's.
        problems: what else is not as it must be.
        questions: how often somebody had to decide about a call, or to answer an interrupt.
        replayed: how many recorded results of tools were given back in the process that ended the
            run.
        first: the moments, each with its number, at which the run had been killed before.
    """

    point: str
    hit: int
    durability: str
    outcome: str = "resumed"
    repeated: dict[str, int] = field(default_factory=dict)
    allowed: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    questions: int = 0
    replayed: int = 0
    first: tuple[tuple[str, int], ...] = ()

    @property
    def moment(self) -> tuple[str, int]:
        """The point and the time."""
        return self.point, self.hit

    @property
    def ok(self) -> bool:
        """Whether everything is as if nothing had happened."""
        wrong = self.repeated or self.lost or self.differences or self.problems
        return self.outcome in ("resumed", "not reached") and not wrong

    def __str__(self) -> str:
        moments = " > ".join(f"{point} * {hit}" for point, hit in (*self.first, self.moment))
        said = [f"{moments} ({self.durability}): {self.outcome}"]
        said += [f"{name} was repeated {count}x" for name, count in self.repeated.items()]
        said += [f"{name} was lost {count}x" for name, count in self.lost.items()]
        return "; ".join([*said, *self.problems, *self.differences])


@dataclass(kw_only=True)
class SweepReport:
    """What became of a graph that was killed at each of its moments.

    Attributes:
        kills: one for each moment and time.
        hits: how often the undisturbed run came by each moment, by durability.
        effects: its effects, by name.
        state: its final state, in the form that states are compared in.
    """

    kills: list[Kill] = field(default_factory=list)
    hits: dict[str, dict[str, int]] = field(default_factory=dict)
    effects: dict[str, int] = field(default_factory=dict)
    state: Any = None

    @property
    def ok(self) -> bool:
        """Whether there was a kill, and every one ended as if it had not been."""
        return any(kill.outcome == "resumed" for kill in self.kills) and not self.failures

    @property
    def failures(self) -> list[Kill]:
        """The kills that did harm."""
        return [kill for kill in self.kills if not kill.ok]

    def table(self) -> str:
        """Counts by the moment of death, and what went wrong below."""
        rows: dict[str, Counter[str]] = defaultdict(Counter)
        for kill in self.kills:
            for name in (kill.point, "all"):
                rows[name].update(_counted(kill))
        width = max(map(len, [*rows, "killed at"]))
        lines = [f"{'killed at':{width}}" + "".join(f"{column:>10}" for column in _COLUMNS)]
        for name in sorted(rows, key=lambda name: name == "all"):
            cells = (f"{rows[name][column]:>10}" for column in _COLUMNS)
            lines.append(f"{name:{width}}" + "".join(cells))
        failed = self.failures
        lines += [f"WRONG {kill}" for kill in failed[:_SHOWN]]
        if len(failed) > _SHOWN:
            lines.append(f"… and {len(failed) - _SHOWN} more")
        return "\n".join(lines)

    def to_json(self, **options: Any) -> str:
        """Everything, for other programs.

        Args:
            **options: for ``json.dumps``, such as ``indent=1``.
        """
        kills = [{**asdict(kill), "ok": kill.ok} for kill in self.kills]
        whole = {**asdict(self), "ok": self.ok, "kills": kills}
        return json.dumps(whole, **options)


def _counted(kill: Kill) -> Mapping[str, int]:
    return {
        "kills": int(kill.outcome != "not reached"),
        "ok": int(kill.ok and kill.outcome != "not reached"),
        "repeated": sum(kill.repeated.values()),
        "lost": sum(kill.lost.values()),
        "differ": int(bool(kill.differences or kill.problems)),
        "asked": kill.questions,
    }
