"""Real clients on a server of ours."""

from __future__ import annotations

from typing import Any

import pytest

from wire.server import Server

APIS = ("chat", "responses", "messages")
SECRET = "sk-secret-9f8e7d6c5b4a"
"""The key that all clients have: it must be found nowhere."""
MODELS = {"chat": "gpt-4o-mini", "responses": "gpt-4o-mini", "messages": "claude-opus-4-7"}


def client(api: str, server: Server, **parameters: Any) -> Any:
    """A chat model that talks to the server; skips the test where its package is missing."""
    more = {"model": MODELS[api], "max_retries": 0, "timeout": 30.0, **parameters}
    if api == "messages":
        anthropic = pytest.importorskip("langchain_anthropic")
        more.setdefault("max_tokens", 256)
        return anthropic.ChatAnthropic(base_url=server.url, api_key=SECRET, **more)
    openai = pytest.importorskip("langchain_openai")
    if api == "responses":
        more["use_responses_api"] = True
    return openai.ChatOpenAI(base_url=f"{server.url}/v1", api_key=SECRET, **more)
