"""What makes two calls one call: canonical arguments and the recipe of the key."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
import random
import subprocess
import sys
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, replace
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from pydantic import BaseModel

from langgraph_resilient import calls
from langgraph_resilient.errors import ValueRefused
from langgraph_resilient.ledger.keys import digest_of
from langgraph_resilient.records import (
    CallName,
    CallRecord,
    CallState,
    Effect,
    Event,
    Owner,
)

ROOT = Path(__file__).resolve().parents[2]


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class Word(str):
    pass


class Count(int):
    pass


class Share(float):
    pass


@dataclass
class Point:
    x: int
    y: int


@dataclass
class Place:
    x: int
    y: int


class Order(BaseModel):
    id: int
    tags: dict[str, int] = {}


class Connection:
    """Cannot be stored."""

    def __init__(self) -> None:
        self.lock = object()


Pair = namedtuple("Pair", "x y")

SAME: list[tuple[str, Any, Any]] = [
    ("key order", {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}),
    ("tuple and list", {"a": (1, (2, 3))}, {"a": [1, [2, 3]]}),
    ("sets in any order", {"a": {"x", "y", "z"}}, {"a": frozenset(["z", "y", "x"])}),
    ("not a number", {"a": float("nan")}, {"a": float("nan")}),
    ("big integers", 10**40, 10**40),
    ("a subclass of str", {"a": Word("x")}, {"a": "x"}),
    ("a subclass of str as a key", {Word("a"): 1}, {"a": 1}),
    ("a subclass of int", Count(10**30), 10**30),
    ("a subclass of float", Share(0.5), 0.5),
    ("kinds of mappings", OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
    ("a mapping with a default", defaultdict(int, a=1), {"a": 1}),
    ("a mapping that is no dict", MappingProxyType({"a": 1}), {"a": 1}),
    ("models", Order(id=1, tags={"a": 1, "b": 2}), Order(id=1, tags={"b": 2, "a": 1})),
    ("dataclasses", Point(1, 2), Point(1, 2)),
    ("deques of sets", deque([{"x", "y"}]), deque([{"y", "x"}])),
    ("named tuples of mappings", Pair({"a": 1, "b": 2}, 3), Pair({"b": 2, "a": 1}, 3)),
    ("what cannot be stored", {"c": Connection()}, {"c": Connection()}),
    ("a lone surrogate", "\ud800", "\ud800"),
    ("times", datetime(2024, 1, 2, tzinfo=timezone.utc), datetime(2024, 1, 2, tzinfo=timezone.utc)),
]


@pytest.mark.parametrize(("one", "other"), [row[1:] for row in SAME], ids=[r[0] for r in SAME])
def test_equal_arguments_have_one_digest(one: Any, other: Any) -> None:
    assert digest_of(one) == digest_of(other)
    assert len(digest_of(one)) == 16


DIFFERENT: list[Any] = [
    None,
    0,
    2,
    2.0,
    "2",
    b"2",
    1,
    True,
    1.0,
    "1",
    False,
    0.0,
    -0.0,
    "",
    b"",
    [],
    {},
    set(),
    [[]],
    [1],
    [1, 2],
    [2, 1],
    {1},
    {1: 1},
    {"1": 1},
    {True: 1},
    {"a": None},
    {"a": 1, "b": 2},
    {"a": 2, "b": 1},
    # What stands for something else inside must not be what somebody can write.
    ["list"],
    ["list", 1],
    ["map", [["a", 1], ["b", 2]]],
    ["set", [1]],
    ["int", str(1 << 70)],
    1 << 70,
    -(1 << 70),
    (1 << 64) - 1,
    1 << 64,
    -(1 << 63),
    -(1 << 63) - 1,
    ["enum", "Colour", "RED"],
    Colour.RED,
    Colour.BLUE,
    Level.LOW,
    "RED",
    Point(1, 2),
    Point(2, 1),
    Place(1, 2),
    Pair(1, 2),
    Pair(2, 1),
    {"x": 1, "y": 2},
    deque([1, 2]),
    Order(id=1),
    Order(id=2),
    Order,
    Point,
    Connection,
    Connection(),
    float("nan"),
    float("inf"),
    float("-inf"),
    date(2024, 1, 2),
    datetime(2024, 1, 2, tzinfo=timezone.utc),
    Decimal("1.0"),
    Decimal("1.00"),
    UUID(int=1),
    Path("a"),
    "a",
    HumanMessage("a", id="1"),
    HumanMessage("b", id="1"),
    "\ud800",
]


def test_different_arguments_have_different_digests() -> None:
    seen: dict[bytes, Any] = {}
    for value in DIFFERENT:
        for wrapped in (value, {"wrapped": value}):
            digest = digest_of(wrapped)
            assert digest not in seen, f"{wrapped!r} and {seen[digest]!r} have one digest"
            seen[digest] = wrapped


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def shuffled(value: Any, dice: random.Random) -> Any:
    """The same JSON, its objects in another order and some lists as tuples."""
    if isinstance(value, dict):
        items = [(key, shuffled(item, dice)) for key, item in value.items()]
        dice.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        kind = dice.choice([list, tuple])
        return kind(shuffled(item, dice) for item in value)
    return value


@given(JSON, st.randoms(use_true_random=False))
def test_a_trip_through_json_and_another_order_change_nothing(value: Any, dice: Any) -> None:
    again = json.loads(json.dumps(value))
    assert digest_of(shuffled(again, dice)) == digest_of(value)


@given(JSON, JSON)
def test_two_jsons_have_one_digest_only_when_they_are_equal(one: Any, other: Any) -> None:
    text = [json.dumps(item, sort_keys=True) for item in (one, other)]
    assert (digest_of(one) == digest_of(other)) == (text[0] == text[1])


def test_another_process_with_another_hash_seed_finds_the_same_digest() -> None:
    """A resume happens in another process: nothing may depend on the order of sets there."""
    code = (
        "from collections import deque\n"
        "from langgraph_resilient.ledger.keys import digest_of\n"
        "words = {f'w{n}' for n in range(40)}\n"
        "print(digest_of({'a': words, 'b': deque([words]), 'c': {w: 1 for w in words}}).hex())\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_arguments_that_hold_themselves_are_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    for endless in (ring, {"a": ring}):
        with pytest.raises(ValueRefused, match="hold themselves"):
            digest_of(endless)


# --- the key --------------------------------------------------------------------------------

NAME = CallName(
    thread_id="t",
    parent=b"p" * 16,
    message_id="m",
    tool_call_id="c",
    tool="send",
    arguments=b"a" * 16,
    path="twin 1",
)
BUSINESS = replace(NAME, business="order:1")
EVERYWHERE = replace(BUSINESS, everywhere=True)


def changed(name: CallName, field: str) -> CallName:
    value = getattr(name, field)
    other = value + (b"x" if isinstance(value, bytes) else "x")
    return replace(name, **{field: other})


FIELDS = ("thread_id", "parent", "message_id", "tool_call_id", "tool", "arguments", "path")


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_changes_the_key(field: str) -> None:
    assert calls.key_of(changed(NAME, field)) != calls.key_of(NAME)


def test_the_key_is_made_of_nothing_else() -> None:
    """A field that is added to the name must be decided about here."""
    assert {f.name for f in dataclasses.fields(CallName)} == {*FIELDS, "business", "everywhere"}


@pytest.mark.parametrize("field", FIELDS)
def test_a_business_key_counts_alone_but_for_tool_and_thread(field: str) -> None:
    same = calls.key_of(changed(BUSINESS, field)) == calls.key_of(BUSINESS)
    assert same is (field not in ("tool", "thread_id"))


@pytest.mark.parametrize("field", FIELDS)
def test_a_global_business_key_counts_alone_but_for_the_tool(field: str) -> None:
    same = calls.key_of(changed(EVERYWHERE, field)) == calls.key_of(EVERYWHERE)
    assert same is (field != "tool")


def test_kinds_of_keys_are_never_taken_for_one_another() -> None:
    bare = CallName(thread_id="t", tool="send", arguments=b"")
    names = [
        NAME,
        BUSINESS,
        EVERYWHERE,
        replace(BUSINESS, business="order:2"),
        bare,
        replace(bare, business=""),
        replace(bare, business="", everywhere=True),
        replace(bare, thread_id="", business=""),
    ]
    keys = [calls.key_of(name) for name in names]
    # A global key and one of a thread without a name differ as well.
    assert len(set(keys)) == len(names), keys


TEXTS = st.lists(
    st.sampled_from(["", "a", "b", "ab", "aa", "\0", "\ud800"]), min_size=6, max_size=6
)


def named(parts: list[str]) -> CallName:
    thread, parent, message, call, tool, path = parts
    return replace(
        NAME,
        thread_id=thread,
        parent=parent.encode("utf-8", "surrogatepass"),
        message_id=message,
        tool_call_id=call,
        tool=tool,
        path=path,
    )


@given(TEXTS, TEXTS)
def test_no_boundary_between_fields_can_be_moved(one: list[str], other: list[str]) -> None:
    assert (calls.key_of(named(one)) == calls.key_of(named(other))) == (one == other)


def test_a_boundary_moved_from_each_field_to_the_next() -> None:
    keys = {calls.key_of(named(["aa" if k == n else "" for k in range(6)])) for n in range(6)} | {
        calls.key_of(named(["a" if k in (n, n + 1) else "" for k in range(6)])) for n in range(5)
    }
    assert len(keys) == 11


def test_keys_of_this_release_stay_what_they_are() -> None:
    """Files hold them: another recipe would run finished calls again."""
    arguments = digest_of({"to": "a@b.c", "lines": [1, 2.5, None, {"x": True}]})
    assert arguments.hex() == "42bb15129317f64e7761db83d7abcadb"
    name = replace(NAME, arguments=arguments)
    assert calls.key_of(name).hex() == "5a5f1b88c4697ec3568d635773263bd7"
    assert (
        calls.key_of(replace(name, business="order:1")).hex() == "7b2aec9f259b5b1943b3210c86e83ef2"
    )


# --- the packed layout ----------------------------------------------------------------------

ANY_TEXT = st.text()
NAMES = st.builds(
    CallName,
    thread_id=st.just("t"),
    parent=st.binary(max_size=16),
    message_id=ANY_TEXT,
    tool_call_id=ANY_TEXT,
    tool=ANY_TEXT,
    arguments=st.binary(max_size=16),
    path=ANY_TEXT,
    business=st.none() | ANY_TEXT,
    everywhere=st.booleans(),
)
COUNTS = st.integers(0, 1 << 40)
TIMES = st.floats(0, 4e9)
RECORDS = st.builds(
    CallRecord,
    call=st.integers(1 << 32, 1 << 60),
    home=COUNTS,
    key=st.binary(min_size=16, max_size=16),
    name=NAMES,
    state=st.sampled_from(CallState),
    version=COUNTS,
    attempt=COUNTS,
    epoch=COUNTS,
    owner=st.builds(Owner, boot=ANY_TEXT, host=ANY_TEXT, pid=COUNTS, started=COUNTS),
    effect=st.sampled_from(Effect),
    first_at=TIMES,
    started_at=TIMES,
    ended_at=st.none() | TIMES,
    flags=st.frozensets(st.sampled_from(["weak", "degraded", "error", "parent"])),
    position=COUNTS,
    history=st.lists(
        st.builds(Event, at=TIMES, what=ANY_TEXT, by=ANY_TEXT, reason=ANY_TEXT), max_size=3
    ).map(tuple),
    values=st.dictionaries(
        st.sampled_from(["arguments", "result", "error", "answers"]), st.binary(max_size=40)
    ).map(lambda found: tuple(found.items())),
)


@given(RECORDS)
def test_a_packed_record_comes_back_equal(record: CallRecord) -> None:
    row = (record.call, record.key, int(record.state), record.version)
    assert calls.call_from(calls.packed_call(record), row, "t") == record


@given(RECORDS, st.data())
def test_packed_bytes_that_are_cut_are_damage(record: CallRecord, data: Any) -> None:
    from langgraph_resilient.errors import DataCorrupt

    packed = calls.packed_call(record)
    cut = packed[: data.draw(st.integers(0, len(packed) - 1))]
    row = (record.call, record.key, int(record.state), record.version)
    with pytest.raises(DataCorrupt):
        calls.call_from(cut, row, "t")


@pytest.mark.parametrize("state", [0, 6, 99, -1])
def test_a_state_that_there_is_not_is_damage(state: int) -> None:
    from langgraph_resilient.errors import DataCorrupt

    record = CallRecord(
        key=b"k" * 16,
        name=NAME,
        state=CallState.STARTED,
        version=1,
        attempt=1,
        epoch=1,
        owner=Owner(boot="", host="", pid=1, started=1),
        effect=Effect.PURE,
        first_at=0.0,
        started_at=0.0,
    )
    with pytest.raises(DataCorrupt, match="no call"):
        calls.call_from(calls.packed_call(record), (1, record.key, state, 1), "t")


def test_every_pair_of_names_of_a_thread_has_its_own_lease_and_call_place() -> None:
    """A seal of one row must fit no other: thread, state, version and key are all in it."""
    places = {
        calls.call_place(*values)
        for values in itertools.product((1, 2), (b"a", b"b"), (1, 2), (1, 2))
    } | {calls.lease_place(*values) for values in itertools.product((1, 2), (1, 2), (1, 2))}
    assert len(places) == 16 + 8
