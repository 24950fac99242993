"""Key rotation: after `rekey` the old key is not needed, and nothing has changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from langgraph.graph import END, START, MessagesState, StateGraph

from langgraph_resilient import Cipher, ConfigurationError, DecryptionFailed, ResilientSaver
from langgraph_resilient.maintenance import rekey, verify

OLD, NEW = b"o" * 32, b"n" * 32


def graph(saver: ResilientSaver):
    builder = StateGraph(MessagesState)
    builder.add_node("answer", lambda state: {"messages": [("ai", "long answer " * 200)]})
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=saver)


def thread(name: str) -> dict:
    return {"configurable": {"thread_id": name}}


def talk(saver: ResilientSaver, name: str) -> list:
    return graph(saver).invoke({"messages": [("user", f"question {name}")]}, thread(name))[
        "messages"
    ]


def test_after_rekey_the_new_key_alone_reads_everything(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with ResilientSaver.from_conn_string(path, cipher=Cipher(OLD)) as saver:
        before = {name: talk(saver, name) for name in "ab" for _ in range(3)}
    with ResilientSaver.from_conn_string(path, cipher=Cipher(NEW, OLD)) as saver:
        before["c"] = talk(saver, "c")
        first, again = rekey(saver), rekey(saver)
        after = talk(saver, "c")
    assert first.threads == 3
    assert first.frames > again.frames
    with ResilientSaver.from_conn_string(path, cipher=Cipher(NEW)) as saver:
        for name in "ab":
            assert graph(saver).get_state(thread(name)).values["messages"] == before[name]
            assert len(list(saver.list(thread(name)))) == 9
        assert graph(saver).get_state(thread("c")).values["messages"] == after
        assert verify(saver).findings == []


def test_without_rekey_the_old_key_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with ResilientSaver.from_conn_string(path, cipher=Cipher(OLD)) as saver:
        talk(saver, "a")
    with pytest.raises(DecryptionFailed, match="old key"):
        with ResilientSaver.from_conn_string(path, cipher=Cipher(NEW)) as saver:
            saver.get_tuple(thread("a"))


def test_a_database_without_cipher_has_no_key_to_change(tmp_path: Path) -> None:
    with ResilientSaver.from_conn_string(tmp_path / "agent.db") as saver:
        with pytest.raises(ConfigurationError, match="not encrypted"):
            rekey(saver)
