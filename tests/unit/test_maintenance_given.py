"""Maintenance is given an open saver; whatever else is refused in words."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from langgraph_resilient import maintenance
from langgraph_resilient.errors import ConfigurationError

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "all_threads": (),
    "compact": (),
    "copy_thread": ("a", "b"),
    "expire": (),
    "expires_at": ("a",),
    "export": ("plain.db",),
    "gc": (),
    "migrate": (),
    "prune": (),
    "rekey": (),
    "repair": ("a",),
    "stats": (),
    "threads": (),
    "verify": (),
}
KEYWORDS: dict[str, dict[str, Any]] = {"prune": {"keep": 1}}


def test_every_function_is_here() -> None:
    public = {
        name for name in maintenance.__all__ if inspect.isfunction(getattr(maintenance, name))
    }
    assert public == set(ARGUMENTS)


@pytest.mark.parametrize(
    "given", ["agent.db", Path("agent.db"), InMemorySaver()], ids=["text", "path", "saver"]
)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_anything_but_a_saver_is_refused(
    name: str, given: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    function = getattr(maintenance, name)
    with pytest.raises(
        ConfigurationError, match="maintenance takes an open ResilientSaver, not a "
    ):
        function(given, *ARGUMENTS[name], **KEYWORDS.get(name, {}))
    assert not list(tmp_path.iterdir())
