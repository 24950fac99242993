"""What a model call asks: what tells it from others, what steers it, what is never recorded."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from pydantic import BaseModel, SecretStr

from langgraph_resilient.journal import Request
from langgraph_resilient.journal.request import difference, without_secrets

PAY = {"type": "function", "function": {"name": "pay", "parameters": {"properties": {"id": {}}}}}


def conversation(**other: Any) -> list[AnyMessage]:
    """A question, a tool call, its answer; any part of it can be another one."""
    call = {
        "name": other.get("tool", "pay"),
        "args": other.get("args", {"euros": 5}),
        "id": other.get("call_id", "call-1"),
    }
    return [
        SystemMessage(other.get("system", "be brief"), id=other.get("id")),
        HumanMessage(other.get("text", "pay"), id=other.get("id"), name=other.get("name")),
        AIMessage(
            other.get("said", ""),
            tool_calls=[call],
            id=other.get("id"),
            usage_metadata=other.get("usage"),
            response_metadata=other.get("told", {}),
        ),
        ToolMessage(
            other.get("result", "paid"),
            tool_call_id=other.get("call_id", "call-1"),
            status=other.get("status", "success"),
            artifact=other.get("artifact"),
            id=other.get("id"),
        ),
    ]


def identity(messages: list[Any], **sent: Any) -> bytes:
    return Request(messages=messages, sent=sent).identity


# --- identity ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        {"id": "run-77"},
        {"call_id": "call-99"},
        {"usage": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}},
        {"told": {"id": "req_1", "created": 17, "model_name": "m"}},
        {"artifact": {"pdf": b"x"}},
    ],
    ids=lambda other: next(iter(other)),
)
def test_what_may_differ_in_a_repetition_is_left_out(other: dict[str, Any]) -> None:
    assert identity(conversation(**other)) == identity(conversation())


@pytest.mark.parametrize(
    "other",
    [
        {"system": "be long"},
        {"text": "pay now"},
        {"name": "Ada"},
        {"said": "I pay"},
        {"tool": "refund"},
        {"args": {"euros": 6}},
        {"args": {"euros": 5.0}},
        {"result": "refused"},
        {"status": "error"},
    ],
    ids=str,
)
def test_what_is_asked_counts(other: dict[str, Any]) -> None:
    assert identity(conversation(**other)) != identity(conversation())


@pytest.mark.parametrize(
    "sent",
    [
        {"tools": [PAY]},
        {"tool_choice": "any"},
        {"response_format": {"type": "json_object"}},
        {"text": {"format": {"type": "json_schema", "name": "Bill"}}},
        {"format": "json"},
    ],
    ids=lambda sent: next(iter(sent)),
)
def test_tools_their_choice_and_the_format_count(sent: dict[str, Any]) -> None:
    assert identity(conversation(), **sent) != identity(conversation())


def test_a_field_named_id_of_a_tool_counts() -> None:
    other = {"type": "function", "function": {"name": "pay", "parameters": {"properties": {}}}}
    assert identity([], tools=[PAY]) != identity([], tools=[other])


@pytest.mark.parametrize(
    "sent",
    [
        {"temperature": 1.0},
        {"seed": 7},
        {"model": "other"},
        {"stop": ["\n"]},
        {"text": {"verbosity": "low"}},
        {"text": {"format": {"type": "text"}}},
    ],
    ids=str,
)
def test_parameters_are_no_part_of_what_is_asked(sent: dict[str, Any]) -> None:
    assert identity(conversation(), **sent) == identity(conversation())


def test_calls_of_one_message_are_told_apart_by_their_order() -> None:
    def two(first: str, second: str) -> list[AnyMessage]:
        calls = [{"name": "pay", "args": {}, "id": "a"}, {"name": "pay", "args": {}, "id": "b"}]
        return [
            AIMessage("", tool_calls=calls),
            ToolMessage("1", tool_call_id=first),
            ToolMessage("2", tool_call_id=second),
        ]

    assert identity(two("a", "b")) != identity(two("b", "a"))


def test_ids_in_content_blocks_are_left_out() -> None:
    def blocks(id: str) -> list[AnyMessage]:
        return [
            AIMessage([{"type": "tool_use", "id": id, "name": "pay", "input": {}}]),
            HumanMessage([{"type": "tool_result", "tool_use_id": id, "content": "paid"}]),
        ]

    assert identity(blocks("a")) == identity(blocks("b"))


def test_kinds_roles_and_bounds_of_messages_count() -> None:
    found = {
        identity([HumanMessage("a")]),
        identity([SystemMessage("a")]),
        identity([AIMessage("a")]),
        identity([ChatMessage("a", role="critic")]),
        identity([ChatMessage("a", role="judge")]),
        identity([HumanMessage("a"), HumanMessage("")]),
        identity([HumanMessage(["a"])]),
        identity([]),
    }
    assert len(found) == 8


def test_any_text_has_an_identity() -> None:
    assert identity([HumanMessage("\ud800")]) != identity([HumanMessage("\ud801")])


# --- sampling ---------------------------------------------------------------------------------


def test_the_sampling_digest_is_of_the_model_and_the_parameters() -> None:
    def sampling(model: str = "m", **sent: Any) -> bytes:
        return Request(messages=[], sent=sent, model=model).sampling

    base = sampling(temperature=0.5, top_p=1)
    assert base == sampling(top_p=1.0, temperature=0.5)
    assert base == sampling(top_p=1, temperature=0.5, tools=[PAY], tool_choice="any")
    others = [
        sampling("n", temperature=0.5, top_p=1),
        sampling(temperature=0.6, top_p=1),
        sampling(temperature=0.5, top_p=1, seed=1),
        sampling(temperature=0.5),
    ]
    assert base not in others
    assert len(set(others)) == 4


def test_parameters_are_what_is_neither_tool_nor_format() -> None:
    request = Request(messages=[], sent={"tools": [PAY], "seed": 1, "response_format": {"a": 1}})
    assert request.parameters == {"seed": 1}


@pytest.mark.parametrize(
    ("sent", "structured"),
    [
        ({}, False),
        ({"response_format": None}, False),
        ({"response_format": {"type": "json_object"}}, True),
        ({"format": "json"}, True),
        ({"text": {"verbosity": "low"}}, False),
        ({"text": {"format": {"type": "text"}}}, False),
        ({"text": {"format": {"type": "json_schema"}}}, True),
    ],
)
def test_a_request_knows_whether_its_answer_has_a_format(
    sent: dict[str, Any], structured: bool
) -> None:
    assert Request(messages=[], sent=sent).structured is structured


# --- secrets ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "openai_api_key",
        "x-api-key",
        "apikey",
        "access_token",
        "auth_token",
        "aws_secret_access_key",
        "aws_session_token",
        "client_secret",
        "Authorization",
        "authorisation",
        "default_headers",
        "extra_headers",
        "password",
        "Cookie",
        "set-cookie",
        "cookies",
        "bearer",
        "credentials",
        "token",
        "key",
    ],
)
def test_secrets_are_never_recorded(name: str) -> None:
    inner = {"extra_body": {name: "s3cr3t", "options": [{name: "s3cr3t"}]}}
    assert "s3cr3t" not in repr(without_secrets({name: "s3cr3t", **inner}))


def test_secret_objects_are_never_recorded() -> None:
    sent = {"user": SecretStr("s3cr3t"), "list": [SecretStr("s3cr3t"), 1]}
    assert without_secrets(sent) == {"list": [1]}


def test_parameters_that_only_sound_like_secrets_stay() -> None:
    sent = {
        "max_tokens": 5,
        "max_completion_tokens": 6,
        "logit_bias": {"50256": -100},
        "prompt_cache_key": "conversation",
        "stop_token_ids": [1],
        "seed": 3,
        "stop": ("a", "b"),
        "stream": False,
        "top_p": None,
    }
    assert without_secrets(sent) == {**sent, "stop": ["a", "b"]}


def test_what_is_only_an_object_here_becomes_plain() -> None:
    class Bill(BaseModel):
        euros: int

    class Other:
        pass

    plain = without_secrets(
        {
            "format": Bill,
            "value": Bill(euros=1),
            "set": {1},
            "bytes": b"x",
            "o": Other(),
            "t": Other,
        }
    )
    assert plain["format"]["name"] == "Bill"
    assert plain["format"]["schema"]["properties"] == {
        "euros": {"title": "Euros", "type": "integer"}
    }
    assert plain["value"] == {"euros": 1}
    assert plain["set"] == [1]
    assert plain["bytes"] == "<bytes>"
    assert "0x" not in repr(plain)


# --- differences ------------------------------------------------------------------------------


def test_a_difference_names_what_was_recorded_and_what_is_current() -> None:
    recorded = {"temperature": 0.2, "seed": 1, "stop": ["a"], "top_p": 1}
    current = {"temperature": 0.9, "stop": ("a",), "top_p": 1.0, "max_tokens": 5}
    assert difference(recorded, current) == {
        "max_tokens": [None, 5],
        "seed": [1, None],
        "temperature": [0.2, 0.9],
    }
    assert difference(recorded, recorded) == {}
