"""`ResilienceMiddleware`: tool calls of `create_agent` through the ledger, histories mended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents.middleware.types import AgentMiddleware, ModelRequest

from langgraph_resilient._aio import adrive, drive
from langgraph_resilient.integrations.repair import repair_flow
from langgraph_resilient.integrations.toolnode import ToolWrappers


class ResilienceMiddleware(AgentMiddleware[Any, Any, Any]):
    """Makes an agent's tool calls happen once. Put it last: ``middleware=[…, ResilienceMiddleware()]``.

    Finds the saver in the running graph's config.

    Args:
        **options: see `langgraph_resilient.integrations.recorder.Recorder`: ``default_effect``,
            ``pure``, ``idempotent``, ``tools``, ``passthrough``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._wrappers = ToolWrappers(**options)

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Run a tool call through the ledger."""
        return self._wrappers.wrap_tool_call(request, handler)

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run a tool call through the ledger, in a coroutine."""
        return await self._wrappers.awrap_tool_call(request, handler)

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[..., Any]) -> Any:
        """Let the model see a history in which every tool call has its answer."""
        place = self._wrappers.recorder.running()
        if place is None:
            return handler(request)
        messages: Any = drive(repair_flow(place, request.messages))
        return handler(
            request if messages is request.messages else request.override(messages=messages)
        )

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[..., Awaitable[Any]]
    ) -> Any:
        """The same, in a coroutine."""
        place = self._wrappers.recorder.running()
        if place is None:
            return await handler(request)
        flow = repair_flow(place, request.messages)
        messages: Any = await adrive(flow, place.saver.ledger.book.engine.waiting)
        return await handler(
            request if messages is request.messages else request.override(messages=messages)
        )
