"""The public bug reports that a saver and its tool ledger can cure, each in a process of its own.

The cases live outside this repository; without them the test is skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "shared" / "cases"
RUNNER = FOLDER / "run_cases.py"
MAKERS = "langgraph_resilient.testing:make_saver", "langgraph_resilient.testing:amake_saver"
README = Path(__file__).parents[2] / "README.md"
LANGGRAPH_ITSELF = {
    "062": "A node that was renamed while its thread waited",
    "063": "A key of the state that was removed while its thread waited",
    "093": "A `@task` whose result is not yet stored when the next one starts",
    "103": "Two tools of a plain `ToolNode` that call `interrupt()`",
    "104": "A conditional edge whose function fails",
    "105": "`Command(resume=None)`",
    "111": "Re-running from a checkpoint inside a subgraph",
    "114": "Answering an answered interrupt differently",
    "140": "Unsaved checkpoints pile up in memory",
}
"""Nothing outside LangGraph can cure these: what the README calls each, with the reason there."""
CASES = sorted(FOLDER.glob("[0-9][0-9][0-9]_*.py"))
CURABLE = [path for path in CASES if path.name[:3] not in LANGGRAPH_ITSELF]
SAVERS = [(path, "custom") for path in CURABLE] + [
    pytest.param(
        path,
        "acustom",
        # Without coroutines of its own a case only opens the saver by `async with`: once is enough.
        marks=[] if "async def run_async" in path.read_text("utf-8") else [pytest.mark.campaign],
    )
    for path in CURABLE
]


def run_case(path: Path, saver: str) -> dict:
    """The verdict of one case, run as its README says."""
    sync, other = MAKERS
    command = [sys.executable, str(RUNNER), "--one", str(path), "--saver", saver]
    command += ["--factory", sync, "--afactory", other]
    environment = {
        **os.environ,
        "PYTHONWARNINGS": "ignore",
        "LANGSMITH_TRACING": "false",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    verdicts = [line[2:] for line in done.stdout.splitlines() if line.startswith("@@")]
    assert verdicts, done.stderr[-3000:]
    return {**json.loads(verdicts[-1]), "stderr": done.stderr[-3000:]}


def test_the_readme_names_what_cannot_be_cured_and_nothing_else() -> None:
    readme = README.read_text(encoding="utf-8")
    section = readme.partition("### What nothing outside LangGraph can cure")[2].partition("\n#")[0]
    named = [line.split("**")[1] for line in section.splitlines() if line.startswith("| **")]
    assert sorted(named) == sorted(LANGGRAPH_ITSELF.values())


@pytest.mark.skipif(not RUNNER.exists(), reason="the shared cases are not there")
@pytest.mark.parametrize(("path", "saver"), SAVERS, ids=lambda item: getattr(item, "stem", item))
def test_a_reported_fault_does_not_happen(path: Path, saver: str) -> None:
    verdict = run_case(path, saver)
    if verdict["status"] == "n/a":
        pytest.skip(verdict["msg"])
    if verdict["status"] == "FAIL" and verdict["msg"].startswith("harness:"):
        pytest.skip(f"the case did not come to its point on this machine: {verdict['msg']}")
    assert verdict["status"] == "PASS", f"{verdict['msg']}\n{verdict['stderr']}"
