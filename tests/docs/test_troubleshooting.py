"""The README's troubleshooting tables quote what the package really says, and miss no error."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from langgraph_resilient import errors

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "langgraph_resilient"
SECTION = "## Troubleshooting by message"
GAP = "…"
"""Stands for what differs from message to message, in the README and in `said`."""


def section() -> str:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    return readme.partition(f"\n{SECTION}\n")[2].partition("\n## ")[0]


def rows() -> list[list[str]]:
    """The cells of each message's row: what the text holds, error, meaning, cure."""
    lines = [line for line in section().splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def classes() -> list[str]:
    found = [cls for cls in vars(errors).values() if isinstance(cls, type)]
    return [cls.__name__ for cls in found if issubclass(cls, errors.ResilientError)]


def said(path: Path) -> Iterator[str]:
    """Every text in a module, joined as Python joins it, with gaps for values."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%[sdr]", GAP, node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else GAP for part in node.values]
            yield "".join(map(str, parts))


TEXTS = [text for path in sorted(PACKAGE.rglob("*.py")) for text in said(path)]


def test_the_tables_are_there() -> None:
    assert len(rows()) > 40
    assert {len(row) for row in rows()} == {4}


@pytest.mark.parametrize("fragment", [row[0].strip("`") for row in rows()])
def test_each_quoted_message_is_one_that_the_package_says(fragment: str) -> None:
    assert [text for text in TEXTS if fragment in text] != []


@pytest.mark.parametrize("name", classes())
def test_each_error_is_explained(name: str) -> None:
    assert f"`{name}`" in section()


def test_each_error_that_is_named_exists() -> None:
    named = {name for row in rows() for name in re.findall(r"`(\w+)`", row[1])}
    assert named - {"migrate"} <= {*classes(), "ImportError"}
