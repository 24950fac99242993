"""Recorded tools in graphs built by hand: a pair of wrappers, and a tool node that is ready."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from langchain_core.tools import BaseTool
from langgraph.errors import GraphInterrupt
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest

from langgraph_resilient.integrations.recorder import Recorder
from langgraph_resilient.integrations.runtime import warn_once
from langgraph_resilient.ledger import ToolPolicy
from langgraph_resilient.records import Effect
from langgraph_resilient.saver import ResilientSaver


class ToolWrappers:
    """``ToolNode(tools, wrap_tool_call=w.wrap_tool_call, awrap_tool_call=w.awrap_tool_call)``.

    Args:
        **options: see `Recorder`.
    """

    def __init__(self, **options: Any):
        self.recorder = Recorder(**options)

    def wrap_tool_call(
        self, request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]
    ) -> Any:
        """Run a tool call through the ledger."""
        if request.tool is None:  # no such tool: the node tells the model so
            return execute(request)
        return execute(_watched(self.recorder, request))

    async def awrap_tool_call(
        self, request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """Run a tool call through the ledger, in a coroutine."""
        if request.tool is None:
            return await execute(request)
        return await execute(_watched(self.recorder, request))


_default = ToolWrappers()


def wrap_tool_call(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]) -> Any:
    """`ToolWrappers.wrap_tool_call` with every option as it is by default."""
    return _default.wrap_tool_call(request, execute)


async def awrap_tool_call(
    request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[Any]]
) -> Any:
    """`ToolWrappers.awrap_tool_call` with every option as it is by default."""
    return await _default.awrap_tool_call(request, execute)


def _watched(recorder: Recorder, request: ToolCallRequest) -> ToolCallRequest:
    """The request with its tool recorded; warns when the tool is called more than once.

    That happens when something that repeats calls sits between the wrapper and the tool.
    """
    assert request.tool is not None
    tool, name = (
        recorder.recorded(request.tool, request.state, request.tool_call),
        request.tool.name,
    )
    invoke, ainvoke, count = tool.invoke, tool.ainvoke, itertools.count(1)

    def watch() -> None:
        if next(count) == 2:
            warn_once(
                f"inside {name}",
                "tool %r was called again inside ResilienceMiddleware: a retry or another middleware "
                "sits inside it. Every attempt is recorded, but put ResilienceMiddleware last in "
                "middleware=[...], so that it is the innermost",
                name,
            )

    def watched(*arguments: Any, **more: Any) -> Any:
        watch()
        return invoke(*arguments, **more)

    async def awatched(*arguments: Any, **more: Any) -> Any:
        watch()
        return await ainvoke(*arguments, **more)

    object.__setattr__(tool, "invoke", watched)
    object.__setattr__(tool, "ainvoke", awatched)
    return request.override(tool=tool)


class _AllQuestions(ToolNode):
    """A tool node that waits for all its calls and then shows all their questions at once.

    The plain one shows the first, and in a coroutine leaves the other calls running.
    """

    def _run_one(self, call: Any, input_type: Any, tool_runtime: Any) -> Any:
        try:
            return super()._run_one(call, input_type, tool_runtime)
        except GraphInterrupt as error:
            return error

    async def _arun_one(self, call: Any, input_type: Any, tool_runtime: Any) -> Any:
        try:
            return await super()._arun_one(call, input_type, tool_runtime)
        except GraphInterrupt as error:
            return error

    def _combine_tool_outputs(self, outputs: list[Any], input_type: Any) -> Any:
        questions = [item for item in outputs if isinstance(item, GraphInterrupt)]
        if questions:
            raise GraphInterrupt(tuple(one for item in questions for one in item.args[0]))
        return super()._combine_tool_outputs(outputs, input_type)


def tool_node(
    tools: Sequence[BaseTool | Callable[..., Any]],
    *,
    default_effect: Effect | str = Effect.EXTERNAL,
    pure: Collection[str] = (),
    idempotent: Collection[str] = (),
    policies: Mapping[str, ToolPolicy] | None = None,
    saver: ResilientSaver | None = None,
    passthrough: bool = False,
    **node: Any,
) -> ToolNode:
    """A ``ToolNode`` whose calls go through the ledger.

    Args:
        tools: the tools, or functions.
        default_effect: see `Recorder`, as are the next ones.
        pure: see there.
        idempotent: see there.
        policies: policies by tool name.
        saver: see there.
        passthrough: see there.
        **node: what else ``ToolNode`` takes, such as ``handle_tool_errors``.
    """
    wrappers = ToolWrappers(
        default_effect=default_effect,
        pure=pure,
        idempotent=idempotent,
        tools=policies,
        saver=saver,
        passthrough=passthrough,
    )
    return _AllQuestions(
        tools,
        wrap_tool_call=wrappers.wrap_tool_call,
        awrap_tool_call=wrappers.awrap_tool_call,
        **node,
    )


def recorded_tools(
    tools: Sequence[BaseTool | Callable[..., Any]],
    *,
    saver: ResilientSaver | None = None,
    **options: Any,
) -> list[BaseTool]:
    """The same tools, recorded wherever they are called: for a plain ``ToolNode`` or by hand.

    Args:
        tools: the tools, or functions.
        saver: the saver, where the running graph's config does not tell.
        **options: see `Recorder`.
    """
    from langchain_core.tools import tool as make_tool

    recorder = Recorder(saver=saver, **options)
    made = [item if isinstance(item, BaseTool) else make_tool(item) for item in tools]
    return [recorder.recorded(item) for item in made]
