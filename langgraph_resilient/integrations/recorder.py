"""Tools that go through the ledger: a tool in, the same tool recorded out.

Recording happens right around the tool's own ``invoke``, inside every wrapper, so that a retry in
between is seen for what it is and the exception is the tool's own.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.tools import BaseTool, InjectedToolArg
from langgraph.errors import GraphInterrupt
from langgraph.prebuilt import ToolRuntime

from langgraph_resilient import calls
from langgraph_resilient._aio import adrive, drive
from langgraph_resilient.errors import ConfigurationError
from langgraph_resilient.integrations import results
from langgraph_resilient.integrations.lanes import Lane
from langgraph_resilient.integrations.locating import Location, locate
from langgraph_resilient.integrations.runtime import Place, place_of, running_config, warn_once
from langgraph_resilient.ledger import (
    Book,
    CurrentCall,
    Invocation,
    ToolPolicy,
    innermost,
    policy_of,
    resolved,
    running,
    tool_flow,
)
from langgraph_resilient.ledger.keys import digest_of
from langgraph_resilient.records import CallName, CallState, Effect
from langgraph_resilient.saver import ResilientSaver

logger = logging.getLogger(__name__)

_KEY_FIELDS = "__resilient_key_fields__"


class IdempotencyKey(InjectedToolArg):
    """Marks a tool's parameter that gets the call's idempotency key.

    ``def pay(amount: int, key: Annotated[str, IdempotencyKey()] = "")``: the model does not see it.
    """


class Recorder:
    """How the tools of a graph are recorded.

    Args:
        default_effect: the class of tools that say nothing.
        pure: names of tools that change nothing.
        idempotent: names of tools that may run again with the same idempotency key.
        tools: policies by name; they go before what a tool says of itself.
        saver: the saver, where the running graph's config does not tell.
        passthrough: run tools unrecorded in a graph without a `ResilientSaver`.
    """

    def __init__(
        self,
        *,
        default_effect: Effect | str = Effect.EXTERNAL,
        pure: Collection[str] = (),
        idempotent: Collection[str] = (),
        tools: Mapping[str, ToolPolicy] | None = None,
        saver: ResilientSaver | None = None,
        passthrough: bool = False,
    ):
        both = set(pure) & set(idempotent)
        if both:
            raise ConfigurationError(f"tools {sorted(both)} are given as pure and as idempotent")
        named = {name: ToolPolicy(effect=Effect.PURE) for name in pure}
        named |= {name: ToolPolicy(effect=Effect.IDEMPOTENT) for name in idempotent}
        for name, policy in (tools or {}).items():
            known = named.get(name)
            named[name] = policy if known is None else resolved(policy, known, Effect.EXTERNAL)
        self._named = named
        self._default = Effect(default_effect)
        self._saver = saver
        self._passthrough = passthrough

    def policy(self, tool: Any, name: str) -> ToolPolicy:
        """The policy that holds for a tool."""
        given, own = self._named.get(name), policy_of(tool)
        policy = resolved(given, own, self._default)
        said = any(one is not None and one.effect is not None for one in (given, own))
        if not said and policy.effect is Effect.EXTERNAL:
            warn_once(
                f"external {name}",
                "tool %r does not say what calling it does, so it is treated as external: a call "
                "whose outcome is unknown is never repeated, a human is asked. Say "
                '@effect("pure") or @effect("idempotent"), or pure=[%r], where that is so',
                name,
                name,
            )
        return policy

    def place(self, config: RunnableConfig | None) -> Place | None:
        """Where a config leads; see `runtime.place_of`."""
        return place_of(config, self._saver, passthrough=self._passthrough)

    def here(self) -> Place | None:
        """Where this code runs right now; None where that is not to be recorded.

        Raises:
            NoSaver: in a graph without a `ResilientSaver`, unless that is allowed.
        """
        return self.place(running_config())

    def running(self) -> Place | None:
        """Where this code runs right now, or None where nothing is to be recorded."""
        config = running_config()
        return None if config is None else place_of(config, self._saver, passthrough=True)

    def recorded(
        self, tool: BaseTool, state: Any = None, tool_call: Mapping[str, Any] | None = None
    ) -> BaseTool:
        """The same tool, its calls recorded.

        Args:
            tool: the tool; it stays as it is.
            state: the graph's state, where the caller has it.
            tool_call: the request as the model made it, where the caller has it.
        """
        return _recorded(self, tool, state, tool_call)


def _recorded(
    recorder: Recorder, tool: BaseTool, state: Any, tool_call: Mapping[str, Any] | None
) -> BaseTool:
    def invoke(input: Any, config: RunnableConfig | None = None, **more: Any) -> Any:
        config = ensure_config(config)
        attempt = _Attempt.of(recorder, tool, state, tool_call, input, config, more)
        if attempt is None:
            return tool.invoke(input, config, **more)
        try:
            return drive(tool_flow(attempt.book, attempt.invocation(attempt.run)))
        except Exception as error:
            if not attempt.leaves_unknown(error):
                raise
            return drive(tool_flow(attempt.book, attempt.invocation(attempt.run)))

    async def ainvoke(input: Any, config: RunnableConfig | None = None, **more: Any) -> Any:
        config = ensure_config(config)
        attempt = _Attempt.of(recorder, tool, state, tool_call, input, config, more)
        if attempt is None:
            return await tool.ainvoke(input, config, **more)
        waiting = attempt.book.engine.waiting
        try:
            return await adrive(tool_flow(attempt.book, attempt.invocation(attempt.arun)), waiting)
        except Exception as error:
            if not attempt.leaves_unknown(error):
                raise
            return await adrive(tool_flow(attempt.book, attempt.invocation(attempt.arun)), waiting)

    clone = copy.copy(tool)
    # Tools are pydantic models: their methods are replaced beside the fields, on the copy only.
    object.__setattr__(clone, "invoke", invoke)
    object.__setattr__(clone, "ainvoke", ainvoke)
    return clone


class _Attempt:
    """One call of a recorded tool."""

    def __init__(
        self,
        place: Place,
        tool: BaseTool,
        policy: ToolPolicy,
        request: Mapping[str, Any] | None,
        location: Location,
        input: Any,
        more: dict[str, Any],
    ):
        self.place = place
        self.book: Book = place.saver.ledger.book
        self._tool = tool
        self._policy = policy
        self._request = request
        self._location = location
        self._input = input
        self._more = more
        self._name = self._named()
        key = calls.key_of(self._name).hex()
        self._lane = Lane(place, key, self._my_turn, location.position)
        self._call: Invocation

    @classmethod
    def of(
        cls,
        recorder: Recorder,
        tool: BaseTool,
        state: Any,
        tool_call: Mapping[str, Any] | None,
        input: Any,
        config: RunnableConfig,
        more: dict[str, Any],
    ) -> _Attempt | None:
        place = recorder.place(config)
        if place is None:
            return None
        request = tool_call
        if request is None and isinstance(input, dict) and input.get("type") == "tool_call":
            request = {**input, "args": _own(tool, input["args"])}
        if request is None:
            location = locate(place, None, {"name": tool.name})
        else:
            location = locate(place, place.state() if state is None else state, request)
        policy = recorder.policy(tool, tool.name)
        return cls(place, tool, policy, request, location, input, more)

    @property
    def _arguments(self) -> Any:
        return self._input if self._request is None else self._request["args"]

    def _named(self) -> CallName:
        above, arguments = innermost(), self._arguments
        given = arguments if isinstance(arguments, Mapping) else {"input": arguments}
        return CallName(
            thread_id=self.place.thread_id,
            parent=b"" if above is None else bytes.fromhex(above.current.key),
            message_id=self._location.message_id,
            tool_call_id=str((self._request or {}).get("id") or ""),
            tool=self._tool.name,
            arguments=digest_of(arguments),
            path=self._location.path,
            business=self._policy.business_key(self._tool.name, given),
            everywhere=self._policy.scope == "global" and self._policy.key is not None,
        )

    def invocation(self, body: Callable[[CurrentCall], Any]) -> Invocation:
        """What the ledger is told."""
        request = self._request
        self._call = Invocation(
            name=self._name,
            policy=self._policy,
            arguments=self._arguments,
            body=body,
            ask=self._lane.ask,
            bare=self._lane.bare,
            tell=str if request is None else partial(results.told, call=request),
            restamp=partial(results.fitted, call=request),
            asked=self.place.asked,
            position=self._location.position,
            weak=self._location.weak and self._name.business is None,
            reexecute=self.place.reexecute(
                self._tool.name,
                str((request or {}).get("id") or ""),
                calls.key_of(self._name).hex(),
            ),
        )
        return self._call

    def leaves_unknown(self, error: Exception) -> bool:
        """Whether nobody knows what became of the call, so that its policy is to be followed now.

        Were the error let out, a retry or a tool node further out might tell the model "error, try
        again", and the model would make the call once more under another id.
        """
        key = getattr(error, "__resilient_unknown__", None)
        return self._policy.effect is Effect.EXTERNAL and key == calls.key_of(self._name)

    # --- the body -----------------------------------------------------------------------------

    def run(self, current: CurrentCall) -> Any:
        """Run the tool."""
        input, config = self._given(current)
        with running(self.book, current, self._call):
            try:
                result = self._tool.invoke(input, config, **self._more)
            except GraphInterrupt as error:
                raise self._interrupted(error) from None
        return results.identified(result)

    async def arun(self, current: CurrentCall) -> Any:
        """Run the tool in a coroutine."""
        input, config = self._given(current)
        with running(self.book, current, self._call):
            try:
                result = await self._tool.ainvoke(input, config, **self._more)
            except GraphInterrupt as error:
                raise self._interrupted(error) from None
        return results.identified(result)

    @property
    def _alone(self) -> bool:
        """Whether the call has its task for itself, so that LangGraph's own order will do."""
        return self._location.calls < 2 or self.place.is_single_call

    def _interrupted(self, error: GraphInterrupt) -> GraphInterrupt:
        return error if self._alone else self._lane.renamed(error, len(self._call.answers))

    def _given(self, current: CurrentCall) -> tuple[Any, RunnableConfig]:
        """What the tool is called with."""
        config = self.place.config if self._alone else self._lane.config(self._call.answers)
        given = self._input if self._request is None else self._input["args"]
        if not isinstance(given, dict):
            return self._input, config
        added: dict[str, Any] = dict.fromkeys(_key_fields(self._tool), current.idempotency_key)
        if not self._alone:  # a tool may pass its runtime's config on to a sub-graph
            added |= {
                name: replace(value, config=config)
                for name, value in given.items()
                if isinstance(value, ToolRuntime)
            }
        if not added:
            return self._input, config
        args = {**given, **added}
        return (args if self._request is None else {**self._input, "args": args}), config

    def _my_turn(self) -> bool:
        """Whether no earlier call of the same message waits for an answer, too."""
        name, waiting = self._name, (CallState.SUSPENDED, CallState.UNKNOWN)
        with self.book.engine.reading() as session:
            return not any(
                record.state in waiting
                and record.position < self._location.position
                and (record.name.message_id, record.name.parent) == (name.message_id, name.parent)
                and record.name.thread_id == name.thread_id
                for record in self.book.open_of(session, name.thread_id)
            )


def _own(tool: BaseTool, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments that the model gave: without what the tool node has put in."""
    schema = tool.tool_call_schema
    if isinstance(schema, dict):
        fields = schema.get("properties")
    else:  # a pydantic model, or one of its first version; a tool may have no fields at all
        fields = getattr(schema, "model_fields", None)
        fields = getattr(schema, "__fields__", None) if fields is None else fields
    if fields is None:
        return arguments
    whole: Any = tool.get_input_schema()
    extra = set(getattr(whole, "model_fields", {})) - set(fields)
    return {k: v for k, v in arguments.items() if k not in extra} if extra else arguments


def _key_fields(tool: BaseTool) -> tuple[str, ...]:
    """The parameters of a tool that take the idempotency key."""
    found: tuple[str, ...] | None = getattr(tool, _KEY_FIELDS, None)
    if found is None:
        fields = getattr(tool.get_input_schema(), "model_fields", {})
        found = tuple(
            name
            for name, field in fields.items()
            if any(isinstance(m, IdempotencyKey) or m is IdempotencyKey for m in field.metadata)
        )
        object.__setattr__(tool, _KEY_FIELDS, found)
    return found
