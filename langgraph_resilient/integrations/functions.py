"""Effects outside tools: functions and tasks that are recorded, and steps inside one tool."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

from langgraph_resilient import calls
from langgraph_resilient._aio import adrive, drive
from langgraph_resilient.errors import ConfigurationError, UnknownOutcome
from langgraph_resilient.integrations.lanes import Lane
from langgraph_resilient.integrations.locating import ordinal_path
from langgraph_resilient.integrations.recorder import Recorder
from langgraph_resilient.integrations.runtime import Place
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
from langgraph_resilient.records import CallName, Effect
from langgraph_resilient.saver import ResilientSaver

T = TypeVar("T")


def recorded(
    function: Any = None,
    /,
    *,
    effect: Effect | str = Effect.EXTERNAL,
    saver: ResilientSaver | None = None,
    passthrough: bool = False,
    **policy: Any,
) -> Any:
    """Record the calls of a function that has effects, in a node or as a LangGraph ``@task``.

    No AI message tells such calls apart, so they are told by where they stand in the graph (step,
    node, and their turn among equal calls of the node's run); give ``key=`` where you can.

    Args:
        function: the function, sync or async; ``@recorded`` and ``@recorded(...)`` both work. Put it
            below ``@task``.
        effect: the effect class.
        saver: the saver, where the running graph's config does not tell.
        passthrough: run unrecorded where there is no `ResilientSaver`.
        **policy: see `ToolPolicy`.
    """
    if function is None:
        return functools.partial(
            recorded, effect=effect, saver=saver, passthrough=passthrough, **policy
        )
    given = ToolPolicy(effect=effect, **policy)  # type: ignore[arg-type]
    found = _Function(function, given, Recorder(saver=saver, passthrough=passthrough))
    return found.coroutine() if inspect.iscoroutinefunction(function) else found.plain()


class _Function:
    """A function whose calls are recorded."""

    def __init__(self, function: Any, policy: ToolPolicy, recorder: Recorder):
        self._function = function
        self._policy = resolved(policy, policy_of(function), Effect.EXTERNAL)
        self._recorder = recorder
        self._signature = inspect.signature(function)

    def _prepared(self, args: Any, kwargs: Any) -> tuple[Book, Invocation] | None:
        place = self._recorder.here()
        if place is None:
            return None
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return _prepared(place, self._function, self._policy, dict(bound.arguments))

    def plain(self) -> Any:
        """For a function without asyncio."""
        function = self._function

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            found = self._prepared(args, kwargs)
            if found is None:
                return function(*args, **kwargs)
            book, call = found
            call.body = _body(book, call, functools.partial(function, *args, **kwargs))
            return drive(tool_flow(book, call))

        return wrapper

    def coroutine(self) -> Any:
        """For a coroutine function."""
        function = self._function

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            found = self._prepared(args, kwargs)
            if found is None:
                return await function(*args, **kwargs)
            book, call = found
            call.body = _abody(book, call, functools.partial(function, *args, **kwargs))
            return await adrive(tool_flow(book, call), book.engine.waiting)

        return wrapper


def _body(book: Book, call: Invocation, run: Callable[[], Any]) -> Callable[[CurrentCall], Any]:
    def body(current: CurrentCall) -> Any:
        with running(book, current, call):
            return run()

    return body


def _abody(
    book: Book, call: Invocation, run: Callable[[], Awaitable[Any]]
) -> Callable[[CurrentCall], Any]:
    async def body(current: CurrentCall) -> Any:
        with running(book, current, call):
            return await run()

    return body


def _prepared(
    place: Place, function: Any, policy: ToolPolicy, arguments: dict[str, Any]
) -> tuple[Book, Invocation]:
    name, digest = function.__qualname__, digest_of(arguments)
    above = innermost()
    call = CallName(
        thread_id=place.thread_id,
        parent=b"" if above is None else bytes.fromhex(above.current.key),
        tool=name,
        arguments=digest,
        path=ordinal_path(place, (name, digest)),
        business=policy.business_key(name, arguments),
        everywhere=policy.scope == "global" and policy.key is not None,
    )
    lane = Lane(place, calls.key_of(call).hex(), lambda: True)
    return place.saver.ledger.book, Invocation(
        name=call,
        policy=policy,
        arguments=arguments,
        body=_no_body,
        ask=lane.ask,
        bare=lane.bare,
        tell=_nobody_to_tell(name),
        asked=place.asked,
        weak=call.business is None,
        reexecute=place.reexecute(name, calls.key_of(call).hex())
        or (above is not None and above.current.anew),
    )


def _no_body(current: CurrentCall) -> Any:
    raise AssertionError("the wrapper sets the body")


def _nobody_to_tell(name: str) -> Callable[[str], Any]:
    def tell(text: str) -> Any:
        raise UnknownOutcome(f"{text} A plain function cannot tell a model so.", tool=name)

    return tell


# --- steps inside one tool --------------------------------------------------------------------


def once(name: str, function: Callable[[], T], **policy: Any) -> T:
    """Do a step of a recorded tool once, however often the tool itself runs.

    For tools with several effects, and for effects before an ``interrupt()``: when the tool runs
    again, steps that succeeded give their recorded result.

    Args:
        name: tells the step from the tool's other steps.
        function: the step, without arguments.
        **policy: see `ToolPolicy`; the tool's own effect class by default.

    Raises:
        ConfigurationError: no recorded tool is running.
    """
    book, call = _step(name, policy)
    call.body = _body(book, call, function)
    return drive(tool_flow(book, call))  # type: ignore[no-any-return]


async def aonce(name: str, function: Callable[[], Awaitable[T]], **policy: Any) -> T:
    """`once`, for coroutines: `function` gives an awaitable."""
    book, call = _step(name, policy)
    call.body = _abody(book, call, function)
    return await adrive(tool_flow(book, call), book.engine.waiting)


def _step(name: str, policy: dict[str, Any]) -> tuple[Book, Invocation]:
    above = innermost()
    if above is None:
        raise ConfigurationError(
            f"once({name!r}) was called outside a recorded tool; call it in a tool of an agent with "
            "ResilienceMiddleware, of tool_node(...), or in a function with @recorded"
        )
    own = ToolPolicy(**policy)
    chosen = resolved(own, ToolPolicy(effect=above.call.effect), Effect.EXTERNAL)
    if above.call.cleared and chosen.on_unknown == "interrupt":
        # Who let the tool run again was shown what broke: its step is not asked about once more.
        chosen = replace(chosen, on_unknown="retry")
    step = f"{above.current.tool}.{name}"
    return above.book, Invocation(
        name=CallName(
            thread_id=above.current.thread_id,
            parent=bytes.fromhex(above.current.key),
            tool=step,
            arguments=b"",
            business=chosen.business_key(step, {}),
            everywhere=chosen.scope == "global" and chosen.key is not None,
        ),
        policy=chosen,
        arguments=None,
        body=_no_body,
        ask=above.call.ask,
        bare=above.call.bare,
        tell=_nobody_to_tell(step),
        reexecute=above.current.anew,
    )
