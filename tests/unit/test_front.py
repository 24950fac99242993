"""Public names: each can be had, is loaded from where type checkers look, and loads nothing early."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import langgraph_resilient
import langgraph_resilient.testing

FRONTS = [langgraph_resilient, langgraph_resilient.testing]


@pytest.mark.parametrize("front", FRONTS, ids=lambda front: front.__name__)
def test_every_public_name_can_be_had(front: object) -> None:
    names = front.__all__  # type: ignore[attr-defined]
    assert len(set(names)) == len(names)
    assert all(getattr(front, name) is not None for name in names)
    assert set(names) <= set(dir(front))


@pytest.mark.parametrize("front", FRONTS, ids=lambda front: front.__name__)
def test_type_checkers_and_the_interpreter_look_in_the_same_place(front: object) -> None:
    tree = ast.parse(Path(front.__file__).read_text())  # type: ignore[attr-defined]
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = front._HOMES  # type: ignore[attr-defined]
    name = front.__name__  # type: ignore[attr-defined]
    assert seen == {public: f"{name}.{module}" for public, module in homes.items()}
    assert set(seen) == set(front.__all__)  # type: ignore[attr-defined]


def test_an_unknown_name_is_an_attribute_error() -> None:
    for front in FRONTS:
        with pytest.raises(AttributeError, match="nothing"):
            _ = front.nothing  # type: ignore[attr-defined]


def test_parts_are_attributes() -> None:
    code = "import langgraph_resilient as l; l.maintenance.verify; l.testing.make_saver"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("module", ["langgraph_resilient", "langgraph_resilient.testing.plugin"])
def test_the_package_alone_loads_nothing(module: str) -> None:
    code = (
        f"import sys, {module}; "
        "found = [name for name in ('langgraph', 'langchain_core') if name in sys.modules]; "
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
