"""Recorded tools in graphs built by hand: a pair of wrappers, and a tool node that is ready."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from langchain_core.messages import ToolMessage
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
        watch = _Watch(self.recorder, request)
        result = execute(watch.request)
        return execute(watch.request) if watch.hides_unknown(result) else result

    async def awrap_tool_call(
        self, request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """Run a tool call through the ledger, in a coroutine."""
        if request.tool is None:
            return await execute(request)
        watch = _Watch(self.recorder, request)
        result = await execute(watch.request)
        return await execute(watch.request) if watch.hides_unknown(result) else result


_default = ToolWrappers()


def wrap_tool_call(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]) -> Any:
    """`ToolWrappers.wrap_tool_call` with every option as it is by default."""
    return _default.wrap_tool_call(request, execute)


async def awrap_tool_call(
    request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[Any]]
) -> Any:
    """`ToolWrappers.awrap_tool_call` with every option as it is by default."""
    return await _default.awrap_tool_call(request, execute)


class _Watch:
    """Sees how a recorded tool is called by what lies between the wrapper and the tool."""

    def __init__(self, recorder: Recorder, request: ToolCallRequest):
        assert request.tool is not None
        self._calls = 0
        self._broken: list[BaseException] = []
        self._name = request.tool.name
        tool = recorder.recorded(request.tool, request.state, request.tool_call)
        self._effect = recorder.policy(request.tool, self._name).effect
        object.__setattr__(tool, "invoke", self._watching(tool.invoke))
        object.__setattr__(tool, "ainvoke", self._awatching(tool.ainvoke))
        self.request = request.override(tool=tool)

    def hides_unknown(self, result: Any) -> bool:
        """Whether an error message stands for a call whose outcome nobody knows.

        Told "error", the model would make the call once more.
        """
        return (
            bool(self._broken)
            and self._effect is Effect.EXTERNAL
            and isinstance(result, ToolMessage)
            and result.status == "error"
            and getattr(self._broken[-1], "__resilient_ambiguous__", False)
        )

    def _watching(self, invoke: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **more: Any) -> Any:
            self._count()
            try:
                return invoke(*arguments, **more)
            except BaseException as error:
                self._broken.append(error)
                raise

        return watched

    def _awatching(self, ainvoke: Callable[..., Any]) -> Callable[..., Any]:
        async def watched(*arguments: Any, **more: Any) -> Any:
            self._count()
            try:
                return await ainvoke(*arguments, **more)
            except BaseException as error:
                self._broken.append(error)
                raise

        return watched

    def _count(self) -> None:
        self._calls += 1
        if self._calls == 2 and not self._broken_ambiguously():
            warn_once(
                f"inside {self._name}",
                "tool %r was called again inside ResilienceMiddleware: a retry or another middleware "
                "sits inside it. Every attempt is recorded, but put ResilienceMiddleware last in "
                "middleware=[...], so that it is the innermost",
                self._name,
            )

    def _broken_ambiguously(self) -> bool:
        return any(getattr(e, "__resilient_ambiguous__", False) for e in self._broken)


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
