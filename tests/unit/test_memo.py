"""What a thread recognises as already stored: the same objects with the same content, only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from property.strategies import same
from unit.packing import Bench

from langgraph_resilient.codec.memo import (
    NEVER,
    ListMemo,
    Memo,
    freeze,
    has_no_buffers,
    is_plain,
    plain_bytes,
    snapshot_of,
)


def chat(count: int = 4) -> list[BaseMessage]:
    return [
        AIMessage(
            [{"type": "text", "text": f"part {index}"}],
            id=str(index),
            additional_kwargs={"deep": {"list": [index]}},
            response_metadata={"model": "m"},
            tool_calls=[{"name": "search", "args": {"q": [index]}, "id": f"c{index}"}],
        )
        for index in range(count)
    ]


def remembered(values: list[BaseMessage]) -> ListMemo:
    memo, everything = ListMemo(), Memo()
    for index, message in enumerate(values):
        memo.append(everything.remember(message, snapshot_of(message), index))
    return memo


# --- lists ------------------------------------------------------------------------------------


def test_an_unchanged_list_and_a_longer_one_are_recognised() -> None:
    values = chat()
    memo = remembered(values)
    assert memo.prefix(values) == 4
    assert memo.prefix(list(values)) == 4
    assert memo.prefix([*values, HumanMessage("new")]) == 4


@pytest.mark.parametrize(
    "other",
    [
        lambda values: values[:-1],
        lambda values: values[1:],
        lambda values: [*values[1:], values[0]],
        lambda values: [values[1], values[0], *values[2:]],
        lambda values: [HumanMessage("new"), *values],
        lambda values: [*values[:2], HumanMessage("new"), *values[3:]],
        lambda values: [values[0], *values[:-1]],
        lambda values: [],
    ],
    ids=["shorter", "first gone", "rotated", "swapped", "put before", "replaced", "twice", "empty"],
)
def test_a_list_with_other_items_is_not_recognised(
    other: Callable[[list[BaseMessage]], list[BaseMessage]],
) -> None:
    values = chat()
    assert remembered(values).prefix(other(values)) == 0


def test_equal_but_different_objects_are_not_recognised() -> None:
    assert remembered(chat()).prefix(chat()) == 0


CHANGES: dict[str, Callable[[Any], Any]] = {
    "content": lambda m: setattr(m, "content", "other"),
    "part of content": lambda m: m.content[0].__setitem__("text", "other"),
    "content longer": lambda m: m.content.append("more"),
    "nested dict": lambda m: m.additional_kwargs["deep"]["list"].append(1),
    "new key": lambda m: m.response_metadata.__setitem__("usage", 1),
    "tool call": lambda m: m.tool_calls[0]["args"]["q"].append("x"),
    "tool call gone": lambda m: m.tool_calls.clear(),
    "name": lambda m: setattr(m, "name", "n"),
    "id": lambda m: setattr(m, "id", "other"),
    "id gone": lambda m: setattr(m, "id", None),
    "extra field": lambda m: setattr(m, "something", "extra"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("at", [0, 2, 3])
def test_a_message_changed_in_place_is_noticed(change: Callable[[Any], Any], at: int) -> None:
    values = chat()
    memo = remembered(values)
    change(values[at])
    assert memo.prefix(values) == 0


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_message_is_stored_as_it_is_now(change: Callable[[Any], Any]) -> None:
    bench = Bench()
    values = chat()
    assert same(bench.there_and_back(values), values)
    change(values[1])
    assert same(bench.there_and_back(values), values)
    assert same(bench.unpack(bench.write(values[1])), values[1])


def test_lists_that_shrink_turn_and_grow_again_come_back_right() -> None:
    bench = Bench()
    values = chat(6)
    for state in (
        values,
        values[:3],
        values[::-1],
        [],
        [*values, "text"],
        ["text", *values],
        [*values, *values],
        values[1:],
        values,
    ):
        assert same(bench.there_and_back(state), state)
    assert len(bench.contents.stored) <= 6 + 3  # each message once, lists with text besides


# --- single messages --------------------------------------------------------------------------


def test_an_unchanged_message_is_found_by_identity_only() -> None:
    memo, message = Memo(), chat(1)[0]
    item = memo.remember(message, snapshot_of(message), 7)
    assert memo.item(message) is item
    assert memo.item(chat(1)[0]) is None


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_message_is_not_found(change: Callable[[Any], Any]) -> None:
    memo, message = Memo(), chat(1)[0]
    memo.remember(message, snapshot_of(message), 7)
    change(message)
    assert memo.item(message) is None


def test_an_id_given_later_is_the_only_change_that_without_id_forgives() -> None:
    memo, message = Memo(), HumanMessage("hello")
    item = memo.remember(message, snapshot_of(message), 7)
    assert memo.without_id(message) is None  # it has none yet
    message.id = "later"
    assert memo.item(message) is None
    assert memo.without_id(message) is item
    message.additional_kwargs["k"] = 1
    assert memo.without_id(message) is None


def test_a_message_that_had_an_id_is_never_taken_for_one_without() -> None:
    memo, message = Memo(), HumanMessage("hello", id="first")
    memo.remember(message, snapshot_of(message), 7)
    message.id = "second"
    assert memo.without_id(message) is None


@pytest.mark.parametrize("wrong", [7, "", None])
def test_an_id_that_is_no_text_is_stored_in_full(wrong: Any) -> None:
    memo, message = Memo(), HumanMessage("hello")
    memo.remember(message, snapshot_of(message), 7)
    message.__dict__["id"] = wrong
    found = memo.without_id(message)
    assert found is None or wrong == ""


def test_fields_set_besides_the_id_are_noticed() -> None:
    memo, message = Memo(), HumanMessage("hello")
    memo.remember(message, snapshot_of(message), 7)
    message.id = "later"
    message.name = None  # equal content, but another set of given fields
    assert memo.without_id(message) is None


def test_messages_with_more_than_plain_data_are_never_trusted() -> None:
    """An array may change in place without any comparison telling."""
    artifact = np.zeros(3)
    for message in (
        ToolMessage("done", tool_call_id="1", artifact=artifact),
        HumanMessage("x", additional_kwargs={"array": artifact}),
        HumanMessage("x", additional_kwargs={"tuple": (1,)}),
    ):
        memo = Memo()
        assert snapshot_of(message) is NEVER
        memo.remember(message, snapshot_of(message), 7)
        assert memo.item(message) is None
        assert memo.without_id(message) is None
        assert remembered([message]).prefix([message]) == 0


def test_an_artifact_changed_in_place_is_stored_anew() -> None:
    bench = Bench()
    message = ToolMessage("done", tool_call_id="1", artifact=np.zeros(3))
    bench.channel([message])
    message.artifact[0] = 5
    assert bench.there_and_back([message])[0].artifact[0] == 5


def test_never_is_equal_to_nothing() -> None:
    assert NEVER != NEVER
    assert [snapshot_of(chat(1)[0])] != [NEVER]


def test_many_messages_push_out_the_oldest_half_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langgraph_resilient.codec.memo._ITEMS", 4)
    memo, values = Memo(), chat(10)
    for index, message in enumerate(values):
        memo.remember(message, snapshot_of(message), index)
    found = [memo.item(message) for message in values]
    assert [item.reference for item in found if item is not None] == [4, 5, 6, 7, 8, 9]


def test_many_leaves_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langgraph_resilient.codec.memo._LEAVES", 4)
    memo = Memo()
    texts = [f"text {index}" * 100 for index in range(6)]
    for index, text in enumerate(texts):
        memo.remember_leaf(text, index)
    assert [memo.leaf(text) for text in texts] == [None] * 4 + [4, 5]
    assert memo.leaf("text 5" * 100 + "") is None  # equal, but another object


# --- plain containers -------------------------------------------------------------------------


def test_a_frozen_copy_is_deep_and_refuses_what_is_not_plain() -> None:
    value = {"a": [1, {"b": "c"}], "d": None}
    frozen = freeze(value)
    assert frozen == value
    value["a"][1]["b"] = "changed"  # type: ignore[index]
    assert frozen != value
    for other in ((1,), {1}, bytearray(b""), np.float64(1), type("S", (str,), {})("x")):
        with pytest.raises(TypeError):
            freeze([other])
        assert not is_plain([{"a": other}])
    assert is_plain(value)


LOOKALIKES = [
    (bytearray(b"abcdefgh"), b"abcdefgh"),
    (np.zeros(2), np.zeros(2, dtype=int)),
    (np.zeros((2, 3)), np.zeros((3, 2))),
    (np.zeros(1), bytes(8)),
    (np.float64(0), np.int64(0)),
    (1, True),
    (1, 1.0),
    (0.0, -0.0),
    ((1, 2), [1, 2]),
]


@pytest.mark.parametrize("pair", LOOKALIKES, ids=lambda pair: f"{pair[0]!r}-{pair[1]!r}")
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("wrap", [list, lambda items: dict(enumerate(items))], ids=["list", "dict"])
def test_a_value_that_becomes_another_type_with_equal_bytes_is_stored_anew(
    pair: tuple[Any, Any], turned: bool, wrap: Callable[[list[Any]], Any]
) -> None:
    bench = Bench()
    first, second = reversed(pair) if turned else pair
    for item in (first, second, first):
        found = bench.there_and_back(wrap([*range(10), item]))[10]
        assert type(found) is type(item)
        if isinstance(item, np.ndarray):
            assert (found.dtype, found.shape) == (item.dtype, item.shape)
            assert found.tobytes() == item.tobytes()
        else:
            assert same(found, item)


def test_values_that_plain_bytes_cannot_tell_apart_are_said_to_be_such() -> None:
    for pair in LOOKALIKES:
        if plain_bytes([pair[0]]) == plain_bytes([pair[1]]):
            assert not any(map(has_no_buffers, ([pair[0]], [pair[1]])))
    for buffers in ([b"x"], {"a": (b"x",)}, {b"x": 1}, [np.int64(1)]):
        assert not has_no_buffers(buffers)
    for plain in ([1, "s", None, True, 1.5], {"a": [{}]}, (1, ("x",))):
        assert has_no_buffers(plain)


def test_clearing_forgets_every_table() -> None:
    memo = Memo()
    for table in (memo.lists, memo.plain, memo.opaque):
        table[1, "a"] = table[2, "a"] = None  # type: ignore[index]
    memo.clear()
    assert not memo.lists
    assert not memo.plain
