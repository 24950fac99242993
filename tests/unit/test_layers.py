"""A module imports only from lower layers; the layers are those of the design."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "langgraph_resilient"
ROOT = Path(__file__).parents[2] / PACKAGE
LAYERS = [
    {"records", "options", "errors", "process"},
    {"codec", "store", "_aio", "anchor"},
    {"engine", "draft", "recording", "restoring", "calls", "modelcalls", "runs"},
    {
        "maintenance",
        "legacy",
        "configs",
        "versions",
        "history",
        "listing",
        "retention",
        "copying",
        "lifetimes",
        "collecting",
        "serde",
    },
    {"saver", "views", "holding", "ledger", "journal", "stream", "policy", "guard"},
    {"cli", "demo", "integrations", "testing", "__main__"},
]
LEVELS = {name: level for level, names in enumerate(LAYERS) for name in names}
CLOSED = {"codec", "store", "_aio", "anchor"}
"""Siblings that do not import each other; in the other layers they may."""
BYTES_ONLY = {"codec.digest", "codec.keys", "codec.seal"}
"""Parts of the codec that know no objects, so that the store may use them."""
MODULES = sorted(ROOT.rglob("*.py"))


def part(module: Path) -> str:
    """The module's or subpackage's name directly below the package."""
    first = module.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imported(module: Path) -> Iterator[tuple[int, str]]:
    """Line and name, below the package, of every import of our own that is ever carried out."""
    yield from _imported(module, ast.parse(module.read_text()))


def _imported(module: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, name) for name in names_of(module, node))
        elif isinstance(node, ast.Import):
            yield from (
                (node.lineno, alias.name.removeprefix(PACKAGE + "."))
                for alias in node.names
                if alias.name.startswith(PACKAGE + ".")
            )
        else:
            yield from _imported(module, node)


def names_of(module: Path, node: ast.ImportFrom) -> list[str]:
    """What a ``from`` import takes out of our package."""
    if node.level:
        inside = module.parents[node.level - 1].relative_to(ROOT).parts
        base = ".".join([*inside, *([node.module] if node.module else [])])
    elif node.module == PACKAGE:
        base = ""
    elif node.module and node.module.startswith(PACKAGE + "."):
        base = node.module.removeprefix(PACKAGE + ".")
    else:
        return []
    if base and (ROOT / base.replace(".", "/")).with_suffix(".py").exists():
        return [base]
    return [".".join(filter(None, (base, alias.name))) for alias in node.names]


def is_allowed(own: str, other: str) -> bool:
    first = other.split(".")[0]
    if first == own or LEVELS[first] < LEVELS[own]:
        return True
    if own == "store" and other in BYTES_ONLY:
        return True
    return LEVELS[first] == LEVELS[own] and own not in CLOSED


@pytest.mark.parametrize("module", MODULES, ids=lambda m: str(m.relative_to(ROOT)))
def test_a_module_imports_only_from_lower_layers(module: Path) -> None:
    own = part(module)
    if own == "__init__":
        return
    assert own in LEVELS, f"{own} has no layer; add it to the design and to this test"
    for line, other in imported(module):
        if other.split(".")[0] in LEVELS:  # names of the package's front are checked below
            assert is_allowed(own, other), f"{module.name}:{line}: {own} may not import {other}"


def test_the_lower_layers_do_not_know_the_package_front() -> None:
    """Only the top layer may import names from the package itself."""
    for module in MODULES:
        if LEVELS.get(part(module), len(LAYERS)) < len(LAYERS) - 1:
            for line, other in imported(module):
                assert other.split(".")[0] in LEVELS, (
                    f"{module.name}:{line} imports {other} from the front"
                )


@pytest.mark.parametrize(
    ("part_name", "forbidden"),
    [("codec", {"sqlite3"}), ("store", {"langgraph", "langchain_core"})],
)
def test_codec_knows_no_sql_and_store_no_objects(part_name: str, forbidden: set[str]) -> None:
    for module in sorted((ROOT / part_name).rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            found = {name.split(".")[0] for name in names} & forbidden
            assert not found, f"{module.name}:{node.lineno} imports {found}"


def test_only_aio_imports_asyncio() -> None:
    for module in MODULES:
        if part(module) in ("_aio", "demo", "cli", "testing", "integrations"):
            continue
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Import):
                assert "asyncio" not in [alias.name for alias in node.names], module.name
            elif isinstance(node, ast.ImportFrom):
                assert node.module != "asyncio", module.name
