"""The walker: what becomes a blob, what stays inline, what is refused, and the way back."""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from property.strategies import messages, same, values
from pydantic import Secret, SecretBytes, SecretStr
from unit.packing import KEY, Bench

from langgraph_resilient.codec.msgpack import LONG, SLICE
from langgraph_resilient.codec.packed import (
    EXTENSIONS,
    REF,
    REFS,
    SPLICE,
    WITH_ID,
    is_message,
    mask,
    pack,
    pack_series,
    rebase,
    references_of,
    unmask,
    unpack_series,
    unpack_tree,
)
from langgraph_resilient.errors import DataCorrupt, ResilientError, ValueRefused

relaxed = settings(
    deadline=None,
    max_examples=80,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

LEAVES = {
    "none": None,
    "true": True,
    "zero": 0,
    "minus zero": -0.0,
    "infinity": -math.inf,
    "greatest 64-bit": (1 << 64) - 1,
    "smallest 64-bit": -(1 << 63),
    "above 64 bits": 1 << 64,
    "below 64 bits": -(1 << 63) - 1,
    "a thousand digits": 10**1000,
    "bytes": b"\x00\xff",
    "bytearray": bytearray(b"\x00\xff"),
    "lone surrogate": "a\ud800b",
    "nul": "\x00",
    "tuple": (1, [2], (3,)),
    "tuple as key": {(1, "a"): {2: b"x"}},
    "true beside one": [True, 1, 1.0, False, 0],
}


@pytest.mark.parametrize("value", LEAVES.values(), ids=LEAVES.keys())
def test_a_value_comes_back_equal_and_of_its_own_type(value: Any) -> None:
    assert same(Bench().there_and_back(value), value)
    assert same(Bench().there_and_back({"in": [value]}), {"in": [value]})


def test_nan_comes_back_as_nan() -> None:
    assert math.isnan(Bench().there_and_back([math.nan])[0])


@relaxed
@given(values())
def test_any_value_comes_back_from_a_channel_and_from_a_write(value: Any) -> None:
    bench = Bench(leaf_bytes=16, message_leaf_bytes=32)
    raw, written = bench.channel(value), bench.write([value, value])
    assert same(bench.unpack(raw), value)
    assert same(bench.unpack(written), [value, value])
    assert len(reachable(bench, raw) | reachable(bench, written)) == len(bench.contents.stored)


@relaxed
@given(st.lists(messages() | st.integers() | st.text(max_size=4), max_size=12))
def test_a_list_of_messages_and_other_items_keeps_its_order(mixed: list[Any]) -> None:
    bench = Bench()
    assert same(bench.there_and_back(mixed), mixed)
    assert same(bench.there_and_back(mixed), mixed)  # and again, recognised or not


# --- what becomes a blob ----------------------------------------------------------------------


def test_long_strings_and_bytes_become_one_blob_each_and_short_ones_stay_inline() -> None:
    bench = Bench(leaf_bytes=100)
    value = {"a": "x" * 100, "b": "x" * 100, "c": b"y" * 100, "d": "z" * 99}
    raw = bench.channel(value)
    assert len(bench.contents.stored) == 2
    assert b"z" * 99 in raw
    assert b"x" * 100 not in raw
    assert bench.unpack(raw) == value


def test_the_key_of_a_dict_is_never_a_blob() -> None:
    bench = Bench(leaf_bytes=100)
    value = {"k" * 500: 1, ("t" * 500,): 2, b"b" * 500: 3}
    bench.packer().tree(value)
    assert not bench.contents.stored
    assert bench.there_and_back(value) == value


def test_equal_messages_are_one_blob_and_consecutive_ones_one_run() -> None:
    bench = Bench()
    chat: list[BaseMessage] = [HumanMessage(f"word {i}", id=str(i)) for i in range(1000)]
    raw = bench.channel(chat)
    assert len(bench.contents.stored) == 1000
    assert len(raw) < 12
    again = [HumanMessage(m.content, id=m.id) for m in chat]
    assert bench.channel(again, "other") == raw
    assert len(bench.contents.stored) == 1000


def test_the_reader_is_told_which_blobs_a_list_of_messages_consists_of() -> None:
    bench = Bench()
    raw = bench.channel([HumanMessage("a"), AIMessage("b")])
    found = bench.unpack(raw)
    base = bench.contents.base
    assert bench.noted == [(found, [base + 1, base + 2])]
    assert bench.noted[0][0] is found


def test_a_message_inside_other_values_is_a_blob_too() -> None:
    bench = Bench()
    message = AIMessage("hi")
    raw = bench.channel({"deep": [(message,)]})
    assert [is_message(content) for content, _ in bench.contents.stored] == [True]
    assert references_of(raw, bench.contents.base) == [bench.contents.base + 1]


def test_a_growing_long_list_stores_only_its_growth() -> None:
    bench = Bench()
    rows = [f"row {index} of a long table" for index in range(40 * SLICE)]
    bench.channel(rows)
    before, count = bench.contents.size, len(bench.contents.stored)
    grown = [*rows, *(f"new row {index} of it" for index in range(SLICE))]
    assert bench.there_and_back(grown) == grown
    assert len(bench.contents.stored) - count <= 2  # the new slice, and the list of slices
    assert bench.contents.size - before < 2500


def test_a_growing_long_dict_stores_only_its_growth() -> None:
    bench = Bench()
    table = {f"key {index}": f"the value of {index}" for index in range(20 * SLICE)}
    bench.channel(table)
    before = len(bench.contents.stored)
    table["one more"] = "value"
    assert same(bench.there_and_back(table), table)
    assert len(bench.contents.stored) - before <= 3


@pytest.mark.parametrize("count", [LONG, LONG + 1, LONG + SLICE, 3 * LONG + 5])
@pytest.mark.parametrize("item", [7, "a text that is long enough to fill its slice", [1, {"a": 2}]])
def test_long_lists_and_dicts_come_back_whatever_their_slices(count: int, item: Any) -> None:
    bench = Bench()
    assert same(bench.there_and_back([item] * count), [item] * count)
    table = dict.fromkeys(range(count), item)
    assert same(bench.there_and_back(table), table)


def test_small_slices_of_a_long_list_stay_inline() -> None:
    bench = Bench()
    tree = unpack_tree(bench.write([0] * (LONG + 1)))
    assert tree.code == SPLICE
    assert not bench.contents.stored


def test_a_large_remainder_is_a_blob_and_an_unchanged_one_is_recognised() -> None:
    bench = Bench()
    value = {f"k{index}": [index] * 20 for index in range(30)}
    raw = bench.channel(value)
    assert unpack_tree(raw).code == REF
    assert bench.channel({key: list(item) for key, item in value.items()}) == raw
    assert len(bench.contents.stored) == 1


def test_contents_that_name_blobs_are_marked_and_others_are_not() -> None:
    bench = Bench(leaf_bytes=100)
    bench.channel({"long": "x" * 100, "rest": list(range(60)), "more": ["y" * 50] * 12})
    marks = [references for _, references in bench.contents.stored]
    assert marks == [False, True]
    for raw, references in bench.contents.stored:
        assert bool(references_of(raw, bench.contents.base)) <= references


@relaxed
@given(st.lists(values(4), max_size=4))
def test_no_content_that_names_blobs_is_unmarked(items: list[Any]) -> None:
    """Unmarked contents are shared between threads and never looked into by the collector."""
    bench = Bench(leaf_bytes=8, message_leaf_bytes=16)
    bench.channel(items)
    bench.channel([*items, *range(80), {"a": items}], "other")
    for raw, references in bench.contents.stored:
        assert references or not references_of(raw, bench.contents.base)


def test_inside_a_message_only_very_long_leaves_become_blobs() -> None:
    bench = Bench(leaf_bytes=100, message_leaf_bytes=1000)
    picture = {"type": "image_url", "image_url": {"url": "u" * 1000}}
    bench.channel([HumanMessage(["t" * 500, picture]), HumanMessage([picture, "again"])])
    assert len(bench.contents.stored) == 3
    assert sum(len(raw) > 1000 for raw, _ in bench.contents.stored) == 1


def test_the_work_of_a_users_serializer_is_inline_when_short_and_a_blob_when_long() -> None:
    bench = Bench()
    short, long = bench.packer().opaque("json", b"{}"), bench.packer().opaque("x", b"z" * 256)
    assert bench.unpack(pack(short)) == ("json", b"{}")
    assert bench.unpack(pack(long)) == ("x", b"z" * 256)
    assert len(bench.contents.stored) == 1


def test_a_packer_that_keeps_everything_inline_stores_no_blob() -> None:
    far = 1 << 62
    bench = Bench(inline=True, leaf_bytes=far, message_leaf_bytes=far)
    value = {"chat": [HumanMessage("x" * 50_000)], "rows": list(range(500)), "d": {1: "y" * 9000}}
    raw = pack(bench.packer().write("x", value))
    assert not bench.contents.stored
    assert bench.unpack(raw) == value


# --- a message that gets its id later ---------------------------------------------------------


@pytest.mark.parametrize("through_init", [False, True])
def test_an_id_given_after_storing_costs_a_reference_and_comes_back(through_init: bool) -> None:
    bench = Bench()
    message = (
        HumanMessage("hello " * 100, id=None) if through_init else HumanMessage("hello " * 100)
    )
    bench.write([message])
    message.id = "later"
    raw = bench.channel([message])
    content, references = bench.contents.stored[-1]
    assert unpack_tree(content).code == WITH_ID
    assert references
    assert len(content) < 40
    assert is_message(content)
    (found,) = bench.unpack(raw)
    assert same(found, message)
    assert found.__pydantic_fields_set__ == message.__pydantic_fields_set__


def test_a_message_changed_together_with_its_id_is_stored_anew() -> None:
    bench = Bench()
    message = HumanMessage("first")
    bench.write([message])
    message.id, message.content = "later", "second"
    (found,) = bench.unpack(bench.channel([message]))
    assert same(found, message)
    assert not references_of(bench.contents.stored[-1][0], bench.contents.base)


# --- refusals ---------------------------------------------------------------------------------


def test_a_refusal_names_channel_path_and_type() -> None:
    bench = Bench()
    with pytest.raises(ValueRefused) as caught:
        bench.channel({"rows": [1, {"owner": threading.Lock()}]}, "work")
    assert caught.value.channel == "work"
    assert caught.value.path == "['rows'][1]['owner']"
    assert "lock" in caught.value.type_name
    for words in ("'work'", "['rows'][1]['owner']", "lock"):
        assert words in str(caught.value)


def test_a_refused_part_of_a_message_is_named_by_its_attribute() -> None:
    message = ToolMessage("done", tool_call_id="1", artifact={"handle": threading.Lock()})
    for pack_it in (Bench().channel, Bench().write):
        with pytest.raises(ValueRefused) as caught:
            pack_it([HumanMessage("a"), message])
        assert caught.value.path == "[1].artifact['handle']"


def test_a_refusal_leaves_the_packer_and_the_memo_usable() -> None:
    bench = Bench()
    chat: list[Any] = [HumanMessage("a")]
    bench.channel(chat)
    packer = bench.packer()
    for _ in range(3):
        with pytest.raises(ValueRefused):
            packer.channel(1, "x", [*chat, {"a": threading.Lock()}])
        assert bench.unpack(pack(packer.channel(1, "x", [*chat, AIMessage("b")])))[1].content == "b"


def nested(levels: int) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = [value]
    return value


def test_nesting_is_limited_where_the_option_says() -> None:
    bench = Bench(max_depth=20)
    assert bench.there_and_back(nested(20)) == nested(20)
    for levels in (21, 500, 5000):
        with pytest.raises(ValueRefused, match="deeper than 20 levels"):
            bench.channel(nested(levels))


def test_values_that_contain_themselves_are_refused() -> None:
    own_list: list[Any] = []
    own_list.append(own_list)
    own_dict: dict[str, Any] = {}
    own_dict["self"] = [own_dict]
    chunky: list[Any] = list(range(100))
    chunky.append(chunky)
    for value in (own_list, own_dict, chunky):
        for pack_it in (Bench().channel, Bench().write):
            with pytest.raises(ValueRefused, match="contains itself"):
                pack_it(value)


# --- references -------------------------------------------------------------------------------

series = st.lists(st.integers(0, 1 << 50) | st.integers(100, 110), max_size=30)


@given(series, st.integers(0, 1 << 48))
def test_a_series_of_references_comes_back(references: list[int], base: int) -> None:
    assert unpack_series(pack_series(references, base), base) == references


@given(st.integers(0, 1 << 40), st.integers(2, 5000))
def test_a_run_takes_a_few_bytes_however_long(start: int, length: int) -> None:
    packed = pack_series(range(start, start + length), start)
    assert len(packed) <= 3
    assert unpack_series(packed, start) == list(range(start, start + length))


@given(st.binary(max_size=4))
def test_a_damaged_series_is_corrupt_and_nothing_else(data: bytes) -> None:
    try:
        found = unpack_series(data, 0)
    except DataCorrupt:
        return
    assert all(type(item) is int for item in found)


def test_a_cut_or_absurd_series_is_refused() -> None:
    with pytest.raises(DataCorrupt, match="cut off"):
        unpack_series(pack_series([5, 6, 7], 0)[:-1], 0)
    with pytest.raises(DataCorrupt, match="longer than any thread"):
        unpack_series(b"\x01" + b"\xff\xff\xff\xff\x0f", 0)


@relaxed
@given(st.lists(values(4), max_size=4))
def test_rebased_bytes_name_the_same_contents_of_another_thread(items: list[Any]) -> None:
    old, new = 5 << 24, 9 << 24
    bench, other = Bench(old, leaf_bytes=8), Bench(new, leaf_bytes=8)
    raw = bench.channel([*items, AIMessage("x")])
    moved = rebase(raw, old, new)
    assert rebase(moved, new, old) == raw
    assert references_of(moved, new) == references_of(raw, old)
    other.contents.stored = [
        (rebase(content, old, new), references) for content, references in bench.contents.stored
    ]
    bench.contents.base = old
    # A reference is a blob's full number: the copy still names the blobs of the first thread.
    other.fetch = bench.fetch  # type: ignore[method-assign]
    assert same(other.unpack(moved), bench.unpack(raw))


def test_every_named_blob_is_found_also_inside_objects_and_slices() -> None:
    bench = Bench(leaf_bytes=50)
    value = {
        "tuple": ("a" * 50, {"b" * 50}),
        "long": ["c" * 60] * 100,
        "chat": [HumanMessage("m"), 1, AIMessage("n")],
    }
    raw = bench.channel(value)
    assert len(reachable(bench, raw)) == len(bench.contents.stored)


def reachable(bench: Bench, raw: bytes) -> set[int]:
    """Every blob that a collector would find from here."""
    found: set[int] = set()
    waiting = references_of(raw, bench.contents.base)
    while waiting:
        reference = waiting.pop()
        found.add(reference)
        waiting += references_of(bench.contents.raw(reference), bench.contents.base)
    return found


def test_what_is_a_message_is_told_by_its_first_bytes() -> None:
    bench = Bench()
    bench.channel([HumanMessage("x" * size) for size in (0, 1, 300, 7_000)])
    assert [is_message(raw) for raw, _ in bench.contents.stored] == [True] * 4
    for other in (b"", b"\xc7", pack([1]), pack("text"), bench.write((1, 2)), bench.write({1})):
        assert not is_message(other)
    assert {raw[0] for raw, _ in bench.contents.stored} <= set(EXTENSIONS) | {0xD4, 0xD5, 0xD6}


# --- secrets ----------------------------------------------------------------------------------


def test_a_secret_does_not_stand_readable_and_equal_ones_look_equal() -> None:
    bench = Bench()
    raw = bench.write({"key": SecretStr("correct horse battery staple")})
    assert b"horse" not in raw
    assert bench.write({"key": SecretStr("correct horse battery staple")}) == raw
    found = bench.unpack(raw)["key"]
    assert found == SecretStr("correct horse battery staple")
    assert references_of(raw, 0) == []


@pytest.mark.parametrize(
    "secret",
    [
        SecretStr("-----BEGIN PRIVATE KEY----- horse " * 200),
        SecretBytes(b"horse" * 2000),
        Secret[dict]({"chat": [HumanMessage("horse " * 900)], "rows": ["horse " * 20] * 300}),
    ],
    ids=["text", "bytes", "nested"],
)
def test_a_long_secret_is_no_blob_of_its_own(secret: Any) -> None:
    """A blob would stand readable in the file, and a collector could not see who names it."""
    bench = Bench(leaf_bytes=100)
    raw = bench.channel({"key": secret})
    everything = raw + b"".join(content for content, _ in bench.contents.stored)
    assert b"horse" not in everything
    assert same(bench.unpack(raw)["key"], secret)
    assert len(reachable(bench, raw)) == len(bench.contents.stored)


@given(st.binary(max_size=300), st.binary(min_size=1, max_size=64))
def test_hiding_is_undone_by_the_same_key_only(data: bytes, key: bytes) -> None:
    hidden = mask(data, key)
    assert unmask(hidden, key) == data
    if len(data) > 8:
        assert unmask(hidden, key + b"x" if len(key) < 64 else key[1:]) != data


# --- damage -----------------------------------------------------------------------------------


def refused_or_read(bench: Bench, raw: bytes) -> None:
    with suppress(ResilientError):
        bench.unpack(raw)


@relaxed
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    refused_or_read(Bench(), raw)


@relaxed
@given(values(6), st.data())
def test_damaged_packed_values_are_read_or_refused(value: Any, data: st.DataObject) -> None:
    """Seals find damage first; behind them nothing but our own errors may come."""
    bench = Bench()
    raw = bytearray(bench.write(value))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    refused_or_read(bench, bytes(raw))
    refused_or_read(bench, bytes(raw[:at]))


def test_a_series_as_a_value_is_a_list_of_what_it_names() -> None:
    bench = Bench()
    raw = bench.channel([HumanMessage("a")])
    assert unpack_tree(raw).code == REFS
    bench.contents.stored.clear()
    with pytest.raises(DataCorrupt, match="missing"):
        bench.unpack(raw)


def test_the_key_hides_and_the_wrong_key_does_not_restore_a_secret() -> None:
    bench = Bench()
    raw = bench.write(SecretStr("s" * 40))
    assert KEY not in raw
    tree = unpack_tree(raw)
    with pytest.raises((DataCorrupt, ValueError)):
        unpack_tree(unmask(tree.data, b"another"))
