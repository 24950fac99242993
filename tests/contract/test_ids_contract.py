"""Ids of threads and checkpoints: what they may be, and what they never are."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from building import Thread, checkpoint, config, facts, ids

from langgraph_resilient import ResilientSaver
from langgraph_resilient.errors import ConfigurationError


@pytest.mark.parametrize(
    "thread_id",
    [
        7,
        uuid.UUID(int=9),
        "",
        " ",
        "ünïcode-線",
        'quo"ted',
        "it's",
        "a;b--",
        "%",
        "x" * 3000,
        "a\x00b",
    ],
    ids=repr,
)
def test_any_thread_id_works(saver: ResilientSaver, thread_id: Any) -> None:
    Thread(saver, "neighbour").put({"x": "other"})
    where = Thread(saver, thread_id).put({"x": 1})
    saver.put_writes(where, [("x", 2)], "task")
    found = saver.get_tuple(config(str(thread_id)))
    assert found.checkpoint["channel_values"] == {"x": 1}
    assert found.pending_writes == [("task", "x", 2)]
    assert facts(saver.get_tuple(config(thread_id))) == facts(found)
    assert len(list(saver.list(config(thread_id)))) == 1
    saver.delete_thread(thread_id)
    assert saver.get_tuple(config(thread_id)) is None
    assert saver.get(config("neighbour"))["channel_values"] == {"x": "other"}


@pytest.mark.parametrize("odd", ["1", "abc", "2024-01-01T00:00", "ü'\"", "zz/..", "x" * 500])
def test_checkpoint_ids_need_not_be_uuids(saver: ResilientSaver, odd: str) -> None:
    thread = Thread(saver)
    first = thread.put({"x": 1}, id=odd)
    second = thread.put({"x": 2}, id=odd + "-2")
    assert first["configurable"]["checkpoint_id"] == odd
    assert saver.get_tuple(first).checkpoint["channel_values"] == {"x": 1}
    assert saver.get_tuple(second).parent_config == config("t", odd)
    assert ids(saver.list(config())) == [odd + "-2", odd]


def test_namespaces_do_not_mix(saver: ResilientSaver) -> None:
    for ns in ("", "child", "child:1|grand:2"):
        Thread(saver, ns=ns).put({"x": ns})
    for ns in ("", "child", "child:1|grand:2"):
        assert saver.get(config(ns=ns))["channel_values"] == {"x": ns}
    assert len(list(saver.list({"configurable": {"thread_id": "t"}}))) == 3


def test_a_config_without_a_namespace_means_the_root(saver: ResilientSaver) -> None:
    Thread(saver).put({"x": 1})
    assert saver.get({"configurable": {"thread_id": "t"}})["channel_values"] == {"x": 1}
    where = saver.put({"configurable": {"thread_id": "u"}}, checkpoint({"x": 2}), {}, {"x": 1})
    assert where["configurable"]["checkpoint_ns"] == ""
    assert saver.get(config("u"))["channel_values"] == {"x": 2}


def test_a_config_without_a_thread_says_so(saver: ResilientSaver) -> None:
    with pytest.raises((ConfigurationError, KeyError), match="thread_id"):
        saver.put({"configurable": {}}, checkpoint(), {}, {})
