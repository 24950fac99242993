"""What the package promises for fifty rounds of dialogue under each snapshot policy; kept or missed.

Two limits each: the one that was asked for, and our own, narrower one. Pure functions of figures.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.requirements import ROUGHLY

POLICIES = ("ours", "ours+rounds3", "ours+aftertools")
RIVAL = "sqlite"

Repetitions = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
"""(workload, saver) → the figures of each repetition."""
Grown = Mapping[tuple[str, str], Mapping[str, Any]]
"""(workload, saver) → what the witnessed run found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One promise: what was measured beside its limits. Without a figure it is not kept.

    Attributes:
        what: what is promised.
        saver: the entry it is promised of.
        value: what was measured; None where it was not.
        asked: the limit that was asked for, None where only ours holds.
        ours: the limit that we set ourselves.
        unit: of value and limits: bytes, s, or × for a ratio.
        rival: the same of `SqliteSaver` in the same run, for reading a busy machine's times.
    """

    what: str
    saver: str
    value: float | None
    asked: float | None
    ours: float
    unit: str
    rival: float | None = None

    @property
    def result(self) -> str:
        """``kept``, ``missed (asked for)``, ``missed (our own)``, or ``not measured``."""
        if self.value is None:
            return "not measured"
        if self.asked is not None and self.value >= self.asked:
            return "missed (asked for)"
        return "kept" if self.value <= self.ours else "missed (our own)"


def median(found: Sequence[Mapping[str, Any]], metric: str) -> float | None:
    """Return the median of a figure over the repetitions that have it."""
    values = [figures[metric] for figures in found if metric in figures]
    return statistics.median(values) if values else None


def ratio(
    ours: Sequence[Mapping[str, Any]], rival: Sequence[Mapping[str, Any]], metric: str
) -> float | None:
    """Return the median over the repetitions of ours by the rival's, which ran beside it."""
    pairs = [
        (mine[metric], other[metric])
        for mine, other in zip(ours, rival, strict=False)
        if metric in mine and other.get(metric)
    ]
    return statistics.median(mine / other for mine, other in pairs) if pairs else None


def promises(timed: Repetitions, grown: Grown, floors: Mapping[str, int]) -> list[Promise]:
    """Return the promises that the figures speak of."""
    found = [
        promise
        for saver in POLICIES
        if ("short", saver) in timed
        for promise in _fifty_rounds(saver, timed, grown)
    ]
    if ("real", "ours") in timed and "real" in floors:
        found += _real(timed["real", "ours"], floors["real"])
    return found


def _fifty_rounds(saver: str, timed: Repetitions, grown: Grown) -> Iterator[Promise]:
    found = timed["short", saver]
    rival = timed.get(("short", RIVAL), ())
    new = grown.get(("short", saver), {}).get("new")
    their_new = grown.get(("short", RIVAL), {}).get("new")
    yield Promise(
        what="new data of the largest checkpoint",
        saver=saver,
        value=max(new) if new else None,
        asked=500e3,
        ours=20e3,
        unit="bytes",
        rival=max(their_new) if their_new else None,
    )
    rows: list[tuple[str, str, float, float, str]] = [
        ("writing a checkpoint, p99", "put_p99", 0.1, 0.01, "s"),
        ("writing a checkpoint, the slowest", "put_max", 0.1, 0.1, "s"),
        ("whole database, closed", "size", 25e6, 0.55e6, "bytes"),
        ("whole database, open, its log included", "size_open", 25e6, 0.55e6, "bytes"),
        ("whole database after `compact`", "size_shrunk", 25e6, 0.3e6, "bytes"),
    ]
    for what, metric, asked, ours, unit in rows:
        yield Promise(
            what=what,
            saver=saver,
            value=median(found, metric),
            asked=asked,
            ours=ours,
            unit=unit,
            rival=median(rival, metric),
        )
    for what, metric in (
        ("restoring the last state beside `SqliteSaver`, warm", "get_warm"),
        ("restoring the last state beside `SqliteSaver`, new process", "get_cold"),
    ):
        value = ratio(found, rival, metric)
        yield Promise(what=what, saver=saver, value=value, asked=None, ours=ROUGHLY, unit="×")


def _real(found: Sequence[Mapping[str, Any]], floor: int) -> Iterator[Promise]:
    size = median(found, "size_shrunk")
    yield Promise(
        what="recorded conversations after `compact`, beside one zstd-19 stream a thread",
        saver="ours",
        value=None if size is None else size / floor,
        asked=None,
        ours=1.5,
        unit="×",
    )
    pairs = [
        figures["get_cold_shrunk"] / figures["get_cold"]
        for figures in found
        if "get_cold_shrunk" in figures
    ]
    yield Promise(
        what="reading in a new process after `compact`, beside before",
        saver="ours",
        value=statistics.median(pairs) if pairs else None,
        asked=None,
        ours=ROUGHLY,
        unit="×",
    )
