"""Python 3.10, on which LangGraph does not tell coroutines which graph they run in."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from wired import last, thinking, user, where

from langgraph_resilient import ResilientSaver, durable


@pytest.mark.skipif(sys.version_info >= (3, 11), reason="later Pythons tell them")
def test_an_async_node_whose_model_calls_cannot_be_journaled_is_warned_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("langgraph_resilient.integrations.runtime._warned", set())
    model: Any = durable(FakeListChatModel(responses=["yes"]))
    with (
        ResilientSaver.from_conn_string(":memory:") as saver,
        caplog.at_level(logging.WARNING),
    ):
        made = thinking(model, saver, "ainvoke")
        state = asyncio.run(made.ainvoke(user(), where()))
        assert saver.journal.entries("t") == []
    assert last(state).text == "yes"
    assert "Python 3.11" in caplog.text
