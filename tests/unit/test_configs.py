"""What run configs mean: pure functions, no database."""

from __future__ import annotations

import math
from typing import Any

import pytest
from building import plain_id

from langgraph_resilient import configs
from langgraph_resilient.errors import ConfigurationError


def named(**configurable: Any) -> Any:
    return {"configurable": configurable}


# --- spot -------------------------------------------------------------------------------------


def test_a_spot_takes_thread_namespace_and_checkpoint() -> None:
    found = configs.spot(named(thread_id="t", checkpoint_ns="sub:1", checkpoint_id="c"))
    assert (found.thread_id, found.checkpoint_ns, found.checkpoint_id) == ("t", "sub:1", "c")


@pytest.mark.parametrize("missing", [{}, {"checkpoint_ns": None}, {"checkpoint_id": ""}])
def test_a_missing_namespace_is_the_root_and_a_missing_checkpoint_the_newest(
    missing: dict[str, Any],
) -> None:
    found = configs.spot(named(thread_id="t", **missing))
    assert (found.checkpoint_ns, found.checkpoint_id) == ("", None)


@pytest.mark.parametrize("thread", [0, 7, "", "0", 1.5])
def test_any_thread_id_but_none_names_a_thread_by_its_text(thread: Any) -> None:
    assert configs.spot(named(thread_id=thread)).thread_id == str(thread)


@pytest.mark.parametrize("config", [{}, {"configurable": None}, named(), named(thread_id=None)])
def test_a_config_without_a_thread_is_refused_and_says_what_to_pass(config: Any) -> None:
    with pytest.raises(ConfigurationError, match="thread_id"):
        configs.spot(config)


# --- query ------------------------------------------------------------------------------------


def test_no_config_asks_for_everything() -> None:
    found = configs.query(None, None, None, None)
    assert (found.thread_id, found.checkpoint_ns, found.checkpoint_id) == (None, None, None)
    assert (found.before_id, found.before_thread, found.before_ns) == (None, None, None)
    assert found.filter == {}
    assert found.limit is None


def test_an_empty_namespace_is_asked_for_and_a_missing_one_means_all() -> None:
    assert configs.query(named(thread_id="t"), None, None, None).checkpoint_ns is None
    asked = configs.query(named(thread_id="t", checkpoint_ns=""), None, None, None)
    assert asked.checkpoint_ns == ""


def test_before_and_limit_are_taken_over() -> None:
    before = named(thread_id="t", checkpoint_ns="n", checkpoint_id="c9")
    found = configs.query(named(thread_id=1), {"source": "loop"}, before, 5)
    assert (found.thread_id, found.before_id, found.before_thread) == ("1", "c9", "t")
    assert (found.before_ns, found.limit, found.filter) == ("n", 5, {"source": "loop"})


@pytest.mark.parametrize(("limit", "meant"), [(0, 0), (-3, 0), (True, 1), (7, 7), (None, None)])
def test_a_limit_is_never_negative(limit: Any, meant: Any) -> None:
    assert configs.query(None, None, None, limit).limit == meant


def test_listing_a_config_without_a_thread_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="pass None"):
        configs.query(named(), None, None, None)


# --- metadata ---------------------------------------------------------------------------------


def test_metadata_keep_what_was_given_and_add_the_runs_own() -> None:
    config = {**named(thread_id="t", user="u"), "metadata": {"run": 1, "tags": ["a"], "no": None}}
    found = configs.metadata(config, {"source": "loop", "step": 1, "parents": {}})
    assert found["source"] == "loop"
    assert found["step"] == 1
    assert found["run"] == 1
    assert found["tags"] == ["a"]
    assert found["no"] is None


def test_metadata_of_the_checkpoint_win_over_the_runs() -> None:
    config = {**named(thread_id="t"), "metadata": {"step": 99, "source": "other"}}
    found = configs.metadata(config, {"source": "loop", "step": 1})
    assert (found["source"], found["step"]) == ("loop", 1)


@pytest.mark.parametrize(
    "key",
    ["thread_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map", "langgraph_step", "__secret"],
)
def test_keys_that_langgraph_keeps_to_itself_are_not_stored(key: str) -> None:
    config = {**named(thread_id="t"), "metadata": {key: ["value"]}}
    assert key not in configs.metadata(config, {"source": "loop"})


class Opaque:
    pass


@pytest.mark.parametrize(
    "value", [Opaque(), [Opaque()], {"a": {1: 2}}, (1, 2), {1}, b"x", [[b"x"]]], ids=plain_id
)
def test_values_of_the_run_that_are_no_json_are_left_out(value: Any) -> None:
    config = {**named(thread_id="t"), "metadata": {"value": value}}
    assert "value" not in configs.metadata(config, {"source": "loop"})


def test_nesting_without_end_is_left_out() -> None:
    endless: list[Any] = []
    endless.append(endless)
    config = {**named(thread_id="t"), "metadata": {"value": endless}}
    assert "value" not in configs.metadata(config, {"source": "loop"})


def test_neither_config_nor_metadata_is_changed() -> None:
    config = {**named(thread_id="t"), "metadata": {"run": [1]}}
    given = {"source": "loop"}
    configs.metadata(config, given)
    assert config == {**named(thread_id="t"), "metadata": {"run": [1]}}
    assert given == {"source": "loop"}


# --- filters ----------------------------------------------------------------------------------


class Broken:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = object.__hash__


@pytest.mark.parametrize(
    ("stored", "wanted", "fits"),
    [
        ({"a": 1}, {}, True),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, False),
        ({}, {"a": None}, True),
        ({"a": None}, {"a": None}, True),
        ({"a": 0}, {"a": None}, False),
        ({}, {"a": 1}, False),
        ({"a": {"b": 1}}, {"a.b": 1}, True),
        ({"a": {"b": 1}}, {"a.c": None}, True),
        ({"a": {"b": 1}}, {"a": {"b": 1}}, True),
        ({"a.b": 2, "a": {"b": 1}}, {"a.b": 2}, True),
        ({"a.b": 2, "a": {"b": 1}}, {"a.b": 1}, False),
        ({"a": 1}, {"a.b": 1}, False),
        ({"a": [1]}, {"a": [1]}, True),
        ({"a": math.nan}, {"a": math.nan}, True),
        ({"a": math.nan}, {"a": 1.0}, False),
        ({"a": Broken()}, {"a": 1}, False),
        ({7: 1}, {7: 1}, True),
    ],
)
def test_metadata_match_when_every_wanted_value_is_there(
    stored: dict[Any, Any], wanted: dict[Any, Any], fits: bool
) -> None:
    assert configs.matches(stored, wanted) is fits
