"""Contents that threads share outlive the thread that made them, whatever they were made with."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from building import Thread, config
from conftest import SaverFactory
from langchain_core.messages import HumanMessage

from langgraph_resilient import ResilientSaver
from langgraph_resilient.codec.packed import pack
from langgraph_resilient.draft import Draft

WORDS = ("alpha", "beta", "gamma", "delta", "epsilon")


def messages(count: int, words: int) -> list[HumanMessage]:
    """Messages of no repeating text, so that a template is worth its while."""
    source = random.Random(7)
    return [
        HumanMessage(
            " ".join(f"{source.choice(WORDS)}{source.random()}" for _ in range(words)), id=f"m{n}"
        )
        for n in range(count)
    ]


def fill(saver: Any, thread_id: str, said: list[HumanMessage]) -> None:
    thread = Thread(saver, thread_id)
    for count in range(1, len(said) + 1):
        thread.put({"messages": said[:count]})


@pytest.mark.parametrize(("count", "words"), [(3, 1500), (60, 100)], ids=["nested", "template"])
def test_a_copy_stays_whole_when_its_source_is_deleted(
    saver_factory: SaverFactory, count: int, words: int
) -> None:
    """Nested: a text inside a message is a content too. Template: frames that need the source's."""
    if not saver_factory.persistent:
        pytest.skip("an in-memory database ends with its saver")
    said = messages(count, words)
    with saver_factory() as saver:
        fill(saver, "source", said)
        saver.copy_thread("source", "copy")
        saver.copy_thread("copy", "third")
        saver.delete_thread("source")
        saver.prune(["copy"])
        saver.delete_thread("copy")
    with saver_factory() as saver:
        assert saver.get_tuple(config("source")) is None
        found = saver.get_tuple(config("third"))
        assert found.checkpoint["channel_values"]["messages"] == said


def test_an_equal_message_stays_when_the_thread_that_said_it_first_is_deleted(
    file_factory: SaverFactory,
) -> None:
    said = messages(60, 100)
    with file_factory() as saver:
        fill(saver, "first", said)
        fill(saver, "second", said[-3:])
        saver.delete_thread("first")
    with file_factory() as saver:
        found = saver.get_tuple(config("second"))
        assert found.checkpoint["channel_values"]["messages"] == said[-3:]


def test_contents_of_a_failed_commit_do_not_stay_in_a_cache(tmp_path: Path) -> None:
    """Work behind it in the same transaction has read them; their numbers are given out again."""
    with ResilientSaver.from_conn_string(tmp_path / "agent.db") as saver:
        engine = saver._engine
        thread = Thread(saver)
        thread.put({"x": 1})
        state = engine.state("t")
        draft = Draft(engine, state)
        blob = draft(pack(HumanMessage("never stored").content), False)
        engine.cache.put(blob, "what somebody read before the commit failed")
        draft.failed()
        assert engine.cache.get(blob) is None
        assert not state.loaded
        engine.release(state)
