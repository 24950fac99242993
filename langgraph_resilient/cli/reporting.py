"""How reports of maintenance are shown, and how its progress reaches the bar."""

from __future__ import annotations

from typing import Any

import typer

from langgraph_resilient import maintenance
from langgraph_resilient.cli.output import (
    ExitCode,
    OnProgress,
    plain,
    print_json,
    print_table,
    size,
)


def print_report(report: Any, as_json: bool) -> None:
    """Show what a move came to; threads that were left out are findings."""
    if as_json:
        print_json(report)
    else:
        values = plain(report)
        lists = {name: rows for name, rows in values.items() if isinstance(rows, list)}
        numbers = {name: value for name, value in values.items() if name not in lists}
        print_table(("what", "number"), named_rows(numbers))
        for name, rows in lists.items():
            if rows and isinstance(rows[0], str):
                print_table((name,), [(row,) for row in rows])
            elif rows:
                print_table(list(rows[0]), [list(row.values()) for row in rows], title=name)
    if getattr(report, "skipped", None):
        raise typer.Exit(ExitCode.FINDINGS)


def named_rows(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values as text, sizes also in a readable unit."""
    rows = []
    for name, value in values.items():
        if isinstance(value, dict):
            rows.extend(named_rows({f"{name} {key}": item for key, item in value.items()}))
            continue
        text = str(value)
        if isinstance(value, int) and not isinstance(value, bool):
            text = f"{value:,} ({size(value)})" if name.endswith("bytes") else f"{value:,}"
        rows.append((name.replace("_", " "), text))
    return rows


def relay(show_progress: OnProgress) -> maintenance.OnProgress:
    """The bar as the package's functions report to it."""

    def report(progress: maintenance.Progress) -> None:
        show_progress(progress.what, progress.done, progress.total or 0)

    return report
