"""The notebooks run top to bottom on a fresh kernel, and are committed as they were run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
RUN = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
where = {"metadata": {"path": sys.argv[2]}}
NotebookClient(notebook, timeout=240, kernel_name="python3", resources=where).execute()
"""
LOCAL = re.compile(
    r"(?<![\w./])(?:/(?:home|root|tmp|var|work|Users|private|mnt|opt|usr|srv)/|[A-Za-z]:\\)"
)
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["cells"]
    return found


def outputs(path: Path) -> list[dict[str, Any]]:
    return [output for cell in cells(path) for output in cell.get("outputs", [])]


def words(output: dict[str, Any]) -> str:
    """What an output says, without its pictures."""
    told = {name: value for name, value in output.get("data", {}).items() if "image" not in name}
    return json.dumps([told, output.get("text"), output.get("traceback")])


def test_their_readme_names_each_of_them() -> None:
    named = re.findall(r"\]\((.+?\.ipynb)\)", (NOTEBOOKS[0].parent / "README.md").read_text())
    assert named == [path.name for path in NOTEBOOKS]


@each
def test_it_runs_top_to_bottom(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    own = {
        name: str(tmp_path / name.lower())
        for name in ("HOME", "IPYTHONDIR", "MPLCONFIGDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")
    }
    keyless = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    environment = {**keyless, **own, "PYTHONPATH": str(REPOSITORY), "LANGSMITH_TRACING": "false"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(path), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]


@each
def test_it_is_committed_as_it_was_run(path: Path) -> None:
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert [one for one in outputs(path) if one["output_type"] == "error"] == []
    assert any(one["output_type"] == "stream" for one in outputs(path)), "it says nothing"
    assert any("image/png" in one.get("data", {}) for one in outputs(path)), "it has no picture"


@each
def test_it_names_no_place_on_somebodys_machine(path: Path) -> None:
    said = [words(output) for output in outputs(path)]
    said += ["".join(cell["source"]) for cell in cells(path)]
    assert [text for text in said if LOCAL.search(text)] == []
