"""The README tells the truth: its Python runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
README = REPOSITORY / "README.md"
RUN = "import sys; from langgraph_resilient.cli import main; sys.exit(main())"
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    if not README.exists():
        return []
    return [body for name, body in BLOCK.findall(README.read_text()) if name == language]


def runnable() -> list[str]:
    """Blocks that need nothing a reader has to bring: no ellipsis stands for their own code."""
    return [body for body in blocks("python") if "..." not in body]


def commands() -> list[list[str]]:
    lines = [
        line
        for language in ("bash", "sh", "console", "shell")
        for body in blocks(language)
        for line in body.splitlines()
    ]
    words = [line.removeprefix("$ ").split("#")[0].split() for line in lines]
    return [line for line in words if line and line[0] == "langgraph-resilient"]


def test_there_is_python_and_there_are_commands() -> None:
    assert runnable()
    assert commands()


@pytest.mark.parametrize("number", range(len(runnable())))
def test_each_python_block_runs(number: int, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(runnable()[number])
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "LANGSMITH_TRACING": "false"}
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@functools.cache
def help_of(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words, "--help"],
        cwd=REPOSITORY,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def listed(shown: str) -> list[str]:
    """The commands that a help text names."""
    return re.findall(r"^  ([a-z]+)  +\S", shown.partition("Commands:")[2], re.MULTILINE)


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_each_command_and_its_options_exist(words: list[str]) -> None:
    pytest.importorskip("typer")
    shown, path = help_of(), []
    below = listed(shown)
    while found := [word for word in words[1:] if word in below][:1]:
        path += found
        deeper = help_of(*path)
        below = listed(deeper)  # of a group, such as ``ledger``
        shown += deeper
    assert path or words[1].startswith("-"), f"{words[1]} is no command"
    options = [word.split("=")[0] for word in words if word.startswith("--")]
    assert [option for option in options if option not in shown] == []


def test_relative_links_lead_to_files() -> None:
    links = re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", README.read_text())
    assert [link for link in links if not (REPOSITORY / link).exists()] == []
