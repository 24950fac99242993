"""What counts as a change, and which changes a run that goes on cannot cope with: values only."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tools import tool
from pydantic import BaseModel

from langgraph_resilient import Change, ConfigurationError, Precondition
from langgraph_resilient._aio import drive
from langgraph_resilient.guard.comparing import Asking, Waiting, compare
from langgraph_resilient.guard.fitting import fitting
from langgraph_resilient.guard.preconditions import checked


def environment(**parts: Any) -> dict[str, Any]:
    graph = {
        "name": "LangGraph",
        "nodes": parts.get("nodes", {"a": ["branch:to:a"]}),
        "edges": parts.get("edges", ["__start__ -> a"]),
        "channels": parts.get("channels", {"x": ["LastValue[int]", ""]}),
    }
    rest = {name: parts.get(name, {}) for name in ("tools", "models", "packages")}
    return {"graph": graph, **rest}


NOTHING = Waiting()


def changes(old: dict, new: dict, waiting: Waiting = NOTHING, **more: Any) -> list[tuple]:
    found = compare(environment(**old), environment(**new), waiting, **more)
    return [(change.kind, change.name, change.serious) for change in found]


NODES = {"a": ["branch:to:a"], "b": ["branch:to:b"]}


def test_equal_environments_have_no_changes() -> None:
    assert changes({}, {}) == []


def test_what_is_new_is_never_serious() -> None:
    old: dict[str, Any] = {}
    new = {
        "nodes": NODES,
        "edges": ["__start__ -> a", "a -> b"],
        "channels": {"x": ["LastValue[int]", ""], "y": ["LastValue[str]", ""]},
        "tools": {"search": "1"},
        "models": {"a": "openai/gpt"},
        "packages": {"langgraph": "2"},
    }
    assert changes(old, new, Waiting(nodes=frozenset({"a"}), calls=(Asking(name="search"),))) == [
        ("node", "b", False),
        ("edge", "a -> b", False),
        ("channel", "y", False),
        ("tool", "search", False),
        ("model", "a", False),
        ("package", "langgraph", False),
    ]


@pytest.mark.parametrize(("waiting", "serious"), [({"b"}, True), ({"a"}, False), (set(), False)])
def test_a_node_that_is_gone_is_serious_when_it_was_to_run(waiting: set, serious: bool) -> None:
    found = changes({"nodes": NODES}, {}, Waiting(nodes=frozenset(waiting)))
    assert found == [("node", "b", serious)]


@pytest.mark.parametrize(("fired", "serious"), [("join:a+c:b", True), ("branch:to:b", False)])
def test_a_node_that_is_triggered_otherwise_is_serious_when_its_trigger_is_gone(
    fired: str, serious: bool
) -> None:
    old = {"nodes": {**NODES, "b": ["branch:to:b", "join:a+c:b"]}}
    new = {"nodes": {**NODES, "b": ["branch:to:b", "join:a+c+d:b"]}}
    waiting = Waiting(nodes=frozenset({"b"}), triggers={"b": frozenset({fired})})
    assert changes(old, new, waiting) == [("node", "b", serious)]


def test_a_tool_that_is_gone_is_serious_when_a_call_of_it_waits() -> None:
    old = {"tools": {"search": "1", "mail": "2"}}
    assert changes(old, {}, Waiting(calls=(Asking(name="mail"),))) == [
        ("tool", "mail", True),
        ("tool", "search", False),
    ]


@pytest.mark.parametrize(("fits", "serious"), [(True, False), (False, True)])
def test_other_arguments_are_serious_when_a_waiting_call_does_not_fit(
    fits: bool, serious: bool
) -> None:
    asked = Waiting(calls=(Asking(name="mail"),))
    found = changes({"tools": {"mail": "1"}}, {"tools": {"mail": "2"}}, asked, fits={"mail": fits})
    assert found == [("tool", "mail", serious)]


def test_a_channel_of_another_type_is_serious_and_one_that_is_gone_is_not() -> None:
    old = {"channels": {"x": ["LastValue[int]", ""], "y": ["LastValue[int]", ""]}}
    new = {"channels": {"x": ["LastValue[str]", ""]}}
    assert changes(old, new) == [("channel", "x", True), ("channel", "y", False)]


def test_another_reducer_is_told_and_not_serious() -> None:
    old = {"channels": {"x": ["BinaryOperatorAggregate[list]", "operator.add"]}}
    new = {"channels": {"x": ["BinaryOperatorAggregate[list]", "mine.merge"]}}
    assert changes(old, new) == [("reducer", "x", False)]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (Change(kind="node", name="a", current=[]), "node 'a' is new"),
        (
            Change(
                kind="node",
                name="a",
                recorded=[],
                serious=True,
                reason="the stopped run still needs it",
            ),
            "node 'a' is gone (the stopped run still needs it)",
        ),
        (Change(kind="package", name="p", recorded="1", current="2"), "package 'p' was 1, is 2"),
        (
            Change(kind="tool", name="t", recorded="1", current="2"),
            "tool 't' takes other arguments",
        ),
        (Change(kind="precondition", name="p", reason="stale"), "precondition 'p': stale"),
    ],
    ids=["new", "gone", "version", "schema", "precondition"],
)
def test_a_change_says_what_it_is(change: Change, text: str) -> None:
    assert str(change) == text


# --- calls that wait ----------------------------------------------------------------------------


@tool
def mail(to: str, copies: int = 1) -> str:
    """Send."""
    return to


class Letter(BaseModel):
    to: str


mail_by_json = tool("mail_by_json", description="Send.", args_schema=Letter.model_json_schema())(
    lambda **given: str(given)
)


@pytest.mark.parametrize(
    ("given", "arguments", "fits"),
    [
        (mail, {"to": "Ann"}, True),
        (mail, {"to": "Ann", "copies": 2}, True),
        (mail, {"copies": 2}, False),
        (mail, {"to": "Ann", "copies": "many"}, False),
        (mail_by_json, {"to": "Ann"}, True),
        (mail_by_json, {"text": "hello"}, False),
        (print, {"anything": 1}, True),
    ],
)
def test_a_waiting_call_fits_when_the_tool_still_takes_it(
    given: Any, arguments: dict, fits: bool
) -> None:
    assert fitting(given, arguments) is fits


# --- preconditions --------------------------------------------------------------------------------


def verdict(precondition: Precondition, then: Any) -> list[str]:
    failed, _ = drive(checked([precondition], {precondition.name: then}))
    return [change.reason for change in failed]


def broken() -> Any:
    raise OSError("no such price list")


@pytest.mark.parametrize(
    ("precondition", "then", "reasons"),
    [
        (Precondition("v", lambda: 1), 1, []),
        (Precondition("v", lambda: 2), 1, ["was 1, is 2"]),
        (Precondition("v", lambda: 2, lambda then, now: now >= then), 1, []),
        (Precondition("v", lambda: 2, lambda then, now: "too new"), 1, ["too new"]),
        (
            Precondition("v", lambda: 2, lambda then, now: False),
            1,
            ["its check has failed (was 1, is 2)"],
        ),
        (
            Precondition("v", lambda: 2, lambda then, now: None),
            1,
            ["its check has failed (was 1, is 2)"],
        ),
        (Precondition("v", broken), 1, ["it could not be checked: OSError: no such price list"]),
    ],
    ids=["equal", "differs", "holds", "says why", "false", "nothing", "breaks"],
)
def test_a_precondition_holds_or_says_why_not(
    precondition: Precondition, then: Any, reasons: list[str]
) -> None:
    assert verdict(precondition, then) == reasons


def test_what_was_not_captured_is_not_checked() -> None:
    failed, now = drive(checked([Precondition("new", lambda: 1)], {}))
    assert (failed, now) == ([], {"new": 1})


def test_an_action_must_be_one() -> None:
    with pytest.raises(ConfigurationError, match="on_fail of precondition 'v' is 'shout'"):
        Precondition("v", lambda: 1, on_fail="shout")  # type: ignore[arg-type]
