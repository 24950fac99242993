"""`ResilienceMiddleware`: an agent's tool calls through the ledger, its model calls journaled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Any

from langchain.agents.middleware.types import AgentMiddleware, ModelRequest

from langgraph_resilient._aio import adrive, drive
from langgraph_resilient.integrations.models import ModelOptions, durable
from langgraph_resilient.integrations.repair import repair_flow
from langgraph_resilient.integrations.toolnode import ToolWrappers

_BOTH = {"saver", "passthrough"}
_MODEL_OPTIONS = {field.name for field in fields(ModelOptions)}


class ResilienceMiddleware(AgentMiddleware[Any, Any, Any]):
    """Makes an agent's tool calls happen once, and its model calls be paid for once.

    Put it last: ``middleware=[…, ResilienceMiddleware()]``. It finds the saver in the running
    graph's config, mends histories in which a tool call has no answer, and journals model calls.

    Args:
        journal: whether model calls are journaled.
        **options: for tools (see `langgraph_resilient.integrations.recorder.Recorder`):
            ``default_effect``, ``pure``, ``idempotent``, ``tools``; for models (see
            `langgraph_resilient.integrations.models.ModelOptions`): ``seed``, ``on_drift``,
            ``on_divergence``, ``stream``, ``continuation``, ``attempts``; for both: ``saver``,
            ``passthrough``.
    """

    def __init__(self, *, journal: bool = True, **options: Any) -> None:
        super().__init__()
        self._journal = journal
        self._models = {name: v for name, v in options.items() if name in _MODEL_OPTIONS}
        only_models = _MODEL_OPTIONS - _BOTH
        tools = {name: v for name, v in options.items() if name not in only_models}
        self._wrappers = ToolWrappers(**tools)

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Run a tool call through the ledger."""
        return self._wrappers.wrap_tool_call(request, handler)

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run a tool call through the ledger, in a coroutine."""
        return await self._wrappers.awrap_tool_call(request, handler)

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[..., Any]) -> Any:
        """Journal a model call; the model sees a history in which every tool call has its answer."""
        place = self._wrappers.recorder.running()
        if place is None:
            return handler(request)
        messages = drive(repair_flow(place, request.messages))
        return handler(self._prepared(request, messages))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[..., Awaitable[Any]]
    ) -> Any:
        """The same, in a coroutine."""
        place = self._wrappers.recorder.running()
        if place is None:
            return await handler(request)
        flow = repair_flow(place, request.messages)
        messages = await adrive(flow, place.saver.ledger.book.engine.waiting)
        return await handler(self._prepared(request, messages))

    def _prepared(self, request: ModelRequest[Any], messages: Any) -> ModelRequest[Any]:
        if messages is not request.messages:
            request = request.override(messages=messages)
        if self._journal:
            request = request.override(model=durable(request.model, **self._models))
        return request
