"""Options: known, checked, frozen."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

from langgraph_resilient import Options, ResilientSaver
from langgraph_resilient.errors import ConfigurationError


def test_the_defaults_are_durable() -> None:
    options = Options()
    assert options.synchronous == "FULL"
    assert options.busy_timeout == 30.0
    assert options.cipher is None
    assert options.integrity_key is None
    assert options.anchor_path is None


def test_options_are_taken_by_keyword_only_and_do_not_change() -> None:
    options = Options.build({"synchronous": "NORMAL", "level": 3})
    assert (options.synchronous, options.level) == ("NORMAL", 3)
    with pytest.raises(FrozenInstanceError):
        options.level = 4  # type: ignore[misc]
    with pytest.raises(TypeError):
        Options("FULL")  # type: ignore[misc]


def test_an_unknown_option_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Options.build({"synchronus": "FULL", "bussy": 1})
    assert "bussy, synchronus" in str(caught.value)
    for field in fields(Options):
        assert field.name in str(caught.value)
    with pytest.raises(ConfigurationError, match="unknown option"):
        ResilientSaver.from_conn_string(":memory:", synchronus="FULL")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"synchronous": "full"}, "FULL, NORMAL"),
        ({"synchronous": 2}, "FULL, NORMAL"),
        ({"busy_timeout": -1}, "must not be negative"),
        ({"integrity_key": b""}, "0 bytes"),
        ({"integrity_key": b"x" * 15}, "15 bytes"),
    ],
)
def test_a_value_that_cannot_work_is_refused_and_says_why(
    values: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Options.build(values)


@pytest.mark.parametrize(
    ("value", "strict"),
    [("1", True), ("true", True), ("TRUE", True), ("yes", True), ("0", False), ("", False)],
)
def test_strict_mode_follows_langgraphs_variable_unless_it_is_given(
    monkeypatch: pytest.MonkeyPatch, value: str, strict: bool
) -> None:
    monkeypatch.setenv("LANGGRAPH_STRICT_MSGPACK", value)
    assert Options().is_strict is strict
    assert Options(strict=not strict).is_strict is not strict
    monkeypatch.delenv("LANGGRAPH_STRICT_MSGPACK")
    assert Options().is_strict is False


def test_the_anchor_may_be_text_or_a_path(tmp_path: Path) -> None:
    for given in (tmp_path / "anchor", str(tmp_path / "anchor")):
        assert Options(rollback_anchor=given).anchor_path == tmp_path / "anchor"


def test_every_option_says_what_it_does() -> None:
    source = Path(__file__).parents[2] / "langgraph_resilient" / "options.py"
    lines = source.read_text().splitlines()
    for field in fields(Options):
        at = next(i for i, line in enumerate(lines) if line.startswith(f"    {field.name}: "))
        assert lines[at + 1].lstrip().startswith('"""'), field.name
