"""Stored names: short, unambiguous, and every text comes back."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.base.id import uuid6

from langgraph_resilient.codec.keys import pack_name, unpack_name
from langgraph_resilient.errors import DataCorrupt

surrogates = st.characters(categories=["Cs", "Ll", "Nd"])
names = (
    st.text(max_size=40)
    | st.text(surrogates, max_size=20)
    | st.uuids().map(str)
    | st.uuids().map(lambda item: str(item).upper())
    | st.uuids().map(lambda item: item.hex)
    | st.binary(min_size=14, max_size=16).map(lambda item: item.decode("latin-1"))
)


@given(names)
def test_a_name_comes_back(name: str) -> None:
    assert unpack_name(pack_name(name)) == name


@given(names, names)
def test_different_names_never_share_a_stored_form(first: str, second: str) -> None:
    assert (pack_name(first) == pack_name(second)) == (first == second)


@given(names)
def test_only_a_uuid_as_langgraph_writes_it_takes_sixteen_bytes(name: str) -> None:
    stored = pack_name(name)
    is_uuid = len(name) == 36 and _canonical(name)
    assert (len(stored) == 16) == is_uuid
    assert len(stored) <= max(16, len(name.encode("utf-8", "surrogatepass")) + 2)


def _canonical(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False


@pytest.mark.parametrize("make", [uuid4, uuid6])
def test_ids_of_langgraph_take_sixteen_bytes(make: object) -> None:
    name = str(make())  # type: ignore[operator]
    assert len(pack_name(name)) == 16
    assert unpack_name(pack_name(name)) == name


@pytest.mark.parametrize("text", ["x" * 15, "x" * 14, "x" * 16, "é" * 7 + "x", "\ud800" * 5])
def test_texts_around_sixteen_bytes_are_not_taken_for_a_uuid(text: str) -> None:
    assert len(pack_name(text)) != 16
    assert unpack_name(pack_name(text)) == text


@given(st.binary(max_size=24))
def test_any_bytes_are_a_name_or_refused(stored: bytes) -> None:
    with suppress(DataCorrupt):
        assert isinstance(unpack_name(stored), str)


@pytest.mark.parametrize("stored", [b"", b"x", b"T", b"t\xff", b"T\x00\xff", b"\x00" * 15])
def test_bytes_that_are_no_name_are_refused(stored: bytes) -> None:
    if stored == b"T":
        assert unpack_name(stored) == ""
        return
    with pytest.raises(DataCorrupt):
        unpack_name(stored)
