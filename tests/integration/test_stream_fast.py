"""Answers that come faster than they can be stored one by one: chunks share commits, nothing is lost."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from building import in_child
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from wired import Crash, Lost, is_replayed, last, shown, states, thinking, tokens, user, where

from langgraph_resilient import ResilientSaver, durable
from langgraph_resilient.stream.buffer import StreamBuffer

WORDS = 2000
TEXT = " ".join(map(str, range(WORDS)))


class Fast(BaseChatModel):
    """Says the same each time, as fast as it is read; may name its message, and end like a provider."""

    names: bool = True
    nests: bool = False
    """Whether its asynchronous stream is made of its own synchronous one."""
    cut: int = WORDS

    @property
    def _llm_type(self) -> str:
        return "fast"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(TEXT))])

    def _said(self) -> Iterator[ChatGenerationChunk]:
        for number in range(WORDS):
            if number == self.cut:
                raise ConnectionError("cut")
            text = f" {number}" if number else "0"
            chunk = AIMessageChunk(content=text, id="one" if self.names else None)
            yield ChatGenerationChunk(message=chunk)
        usage = {"input_tokens": 1, "output_tokens": WORDS, "total_tokens": WORDS + 1}
        told = {"finish_reason": "stop"}
        end = AIMessageChunk(content="", usage_metadata=usage, response_metadata=told)  # type: ignore[arg-type]
        yield ChatGenerationChunk(message=end)

    def _stream(self, *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
        yield from self._said()

    async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._stream([]) if self.nests else self._said():
            yield chunk


ways = pytest.mark.parametrize("way", ["invoke", "ainvoke"])


def model(**options: Any) -> Any:
    return durable(Fast(**options), continuation="restart")


def stores(count: list[int]) -> Any:
    """Count the commits of a stream from now on; the original method."""
    store = StreamBuffer._store

    def counting(self: Any, items: Any) -> None:
        count.append(len(items))
        store(self, items)

    return counting


@ways
@pytest.mark.parametrize("names", [True, False])
def test_chunks_share_commits_and_the_answer_is_the_models(
    way: str, names: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    monkeypatch.setattr(StreamBuffer, "_store", stores(counts))
    with ResilientSaver.from_conn_string(tmp_path / "agent.db") as saver:
        made = thinking(model(names=names), saver, way)
        chunks = tokens(made, user(), asynchronous=way == "ainvoke")
        final = last(made.get_state(where()).values)
        pieces = list(saver.stream("t"))
    assert shown(chunks) == final.text == TEXT
    assert {chunk.id for chunk in chunks} == {final.id}
    assert final.usage_metadata == {
        "input_tokens": 1,
        "output_tokens": WORDS,
        "total_tokens": WORDS + 1,
    }
    assert final.response_metadata == {"finish_reason": "stop"}
    assert sum(counts) == WORDS + 1
    assert len(counts) < WORDS / 10
    assert [piece.kind for piece in pieces] == ["end"]


@pytest.mark.parametrize("way", ["ainvoke", "astream"])
def test_a_stream_that_is_made_of_the_models_other_stream_is_one_call(
    way: str, tmp_path: Path
) -> None:
    with ResilientSaver.from_conn_string(tmp_path / "agent.db") as saver:
        made = thinking(model(nests=True), saver, way, Crash())
        with pytest.raises(Lost):
            tokens(made, user(), asynchronous=True)
        assert states(saver) == ["ended"]
        tokens(made, None, asynchronous=True)
        assert last(made.get_state(where()).values).text == TEXT


def dying(path: Path, way: str, at: int, before: bool) -> None:
    """Run in a child: show chunks, die around the commit of a batch."""
    store, left = StreamBuffer._store, [at]

    def dies(self: Any, items: Any) -> None:
        left[0] -= len(items)
        if left[0] < 0 and before:
            os.kill(os.getpid(), signal.SIGKILL)
        store(self, items)
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    StreamBuffer._store = dies  # type: ignore[method-assign]
    seen = os.open(path.with_suffix(".seen"), os.O_CREAT | os.O_WRONLY)
    with ResilientSaver.from_conn_string(path) as saver:
        made = thinking(model(), saver, way)
        if way == "invoke":
            for chunk, _ in made.stream(user(), where(), stream_mode="messages"):
                os.write(seen, f"{json.dumps(chunk.text)}\n".encode())
        else:
            tokens(made, user(), asynchronous=True)


@ways
@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("at", [0, 15, 16, 70, 1000, WORDS - 1])
def test_a_kill_around_any_batch_loses_nothing_that_was_shown(
    at: int, before: bool, way: str, tmp_path: Path
) -> None:
    path = tmp_path / "agent.db"
    assert in_child(lambda: dying(path, way, at, before)) == -signal.SIGKILL
    seen = "".join(map(json.loads, path.with_suffix(".seen").read_text().splitlines()))
    with ResilientSaver.from_conn_string(path) as saver:
        pieces = list(saver.stream("t"))
        kept = "".join(piece.text for piece in pieces)
        made = thinking(model(), saver, way)
        given = None if made.get_state(where()).values else user()
        chunks = tokens(made, given, asynchronous=way == "ainvoke")
        final = last(made.get_state(where()).values)
        more = list(saver.stream("t", after=pieces[-1].offset if pieces else 0))
    assert kept.startswith(seen)
    assert TEXT.startswith(kept)
    assert shown(chunks) == final.text == TEXT
    assert "".join(chunk.text for chunk in chunks if is_replayed(chunk)) == kept
    assert [piece.kind for piece in more] == ["end"]


@ways
def test_an_answer_whose_end_is_stored_is_whole_and_nobody_is_asked(
    way: str, tmp_path: Path
) -> None:
    path = tmp_path / "agent.db"
    assert in_child(lambda: dying(path, way, WORDS, before=False)) == -signal.SIGKILL
    with ResilientSaver.from_conn_string(path) as saver:
        assert states(saver) == ["started"]
        made = thinking(model(cut=0), saver, way)  # it would fail if it were asked
        given = None if made.get_state(where()).values else user()
        chunks = tokens(made, given, asynchronous=way == "ainvoke")
        final = last(made.get_state(where()).values)
        assert states(saver) == ["retired"]
    assert shown(chunks) == final.text == TEXT
    assert final.usage_metadata["output_tokens"] == WORDS
    assert final.response_metadata["finish_reason"] == "stop"


@ways
def test_a_line_that_is_cut_in_a_fast_answer_keeps_what_came(way: str, tmp_path: Path) -> None:
    with ResilientSaver.from_conn_string(tmp_path / "agent.db") as saver:
        with pytest.raises(ConnectionError, match="cut"):
            tokens(thinking(model(cut=1234), saver, way), user(), asynchronous=way == "ainvoke")
        kept = "".join(piece.text for piece in saver.stream("t"))
        made = thinking(model(), saver, way)
        chunks = tokens(made, None, asynchronous=way == "ainvoke")
        assert last(made.get_state(where()).values).text == TEXT
    assert kept == " ".join(map(str, range(1234)))
    assert shown(chunks) == TEXT
    assert sum(map(is_replayed, chunks)) == 1234
