"""The pytest plugin: its fixtures work, and a pytest that does not use it notices nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
IDLE = """
import sys

def test_nothing_is_loaded():
    assert not [name for name in sys.modules if name.split(".")[0] in ("langgraph", "langchain_core")]
"""
USED = """
import pytest
from crashable import INPUT, Factory

def test_a_saver_on_a_file(resilient_saver, tmp_path):
    assert list(resilient_saver.list(None)) == []
    assert (tmp_path / "agent.db").exists()

def test_a_sweep_looks_at_the_log(crash_sweep, effect_log, tmp_path):
    factory = Factory(log=effect_log)
    report = crash_sweep(factory, INPUT, points=["tool.after"])
    assert report.ok, report.table()
    assert report.effects == {"mail": 1}
    assert effect_log.path.parent == tmp_path

def test_without_a_log_effects_are_not_known(crash_sweep, tmp_path):
    assert crash_sweep.keywords == {"folder": tmp_path}
"""


def run_pytest(folder: Path, test: str) -> subprocess.CompletedProcess[str]:
    """A pytest of its own, in which every warning is an error."""
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (folder / "test_it.py").write_text(test)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(HERE))),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "LANGSMITH_TRACING": "false",
    }
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "-p", "langgraph_resilient.testing.plugin", "test_it.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(("test", "passed"), [(IDLE, 1), (USED, 3)], ids=["idle", "used"])
def test_the_plugin(tmp_path: Path, test: str, passed: int) -> None:
    done = run_pytest(tmp_path, test)
    assert f"{passed} passed" in done.stdout, done.stdout + done.stderr


def test_pytest_finds_it_where_the_package_is_installed() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    line = 'langgraph_resilient = "langgraph_resilient.testing.plugin"'
    assert f"[project.entry-points.pytest11]\n{line}\n" in text
