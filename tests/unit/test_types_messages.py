"""Messages of every class keep all their parts, and what stands in old files stays readable."""

from __future__ import annotations

from collections import deque
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.types import Command, Interrupt, Send
from property.strategies import decode, encode, roundtrip, same

from langgraph_resilient.codec.types import (
    Code,
    reduce,
)


class Special(HumanMessage):
    score: float = 0.5


def test_a_message_is_stored_without_what_is_default() -> None:
    assert reduce(HumanMessage("hi", id="1")) == (
        Code.MESSAGE,
        [0, {"content": "hi", "id": "1"}, 0b100001],
    )


@pytest.mark.parametrize(
    "message",
    [
        Special("x", score=1.5),
        BaseMessage(content="x", type="own"),
        HumanMessage("x", extra_part={"a": 1}),
        ToolMessage("x", tool_call_id="1", artifact={"t": (1, 2)}),
        HumanMessage.model_construct(content="x", id=("no", "text")),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_of_any_class_comes_back(message: BaseMessage) -> None:
    back = roundtrip(message)
    assert same(back, message)
    assert list(vars(back)) == list(vars(message))


def test_a_message_that_lacks_a_field_still_lacks_it() -> None:
    message = HumanMessage("x")
    del message.__dict__["content"]
    assert vars(roundtrip(message)) == vars(message)


def test_an_artifact_that_has_no_truth_value_is_no_trouble() -> None:
    np = pytest.importorskip("numpy")
    message = ToolMessage("x", tool_call_id="1")
    message.artifact = np.arange(3)
    assert roundtrip(message).artifact.tolist() == [0, 1, 2]


def test_restored_messages_share_no_default() -> None:
    data = encode(AIMessage("x"))
    one, two = decode(data), decode(data)
    one.tool_calls.append({"name": "n", "args": {}, "id": "1"})
    one.additional_kwargs["k"] = 1
    one.__pydantic_fields_set__.add("id")
    assert same(two, AIMessage("x"))
    assert same(decode(data), AIMessage("x"))


def test_a_text_default_is_left_out_whichever_object_it_is() -> None:
    message = HumanMessage("x")
    message.__dict__["type"] = "".join(["hu", "man"])
    assert reduce(message) == reduce(HumanMessage("x"))


# Written by the first release. Never regenerated: old files hold these bytes.
GOLDEN = [
    ((1, "a"), "d6009201a161"),
    ({"b", "a"}, "c7050192a161a162"),
    (2**64, "c70b03c409010000000000000000"),
    (Path("a"), "c70d1392a9506f73697850617468a161"),
    (deque([1], 3), "d61692910103"),
    (Decimal("1.5"), "d60ba3312e35"),
    (datetime(2026, 1, 2, tzinfo=timezone.utc), "c70e0c99cd07ea010200000000d410c000"),
    (UUID(int=1), "c71212c41000000000000000000000000000000001"),
    (ValueError("x"), "c7182592b36275696c74696e733a56616c75654572726f7291a178"),
    (int, "c70e2691ac6275696c74696e733a696e74"),
    (Send("n", 1), "d63292a16e01"),
    (Command(goto="n"), "c709339181a4676f746fa16e"),
    (Interrupt(1, id="i"), "d6349201a169"),
    (HumanMessage("hi", id="1"), "c7142c930082a7636f6e74656e74a26869a26964a13121"),
    (
        AIMessage("x", tool_calls=[{"name": "n", "args": {}, "id": "1"}]),
        "c73c2c930182a7636f6e74656e74a178aa746f6f6c5f63616c6c739184a46e616d65a16ea46172677380"
        "a26964a131a474797065a9746f6f6c5f63616c6c41",
    ),
]


@pytest.mark.parametrize(("value", "stored"), GOLDEN, ids=lambda part: type(part).__name__)
def test_what_an_older_release_stored_is_read_and_is_still_written_so(
    value: Any, stored: str
) -> None:
    assert same(decode(bytes.fromhex(stored)), value)
    assert encode(value).hex() == stored
