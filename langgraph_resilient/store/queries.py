"""Loads the named SQL statements. The domain speaks names; the text lives in ``sql/*.sql``.

A file holds blocks of ``-- name: some_name`` followed by a one-line comment and one statement.
Written after the idea of procrastinate's query files.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import resources

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_TABLE = re.compile(r"^CREATE TABLE (\w+)", re.MULTILINE)
_WORD = re.compile(r"\w+")


def parse(text: str) -> dict[str, str]:
    """The statements of one file by name, comments removed."""
    parts = _NAME.split(text)
    found: dict[str, str] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        if name in found:
            raise ValueError(f"the query {name} is defined twice")
        lines = [line for line in body.splitlines() if line and not line.startswith("--")]
        found[name] = "\n".join(lines).rstrip().rstrip(";")
    return found


@lru_cache(maxsize=2)
def load(dialect: str = "") -> dict[str, str]:
    """Every statement by name; of a dialect only those that differ from the portable ones."""
    found: dict[str, str] = {}
    folder = resources.files("langgraph_resilient.store") / "sql" / dialect
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if entry.name.endswith(".sql"):
            found.update(parse(entry.read_text("utf-8")))
    return found


def migrations() -> list[tuple[int, str]]:
    """Numbered schema changes, in order: (version, script)."""
    folder = resources.files("langgraph_resilient.store") / "sql" / "migrations"
    scripts = [
        (int(entry.name.split("_")[0]), entry.read_text("utf-8"))
        for entry in folder.iterdir()
        if entry.name.endswith(".sql")
    ]
    return sorted(scripts)


@lru_cache(maxsize=8)
def newer_than(version: int) -> tuple[frozenset[str], frozenset[str]]:
    """The tables that a file of an older schema has not, and the queries about them."""
    tables = {
        name
        for number, script in migrations()
        if number > version
        for name in _TABLE.findall(script)
    }
    about = {name for name, text in load().items() if tables.intersection(_WORD.findall(text))}
    return frozenset(tables), frozenset(about)


def statements(script: str) -> list[str]:
    """The statements of a migration script, without comments.

    They are run one by one, never by ``executescript``, which would commit the transaction.
    """
    lines = [line for line in script.splitlines() if not line.lstrip().startswith("--")]
    return [part.strip() for part in "\n".join(lines).split(";") if part.strip()]
