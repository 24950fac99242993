"""A real model, killed and resumed: no call twice, the recorded seed, an answer that goes on.

Needs a server with OpenAI's Chat Completions (llama.cpp, vLLM, …) that goes on with a last message
of the assistant: ``LANGGRAPH_RESILIENT_TEST_MODEL_URL=http://127.0.0.1:8080/v1``, and where it
serves several models ``LANGGRAPH_RESILIENT_TEST_MODEL``.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from building import in_child
from langchain_core.callbacks import BaseCallbackHandler
from wired import is_replayed, last, shown, thinking, tokens, user, where

from langgraph_resilient import ResilientSaver, durable

URL = os.environ.get("LANGGRAPH_RESILIENT_TEST_MODEL_URL", "")
NAME = os.environ.get("LANGGRAPH_RESILIENT_TEST_MODEL", "local")
ASKED = user("Tell a story of a small fox in a wood, in about fifty words.", id="human")
SEEN = 6
"""Pieces of the answer that the user has read when the process dies."""

pytestmark = [
    pytest.mark.skipif(
        not URL, reason="LANGGRAPH_RESILIENT_TEST_MODEL_URL names no server with a model"
    ),
    pytest.mark.timeout(600),
]


def local_model(sent: list[dict[str, Any]], **options: Any) -> Any:
    """The model; the bodies of its requests are put into `sent`."""
    httpx = pytest.importorskip("httpx")
    openai = pytest.importorskip("langchain_openai")

    def note(request: Any) -> None:
        sent.append(json.loads(request.read()))

    parameters = {"temperature": 0.8, "max_tokens": 96, "max_retries": 0, "timeout": 300.0}
    model = openai.ChatOpenAI(
        base_url=URL,
        api_key="none",
        model=NAME,
        http_client=httpx.Client(event_hooks={"request": [note]}),
        **parameters,
    )
    return durable(model, continuation="prefill", **options)


class Reader(BaseCallbackHandler):
    """A user who reads piece by piece, no faster than they are written down, until it all dies."""

    def __init__(self, screen: Path, last_words: Callable[[], Any] = lambda: None):
        self._screen = screen
        self._last_words = last_words
        self._read: list[Any] = []

    def on_llm_new_token(self, token: str, *, chunk: Any = None, **_: Any) -> None:
        self._read.append([chunk.message.id, chunk.message.text])
        self._screen.write_text(json.dumps(self._read))
        if sum(bool(text) for _, text in self._read) == SEEN:
            self._last_words()
            die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_finished_call_is_not_made_again_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"

    def first() -> None:
        with ResilientSaver.from_conn_string(path) as saver:
            thinking(local_model([]), saver, behind=die).invoke(ASKED, where())

    assert in_child(first) == -signal.SIGKILL
    sent: list[dict[str, Any]] = []
    with ResilientSaver.from_conn_string(path) as saver:
        (recorded,) = saver.journal("t")
        answer = last(thinking(local_model(sent), saver).invoke(None, where()))
    assert sent == []
    assert answer.text
    assert (answer.id, answer.text) == (recorded.answer.id, recorded.answer.text)


def test_an_interrupted_call_goes_on_with_its_seed(tmp_path: Path) -> None:
    path, seen = tmp_path / "agent.db", tmp_path / "sent"

    def first() -> None:
        sent: list[dict[str, Any]] = []
        with ResilientSaver.from_conn_string(path) as saver:
            graph = thinking(local_model(sent, seed="auto"), saver, "stream")
            reader = Reader(tmp_path / "screen", lambda: seen.write_text(json.dumps(sent)))
            graph.invoke(ASKED, {**where(), "callbacks": [reader]})

    assert in_child(first) == -signal.SIGKILL
    (before,) = json.loads(seen.read_text())
    sent: list[dict[str, Any]] = []
    with ResilientSaver.from_conn_string(path) as saver:
        thinking(local_model(sent, seed="auto"), saver).invoke(None, where())
        (recorded,) = saver.journal("t")
    assert isinstance(before["seed"], int)
    assert {body["seed"] for body in sent} == {before["seed"]} == {recorded.sent["seed"]}
    assert recorded.usage is None or recorded.usage["output_tokens"] > 0


def test_an_answer_goes_on_where_the_user_had_read_to(tmp_path: Path) -> None:
    path, screen = tmp_path / "agent.db", tmp_path / "screen"

    def first() -> None:
        with ResilientSaver.from_conn_string(path) as saver:
            graph = thinking(local_model([]), saver, "stream")
            graph.invoke(ASKED, {**where(), "callbacks": [Reader(screen)]})

    assert in_child(first) == -signal.SIGKILL
    before = json.loads(screen.read_text())
    read = "".join(text for _, text in before)
    sent: list[dict[str, Any]] = []
    with ResilientSaver.from_conn_string(path) as saver:
        graph = thinking(local_model(sent), saver)
        pieces = tokens(graph, None)
        answer = last(graph.get_state(where()).values)
    stored = "".join(piece.text for piece in pieces if is_replayed(piece))
    assert stored.startswith(read)
    assert shown(pieces) == answer.text
    assert answer.text.startswith(stored)
    assert len(answer.text) > len(stored)
    assert {piece.id for piece in pieces} | {id for id, _ in before} == {answer.id}
    (body,) = sent
    assert body["messages"][-1]["role"] == "assistant"
    assert body["messages"][-1]["content"] == stored.rstrip()
