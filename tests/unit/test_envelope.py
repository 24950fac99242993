"""A checkpoint without its values: keys, order and texts come back exactly."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.base import empty_checkpoint

from langgraph_resilient.codec.envelope import (
    EXTRA,
    FOLDED,
    METADATA,
    PARTS,
    VALUES,
    WALKABLE,
    WALKED,
    checkpoint_from,
    envelope_tree,
    pack_time,
    unknown_keys,
    unpack_time,
)

KEYS = ("v", "ts", "id", "channel_values", "channel_versions", "versions_seen", "updated_channels")


def there_and_back(checkpoint: dict[str, Any]) -> dict[str, Any]:
    values = checkpoint.get("channel_values", {})
    tree = envelope_tree(checkpoint, {}, {}, unknown_keys(checkpoint))
    return checkpoint_from(tree, checkpoint.get("id", ""), values)


def full() -> dict[str, Any]:
    return {
        "v": 4,
        "ts": "2024-05-06T07:08:09.123456+00:00",
        "id": "1ef",
        "channel_values": {"a": 1},
        "channel_versions": {"a": "00001.5"},
        "versions_seen": {"node": {"a": "00001.5"}},
        "updated_channels": ["a"],
    }


@given(st.sets(st.sampled_from(KEYS)))
def test_exactly_the_keys_that_were_there_come_back(present: set[str]) -> None:
    checkpoint = {key: item for key, item in full().items() if key in present}
    found = there_and_back(checkpoint)
    assert found == checkpoint
    assert list(found) == [key for key in KEYS if key in present]


def test_none_is_not_the_same_as_missing() -> None:
    checkpoint = {**full(), "updated_channels": None, "ts": None}
    assert there_and_back(checkpoint) == checkpoint
    del checkpoint["updated_channels"]
    assert there_and_back(checkpoint) == checkpoint


def test_langgraphs_own_checkpoint_comes_back() -> None:
    checkpoint = dict(empty_checkpoint())
    assert there_and_back(checkpoint) == checkpoint


def test_keys_of_later_releases_come_back() -> None:
    checkpoint = {**full(), "pending_sends": [1], "later": {"x": None}}
    assert unknown_keys(checkpoint) == {"pending_sends": [1], "later": {"x": None}}
    assert there_and_back(checkpoint) == checkpoint


def test_the_parts_stand_where_readers_look_for_them() -> None:
    tree = envelope_tree(full(), {"a": b"value"}, b"meta", b"extra")
    assert len(tree) == PARTS
    assert tree[METADATA] == b"meta"
    assert tree[VALUES] == {"a": b"value"}
    assert tree[EXTRA] == b"extra"
    assert tree[FOLDED] is None
    assert tree[0] < WALKED
    assert {METADATA, VALUES, EXTRA, FOLDED}.isdisjoint(WALKABLE)


# --- time -------------------------------------------------------------------------------------


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(timezone.utc)))
def test_a_time_of_langgraph_becomes_a_number_and_comes_back(moment: datetime) -> None:
    text = moment.isoformat()
    stored = pack_time(text)
    assert type(stored) is int
    assert unpack_time(stored) == text


OTHER_TIMES = [
    None,
    "",
    "yesterday",
    "+00:00",
    "2024-05-06",
    "2024-05-06T07:08:09",
    "2024-05-06T07:08:09Z",
    "2024-05-06T07:08:09.123+00:00",
    "2024-05-06T07:08:09.000000+00:00",
    "2024-05-06 07:08:09+00:00",
    "2024-05-06T07:08:09+02:00",
    "20240506T070809+00:00",
    "2024-W19-1T00:00:00+00:00",
    datetime(2024, 5, 6, tzinfo=timezone(timedelta(hours=2))).isoformat(),
]


@pytest.mark.parametrize("text", OTHER_TIMES)
def test_any_other_time_comes_back_as_it_was(text: Any) -> None:
    assert unpack_time(pack_time(text)) == text


@given(st.text(max_size=12) | st.text(max_size=12).map(lambda text: text + "+00:00"))
def test_any_text_where_a_time_should_be_comes_back(text: str) -> None:
    assert unpack_time(pack_time(text)) == text


@given(st.integers() | st.floats(allow_nan=False) | st.booleans())
def test_what_is_no_text_where_a_time_should_be_comes_back(value: Any) -> None:
    found = there_and_back({**full(), "ts": value})["ts"]
    assert found == value
    assert type(found) is type(value)
