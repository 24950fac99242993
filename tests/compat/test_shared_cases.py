"""The public bug reports that a saver can cure, each in a process of its own.

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
LATER = {
    "062": "the resume guard reports a renamed node",
    "063": "LangGraph itself stops twice when a state key is gone",
    "080": "the ledger knows what a killed tool had done",
    "081": "the ledger knows which tools had ended",
    "082": "the ledger knows which parallel tools had ended",
    "085": "the stream buffer keeps the tokens that were shown",
    "087": "the journal keeps the answer of the model",
    "088": "the journal survives asynchronous durability",
    "090": "the ledger knows which functional tasks had ended",
    "092": "the middleware answers a dangling tool call",
    "093": "the ledger does not depend on a slow disk",
    "096": "leases keep a second worker out",
    "101": "the ledger keeps the results beside an error",
    "103": "the ledger keeps what two interrupting tools did",
    "104": "LangGraph itself skips the error of a router",
    "105": "LangGraph itself takes a None for no answer",
    "111": "LangGraph itself starts a subgraph over",
    "114": "LangGraph itself keeps the first answer",
    "135": "the journal replays in order",
    "136": "the journal records the parameters",
    "140": "LangGraph itself lets checkpoints pile up",
}
CASES = sorted(FOLDER.glob("[0-9][0-9][0-9]_*.py"))
CURABLE = [path for path in CASES if path.name[:3] not in LATER]


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
