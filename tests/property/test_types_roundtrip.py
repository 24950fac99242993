"""Every supported value comes back equal, of the same type, and independent of the original."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import BaseMessage
from property.strategies import decode, encode, hashables, messages, roundtrip, same, values

from langgraph_resilient.codec.types import clone_message, message_prototype

relaxed = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@relaxed
@given(values())
def test_a_value_comes_back_equal_and_of_the_same_type(value: Any) -> None:
    assert same(roundtrip(value), value)


@relaxed
@given(values())
def test_a_restored_value_is_stored_as_the_same_bytes(value: Any) -> None:
    data = encode(value)
    assert encode(decode(data)) == data


@relaxed
@given(messages())
def test_a_message_comes_back_with_all_its_parts_in_order(message: BaseMessage) -> None:
    back = roundtrip(message)
    assert same(back, message)
    assert list(back.__dict__) == list(message.__dict__)
    assert back == message


@relaxed
@given(messages(artifacts=values(4)))
def test_a_clone_of_a_message_is_equal_and_shares_nothing_that_can_change(
    message: BaseMessage,
) -> None:
    expected = encode(message)
    prototype = message_prototype(decode(expected))
    clone = clone_message(prototype)
    assert same(clone, message)
    _spoil(clone.__dict__)
    clone.__pydantic_fields_set__.clear()
    assert encode(clone_message(prototype)) == expected


def _spoil(value: Any) -> None:
    if type(value) is dict:
        for item in value.values():
            _spoil(item)
        value.clear()
    elif type(value) is list:
        for item in value:
            _spoil(item)
        value.append("spoilt")


@given(st.lists(hashables, max_size=6, unique=True))
def test_equal_sets_have_equal_bytes(members: list[Any]) -> None:
    backwards: set[Any] = set()
    for member in reversed(members):
        backwards.add(member)
    assert encode(set(members)) == encode(backwards)
