"""A checkpoint's parent: stored as a distance where it can be, always read back as its id."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base.id import uuid6

from langgraph_resilient import DataCorrupt, ResilientSaver
from langgraph_resilient.maintenance import verify


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[ResilientSaver]:
    with ResilientSaver.from_conn_string(tmp_path / "agent.db") as made:
        yield made


def put(
    saver: ResilientSaver, parent: str | None, id: str | None = None, thread: str = "t", **meta: Any
) -> str:
    named = {"thread_id": thread, "checkpoint_ns": ""}
    config: Any = {"configurable": {**named, **({"checkpoint_id": parent} if parent else {})}}
    checkpoint: Any = {
        "v": 4,
        "id": id or str(uuid6()),
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": {"n": 1},
        "channel_versions": {"n": 1},
        "versions_seen": {},
        "updated_channels": None,
    }
    saver.put(config, checkpoint, {"step": 1, **meta}, {"n": 1})
    return str(checkpoint["id"])


def links(saver: ResilientSaver, thread: str = "t") -> dict[str, str | None]:
    return {
        found.checkpoint["id"]: found.parent_config
        and found.parent_config["configurable"]["checkpoint_id"]
        for found in saver.list({"configurable": {"thread_id": thread}})
    }


def stored(saver: ResilientSaver) -> list[Any]:
    with saver.cursor(transaction=False) as cursor:
        return [r[0] for r in cursor.execute("SELECT parent FROM resilient_checkpoints")]


def test_forks_and_interleaved_threads_name_their_parents(saver: ResilientSaver) -> None:
    first = put(saver, None)
    other = put(saver, None, thread="other")
    second = put(saver, first)
    fork = put(saver, first)
    later = put(saver, other, thread="other")
    assert links(saver) == {first: None, second: first, fork: first}
    assert links(saver, "other") == {other: None, later: other}
    assert stored(saver) == [None, None, 2, 3, 3]


def test_a_parent_that_is_not_there_keeps_its_name(saver: ResilientSaver) -> None:
    gone = str(uuid6())
    odd = put(saver, "no uuid")
    orphan = put(saver, gone)
    assert links(saver) == {odd: "no uuid", orphan: gone}


def test_a_checkpoint_put_again_takes_its_new_parent_and_stays_one(saver: ResilientSaver) -> None:
    first = put(saver, None)
    second = put(saver, first)
    third = put(saver, second)
    put(saver, third, second)
    put(saver, None, third)
    assert links(saver) == {first: None, second: third, third: None}


def test_a_checkpoint_may_be_its_own_parent(saver: ResilientSaver) -> None:
    alone = str(uuid6())
    put(saver, alone, alone)
    put(saver, alone, alone)
    assert links(saver) == {alone: alone}


def test_links_skip_what_was_deleted(saver: ResilientSaver) -> None:
    first = put(saver, None, run_id="a")
    second = put(saver, first, run_id="b")
    third = put(saver, second, run_id="b")
    last = put(saver, third, run_id="c")
    saver.delete_for_runs(["b"])
    assert links(saver) == {first: None, last: first}
    saver.copy_thread("t", "copy")
    assert links(saver, "copy") == {first: None, last: first}
    saver.prune(["t"])
    assert links(saver) == {last: None}
    put(saver, last)
    assert not verify(saver).findings


@pytest.mark.parametrize("value", [0, 1, 2, -1, 7, 1 << 40, b"", b"x" * 16, "text", 1.5])
def test_an_edited_link_is_never_believed(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "agent.db"
    with ResilientSaver.from_conn_string(path, integrity_key=b"k" * 16) as saver:
        ids = [put(saver, None)]
        for _ in range(3):
            ids.append(put(saver, ids[-1]))
        wanted = links(saver)
    for seq in (1, 2, 4):
        with sqlite3.connect(path) as editor:
            (old,) = editor.execute(
                "SELECT parent FROM resilient_checkpoints WHERE seq = ?", (seq,)
            ).fetchone()
            editor.execute(
                "UPDATE resilient_checkpoints SET parent = ? WHERE seq = ?", (value, seq)
            )
        editor.close()
        with ResilientSaver.from_conn_string(path, integrity_key=b"k" * 16) as saver:
            if value == old:
                assert links(saver) == wanted
            else:
                with pytest.raises(DataCorrupt):
                    links(saver)
        with sqlite3.connect(path) as editor:
            editor.execute("UPDATE resilient_checkpoints SET parent = ? WHERE seq = ?", (old, seq))
        editor.close()
