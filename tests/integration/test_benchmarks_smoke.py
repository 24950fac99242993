"""The benchmark commands run end to end and report on every promise (no time is asserted)."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

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


# --- savers side by side ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def contest(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("contest")
    command = [sys.executable, "-m", "benchmarks", "--scale", "tiny", "--in-process"]
    done = subprocess.run(
        [
            *command,
            "--only",
            "short,crowd,files",
            "--match",
            "ours,sqlite,memory,nothing,duckdb",
            "--out",
            str(folder),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = (folder / "RESULTS.md").read_text("utf-8")
    assert report.strip() == done.stdout.strip()
    return report, json.loads((folder / "results.json").read_text("utf-8"))


def test_every_saver_has_a_row_in_each_of_its_workloads(
    contest: tuple[str, dict[str, Any]],
) -> None:
    from benchmarks.registry import entries

    report, _ = contest
    sections = report.split("\n## ")
    for workload, title in (("short", "Chat"), ("crowd", "2 threads"), ("files", "An agent's")):
        (section,) = [part for part in sections if part.startswith(title)]
        names = {line.split("|")[1].strip() for line in section.splitlines() if line[:1] == "|"}
        own = {
            entry.name
            for entry in entries()
            if workload in entry.workloads
            and entry.name.split("+")[0] in ("ours", "sqlite", "memory", "nothing")
        }
        assert own <= names


def test_every_saver_of_ours_gives_back_what_was_put(
    contest: tuple[str, dict[str, Any]],
) -> None:
    _, written = contest
    assert written["failed"] == []
    found = {
        (row["workload"], row["saver"]): row["witnessed"]["wrong"] for row in written["figures"]
    }
    assert len(found) >= 40
    assert {key: wrong for key, wrong in found.items() if wrong} == {}


def test_a_saver_that_cannot_run_is_listed_with_its_reason(
    contest: tuple[str, dict[str, Any]],
) -> None:
    report, written = contest
    assert "cannot be installed" in written["left_out"]["duckdb"]
    assert f"| duckdb | `DuckDBSaver` | {written['left_out']['duckdb']} |" in report


def test_new_data_of_each_checkpoint_is_counted(contest: tuple[str, dict[str, Any]]) -> None:
    _, written = contest
    for row in written["figures"]:
        if row["workload"] == "short" and row["saver"] in ("ours", "sqlite"):
            witnessed = row["witnessed"]
            assert len(witnessed["new"]) == witnessed["puts"] == 10
            assert sum(witnessed["new"]) == witnessed["sizes"][-1] - witnessed["sizes"][0]


class Forgetful(InMemorySaver):
    """Gives back messages without their ids."""

    def get_tuple(self, config: Any) -> Any:
        found = copy.deepcopy(super().get_tuple(config))
        for message in found.checkpoint["channel_values"].get("messages", []) if found else []:
            message.id = None
        return found


def test_a_saver_that_gives_back_something_else_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import contest as module
    from benchmarks.registry import Entry
    from benchmarks.savers import Plugin

    @contextmanager
    def opened(path: str, *, synchronous: str) -> Any:
        yield Forgetful()

    plugin = Plugin(name="forgetful", open=opened)
    entry = Entry(plugin=plugin, about="", leaves="", reopens=False, weigh=None)
    monkeypatch.setattr(module, "entry", lambda name: entry)
    bout = module.Bout(saver="forgetful", workload="short", scale="tiny")
    wrong = module.stage(bout, "witness", str(tmp_path))["wrong"]
    assert wrong
    assert wrong[0].endswith("[id]: str came back as NoneType")


@pytest.mark.parametrize(
    ("put", "found"),
    [
        ([1, 2], [1]),
        ((1,), [1]),
        (1, True),
        ({"a": [HumanMessage("x", id="1")]}, {"a": [HumanMessage("y", id="1")]}),
        ({"a": 1}, {"a": 1, "b": 2}),
    ],
    ids=["shorter", "list", "bool", "message", "key"],
)
def test_a_difference_is_seen_at_any_depth(put: Any, found: Any) -> None:
    from benchmarks.agreement import difference

    assert difference(put, put) == ""
    assert difference(put, found) != ""


def test_a_promise_is_kept_only_within_both_limits() -> None:
    from benchmarks.promises import promises

    figures = {"put_p99": 0.009, "put_max": 0.02, "size": 6e5, "size_open": 26e6, "get_warm": 1.0}
    timed = {("short", "ours"): [figures], ("short", "sqlite"): [{"get_warm": 2.0}]}
    found = {
        row.what: row for row in promises(timed, {("short", "ours"): {"new": [5, 21_000]}}, {})
    }
    assert {what: row.result for what, row in found.items()} == {
        "new data of the largest checkpoint": "missed (our own)",
        "writing a checkpoint, p99": "kept",
        "writing a checkpoint, the slowest": "kept",
        "whole database, closed": "missed (our own)",
        "whole database, open, its log included": "missed (asked for)",
        "whole database after `compact`": "not measured",
        "restoring the last state beside `SqliteSaver`, warm": "kept",
        "restoring the last state beside `SqliteSaver`, new process": "not measured",
    }


def test_the_profiles_name_functions_of_each_saver(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.profiles", "--scale", "tiny", "--no-memory"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "langgraph_resilient/saver.py" in (tmp_path / "profile-ours.txt").read_text("utf-8")
    rows = json.loads((tmp_path / "profiles.json").read_text("utf-8"))["time"]["sqlite"]
    names = [row["function"] for row in rows["writing, by cumulative"]]
    assert any(name.endswith(" put_writes") for name in names)
