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
LANGGRAPH_ITSELF = {
    "063": "it stops twice when a state key is gone",
    "093": "a @task's result is stored behind the caller's back; @recorded stores it before",
    "103": "a plain ToolNode shows the first of two questions; tool_node shows both",
    "104": "it stores a node's writes before its router runs, and does not ask the router again",
    "105": "Command(resume=None) fails in its own loop before a saver is asked",
    "111": "it starts a subgraph over when a run begins at a checkpoint inside it",
    "114": "it keeps the first answer to an interrupt",
    "140": "it lets checkpoints pile up in memory",
}
"""Nothing outside LangGraph can cure these."""
LATER = {
    "062": "the resume guard reports a renamed node",
    "085": "the stream buffer keeps the tokens that were shown",
    "087": "the journal keeps the answer of the model",
    "135": "the journal replays in order",
    "136": "the journal records the parameters",
}
"""What parts of the package are for that are not there yet."""
CASES = sorted(FOLDER.glob("[0-9][0-9][0-9]_*.py"))
CURABLE = [path for path in CASES if path.name[:3] not in LANGGRAPH_ITSELF.keys() | LATER.keys()]


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


@pytest.mark.skipif(not RUNNER.exists(), reason="the shared cases are not there")
@pytest.mark.parametrize("saver", ["custom", "acustom"])
@pytest.mark.parametrize("path", CURABLE, ids=lambda path: path.stem)
def test_a_reported_fault_does_not_happen(path: Path, saver: str) -> None:
    verdict = run_case(path, saver)
    if verdict["status"] == "n/a":
        pytest.skip(verdict["msg"])
    if verdict["status"] == "FAIL" and verdict["msg"].startswith("harness:"):
        pytest.skip(f"the case did not come to its point on this machine: {verdict['msg']}")
    assert verdict["status"] == "PASS", f"{verdict['msg']}\n{verdict['stderr']}"
