"""The rest of the same generation, fetched from the provider.

OpenAI's Responses API keeps generating in background mode when nobody listens. Its stream can be
read again from the start; what was shown already is not shown again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk

_TEXT = "response.output_text.delta"
_ENDS = frozenset({"response.completed", "response.incomplete"})
_BROKEN = frozenset({"response.failed", "response.cancelled", "error"})


def response_id(partial: Sequence[AIMessageChunk], sent: Any) -> str | None:
    """The provider's id of an answer that goes on without us, or None."""
    if not sent.get("background"):
        return None
    for chunk in partial:
        found = chunk.response_metadata.get("id") or chunk.id
        if isinstance(found, str) and found.startswith("resp_"):
            return found
    return None


def fetch(model: Any, id: str) -> Iterator[ChatGenerationChunk]:
    """The whole answer, as far as it is text, piece by piece.

    Raises:
        NotImplementedError: the model cannot be asked so, or the answer is more than text.
    """
    client = getattr(model, "root_client", None)
    if client is None or not hasattr(client, "responses"):
        raise NotImplementedError("the model has no client for background responses")
    for event in client.responses.retrieve(id, stream=True):
        chunk = _chunk(event)
        if chunk is not None:
            yield chunk


async def afetch(model: Any, id: str) -> AsyncIterator[ChatGenerationChunk]:
    """`fetch`, for coroutines."""
    client = getattr(model, "root_async_client", None)
    if client is None or not hasattr(client, "responses"):
        raise NotImplementedError("the model has no client for background responses")
    async for event in await client.responses.retrieve(id, stream=True):
        chunk = _chunk(event)
        if chunk is not None:
            yield chunk


def _chunk(event: Any) -> ChatGenerationChunk | None:
    if event.type == _TEXT:
        block = {"type": "text", "text": event.delta, "index": event.content_index}
        return ChatGenerationChunk(message=AIMessageChunk(content=[block]))
    if event.type in _BROKEN or event.type.startswith("response.function_call"):
        raise NotImplementedError(f"the answer went on as {event.type}")
    if event.type not in _ENDS:
        return None
    usage = event.response.usage
    counted: Any = usage and {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
    }
    told = {"id": event.response.id, "status": event.response.status, "model": event.response.model}
    last = AIMessageChunk(
        content=[], usage_metadata=counted, response_metadata=told, chunk_position="last"
    )
    return ChatGenerationChunk(message=last)
