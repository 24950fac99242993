"""Where two requests, or two states, differ first."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage

from langgraph_resilient.journal import Request
from langgraph_resilient.journal.comparing import Difference, requests_differ, values_differ

TOOL = {"type": "function", "function": {"name": "pay", "parameters": {"euros": "integer"}}}


def asked(*messages: AnyMessage, model: str = "m", **sent: Any) -> Request:
    return Request(messages=messages, sent=sent, model=model)


def called(args: dict[str, Any], id: str = "c") -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "pay", "args": args, "id": id}])


HUMAN, SYSTEM = HumanMessage("a"), SystemMessage("s")


@pytest.mark.parametrize(
    ("old", "new", "kind", "field", "recorded", "current"),
    [
        (
            asked(SYSTEM, HUMAN),
            asked(SYSTEM, HumanMessage("b")),
            "prompt",
            "messages[1].content",
            "a",
            "b",
        ),
        (asked(HUMAN), asked(SystemMessage("a")), "prompt", "messages[0].type", "human", "system"),
        (asked(HUMAN), asked(HUMAN, SYSTEM), "prompt", "messages[1]", None, "s"),
        (asked(HUMAN, SYSTEM), asked(HUMAN), "prompt", "messages[1]", "s", None),
        (asked(tools=[TOOL]), asked(), "tools", "tools", [TOOL], None),
        (
            asked(tools=[TOOL]),
            asked(tools=[{**TOOL, "function": {"name": "pay", "parameters": {"euros": "number"}}}]),
            "tools",
            "tools[0].function.parameters.euros",
            "integer",
            "number",
        ),
        (asked(tool_choice="any"), asked(), "tools", "tool_choice", "any", None),
        (asked(temperature=1), asked(temperature=2), "parameters", "temperature", 1, 2),
        (asked(), asked(model="n"), "parameters", "model", "m", "n"),
        (
            asked(HUMAN, tools=[TOOL], temperature=1),
            asked(SYSTEM, temperature=2),
            "prompt",
            "messages[0].type",
            "human",
            "system",
        ),
        (asked(tools=[TOOL], temperature=1), asked(temperature=2), "tools", "tools", [TOOL], None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_first_difference_of_two_requests(
    old: Request, new: Request, kind: str, field: str, recorded: Any, current: Any
) -> None:
    found = requests_differ(old, new)
    assert found == Difference(kind=kind, field=field, recorded=recorded, current=current)


def test_other_arguments_of_a_tool_call_are_a_difference_of_the_prompt() -> None:
    found = requests_differ(asked(called({"euros": 5})), asked(called({"euros": 6})))
    assert found is not None
    assert (found.kind, found.field) == ("prompt", "messages[0]")
    assert "5" in str(found)
    assert "6" in str(found)


def test_what_may_differ_is_no_difference() -> None:
    old = asked(called({"e": 1}, "x"), ToolMessage("paid", tool_call_id="x", id="1"), temperature=1)
    new = asked(called({"e": 1}, "y"), ToolMessage("paid", tool_call_id="y"), temperature=1.0)
    assert requests_differ(old, new) is None


def test_a_conversation_that_was_not_kept_is_not_compared() -> None:
    assert requests_differ(asked(), asked(HUMAN), known=False) is None


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, ("a[1].b", 2, 3)),
        ({"a": 1}, {}, ("a", 1, None)),
        ({}, {"a": 1}, ("a", None, 1)),
        ([1, 2], [1], ("[1]", 2, None)),
        ({"m": [HumanMessage("a")]}, {"m": [AIMessage("a")]}, ("m[0].type", "human", "ai")),
        ({"m": HumanMessage("a", id="1")}, {"m": HumanMessage("a", id="2")}, ("m.id", "1", "2")),
        (
            {"m": HumanMessage("a", id="1")},
            {"m": HumanMessage("b", id="1")},
            ("m.content", "a", "b"),
        ),
        ({"a": [1, (2, 3)]}, {"a": [1, (2, 3)]}, None),
    ],
    ids=str,
)
def test_the_first_difference_of_two_states(old: Any, new: Any, found: Any) -> None:
    assert values_differ(old, new) == found


def test_ids_that_nobody_gave_need_not_be_the_same() -> None:
    old, new = [HumanMessage("a", id="1")], [HumanMessage("a", id="2")]
    assert values_differ(old, new, "", {"2"}.__contains__) is None
    assert values_differ(old, new, "", {"1"}.__contains__) == ("[0].id", "1", "2")
