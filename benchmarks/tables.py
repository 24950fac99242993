"""Figures to Markdown: one table a workload, the promises, and who was left out. Pure functions."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.promises import Grown, Promise, Repetitions, median, ratio
from benchmarks.registry import Entry, installed

TITLES = {
    "short": "Chat with tools, {short_rounds} rounds, one thread",
    "chat": "Chat with tools, {rounds} rounds, one thread",
    "real": "Recorded agent conversations, each in its own thread, 40 at most",
    "crowd": "{crowd} threads of {crowd_rounds} rounds, all at once",
    "files": "An agent's file system: 30 files of 4 KB, one edited a step, {steps} steps",
    "picture": "A picture of {picture} characters of base64 in the first message, then 24 rounds",
}


def size(value: float) -> str:
    """Return bytes for a person."""
    if value < 1e6:
        return f"{value / 1e3:.1f} KB"
    return f"{value / 1e6:.2f} MB" if value < 1e8 else f"{value / 1e6:.0f} MB"


def seconds(value: float) -> str:
    """Return a time for a person."""
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.2f} ms"


def times(value: float) -> str:
    """Return a ratio for a person."""
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: a figure, how it is shown, and whether its ratio is, too."""

    title: str
    metric: str
    shown: Callable[[float], str]
    compared: bool = True


COLUMNS = (
    Column(title="disk, open", metric="size_open", shown=size),
    Column(title="disk, closed", metric="size", shown=size),
    Column(title="a checkpoint", metric="each", shown=size, compared=False),
    Column(title="put p50", metric="put_p50", shown=seconds),
    Column(title="put p99", metric="put_p99", shown=seconds, compared=False),
    Column(title="put_writes p50", metric="put_writes_p50", shown=seconds),
    Column(title="whole run", metric="wall", shown=seconds),
    Column(title="get, warm", metric="get_warm", shown=seconds),
    Column(title="get, new process", metric="get_cold", shown=seconds),
    Column(title="get_state, warm", metric="state_warm", shown=seconds),
    Column(title="list", metric="list", shown=seconds),
    Column(title="peak memory", metric="peak", shown=size),
)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(column: Column, found: Sequence[Mapping[str, Any]], beside: Any) -> str:
    value = median(found, column.metric)
    if value is None or (column.metric.startswith(("size", "each")) and not value):
        return "—"
    compared = ratio(found, beside, column.metric) if column.compared and beside else None
    return column.shown(value) + (f" ({times(compared)})" if compared is not None else "")


def _news(grown: Mapping[str, Any]) -> list[str]:
    new = grown.get("new")
    return [size(statistics.median(new)), size(max(new))] if new else ["—", "—"]


def _verdict(grown: Mapping[str, Any]) -> str:
    if "failed" in grown:
        return f"failed: {_plain(grown['failed'])}"
    if "wrong" not in grown:
        return "not checked"
    wrong = grown["wrong"]
    return f"**no**: {_plain(wrong[0])} ({len(wrong)} differ)" if wrong else "yes"


def _plain(text: str, most: int = 160) -> str:
    """Return a message without values: they may be a user's."""
    named = re.sub(r"'[^']*'", "'…'", text.replace("|", "/"))
    return " ".join(named.split())[:most]


def workload_table(
    workload: str,
    chosen: Sequence[Entry],
    timed: Repetitions,
    grown: Grown,
    failed: Mapping[Any, str],
) -> str:
    """Return the table of one workload: a row a saver; ratios to its baseline in brackets."""
    head = ["saver", "beside", "gives back", *(column.title for column in COLUMNS)]
    at = head.index("a checkpoint") + 1
    head[at:at] = ["new, median", "new, largest"]
    lines = [_row(head), _row(["---"] * 3 + ["---:"] * (len(head) - 3))]
    for entry in chosen:
        if workload not in entry.workloads:
            continue
        key = workload, entry.name
        found = timed.get(key, ())
        if not found:
            if key in failed:
                blank = [""] * (len(head) - 3)
                lines.append(_row([entry.name, "", f"failed: {_plain(failed[key])}", *blank]))
            continue
        own = entry.name == entry.baseline
        beside = () if own else timed.get((workload, entry.baseline), ())
        if entry.sparse and not median(found, "checkpoints"):  # puts are not checkpoints there
            found = [{**figures, "each": 0} for figures in found]
        cells = [entry.name, "" if own else entry.baseline, _verdict(grown.get(key, {}))]
        for column in COLUMNS:
            cells.append(_cell(column, found, beside))
            if column.metric == "each":
                cells += _news(grown.get(key, {}))
        lines.append(_row(cells))
    return "\n".join(lines)


def title(workload: str, scale: Any) -> str:
    """Return what a workload is, with the scale's counts."""
    names = ("short_rounds", "rounds", "crowd", "crowd_rounds", "steps", "picture")
    return TITLES[workload].format(**{name: f"{getattr(scale, name):,}" for name in names})


def promise_table(found: Sequence[Promise]) -> str:
    """Return the promises: kept and missed."""
    shown = {"bytes": size, "s": seconds, "×": times}
    lines = [
        _row(["saver", "promise", "measured", "`SqliteSaver`", "asked for", "our own", "result"]),
        _row(["---", "---", "---:", "---:", "---:", "---:", "---"]),
    ]
    for promise in found:
        form = shown[promise.unit]
        lines.append(
            _row(
                [
                    promise.saver,
                    promise.what,
                    "—" if promise.value is None else form(promise.value),
                    "" if promise.rival is None else form(promise.rival),
                    "" if promise.asked is None else f"< {form(promise.asked)}",
                    f"≤ {form(promise.ours)}",
                    promise.result,
                ]
            )
        )
    return "\n".join(lines)


def who_table(chosen: Sequence[Entry]) -> str:
    """Return what each saver is and what it leaves on disk."""
    lines = [_row(["saver", "what it is", "version", "on disk"]), _row(["---"] * 4)]
    for entry in chosen:
        if entry.variant:
            continue
        versions = [f"{name} {installed(name)}" for name in entry.packages]
        lines.append(_row([entry.name, entry.about, ", ".join(versions), entry.leaves]))
    return "\n".join(lines)


def absent_table(absent: Mapping[str, tuple[str, str]]) -> str:
    """Return who was left out and why: name → what it is, reason."""
    lines = [_row(["saver", "what it is", "why it is left out"]), _row(["---"] * 3)]
    lines += [_row([name, about, reason]) for name, (about, reason) in absent.items()]
    return "\n".join(lines)
