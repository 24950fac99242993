"""The hard limits on size: a module has at most 600 lines, a function at most 50."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "langgraph_resilient"
MODULES = sorted(ROOT.rglob("*.py"))
OTHERS = sorted(
    path for folder in ("tests", "benchmarks") for path in (ROOT.parent / folder).rglob("*.py")
)
MODULE_LINES, FUNCTION_LINES = 600, 50


@pytest.mark.parametrize("module", MODULES + OTHERS, ids=lambda m: str(m.relative_to(ROOT.parent)))
def test_a_module_and_its_functions_are_short(module: Path) -> None:
    text = module.read_text()
    assert len(text.splitlines()) <= MODULE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("module", MODULES, ids=lambda m: str(m.relative_to(ROOT)))
def test_no_error_is_swallowed(module: Path) -> None:
    """``except Exception: pass`` is a wrong answer."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ExceptHandler):
            broad = node.type is None or (
                isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
            )
            assert not (broad and all(isinstance(item, ast.Pass) for item in node.body)), (
                f"{module.name}:{node.lineno}"
            )


@pytest.mark.parametrize("module", MODULES, ids=lambda m: str(m.relative_to(ROOT)))
def test_every_module_says_what_it_is_for(module: Path) -> None:
    assert ast.get_docstring(ast.parse(module.read_text()))
