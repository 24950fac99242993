"""The benchmark command runs end to end and reports on every promise (no time is asserted)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, object]]:
    folder = tmp_path_factory.mktemp("bench")
    command = [sys.executable, "-m", "benchmarks.bench_saver", "--scale", "tiny", "--in-process"]
    done = subprocess.run(
        [*command, "--json", str(folder / "out.json"), "--directory", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout, json.loads((folder / "out.json").read_text("utf-8"))


def test_the_table_has_every_requirement(report: tuple[str, dict[str, object]]) -> None:
    from benchmarks.requirements import REQUIREMENTS

    printed, _ = report
    missing = [row.title for row in REQUIREMENTS if f"| {row.area} | {row.title} |" not in printed]
    assert not missing


def test_every_figure_was_measured(report: tuple[str, dict[str, object]]) -> None:
    printed, _ = report
    assert [line for line in printed.splitlines() if line.endswith("| FAILED |")] == []


def test_the_json_names_machine_versions_and_commit(
    report: tuple[str, dict[str, object]],
) -> None:
    _, written = report
    machine = written["machine"]
    assert isinstance(machine, dict)
    assert {"processor", "python", "sqlite", "commit", "langgraph"} <= machine.keys()


def test_the_journals_benchmark_runs(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "benchmarks.bench_journal", "--chunks", "40", "--calls", "3"]
    done = subprocess.run(
        [*command, "--json", str(out)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    figures = {figure["name"]: figure["value"] for figure in json.loads(out.read_text())["figures"]}
    assert figures["commits a call"] == 2
    assert "a replayed call, 1001 messages" in figures
