"""What must still hold outside the agent when a run goes on: the user's own checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from langgraph_resilient._aio import Call, Flow
from langgraph_resilient.errors import ConfigurationError
from langgraph_resilient.guard.comparing import Change

Action = Literal["warn", "raise", "interrupt"]
ACTIONS = get_args(Action)


@dataclass(frozen=True, slots=True)
class Precondition:
    """Something outside the agent that a run relies on, and that may change while it is stopped.

    Attributes:
        name: for people, and for what is stored.
        capture: looks at it. Called when a run begins, and again before a stopped run goes on; what it
            gives is stored with each checkpoint, so small plain data is best: a version, a digest.
        check: given what was captured then and now, whether the run may go on: True, False, or a text
            that says why not. By default the two must be equal.
        on_fail: ``"raise"`` (`EnvironmentChanged`), ``"warn"`` (a line in the log) or ``"interrupt"``
            (a human decides). An exception of `check`, or of `capture` before a run goes on, counts as
            a failure: what cannot be checked does not hold.

    `capture` and `check` may be coroutine functions in a graph that runs with asyncio.
    """

    name: str
    capture: Callable[[], Any]
    check: Callable[[Any, Any], Any] | None = None
    on_fail: Action = "raise"

    def __post_init__(self) -> None:
        """Raises ConfigurationError: `on_fail` is no action."""
        check_action(self.on_fail, f"on_fail of precondition {self.name!r}")


def check_action(given: Any, what: str) -> None:
    """Raises ConfigurationError: it is no action."""
    if given not in ACTIONS:
        raise ConfigurationError(f"{what} is {given!r}; it takes one of {', '.join(ACTIONS)}")


def captured(preconditions: Sequence[Precondition]) -> Flow[dict[str, Any]]:
    """What all of them give now, by name; an exception of one is the caller's."""
    found: dict[str, Any] = {}
    for one in preconditions:
        found[one.name] = yield Call(one.capture)
    return found


def checked(
    preconditions: Sequence[Precondition], recorded: Mapping[str, Any]
) -> Flow[tuple[list[Change], dict[str, Any]]]:
    """Those that do not hold any more, and what all of them give now.

    One that had not been captured when the run began is not checked.
    """
    failed: list[Change] = []
    now: dict[str, Any] = {}
    for one in preconditions:
        try:
            now[one.name] = yield Call(one.capture)
            if one.name not in recorded:
                continue
            reason = yield from _verdict(one, recorded[one.name], now[one.name])
        except Exception as error:  # noqa: BLE001 - it is reported, as a failure
            reason = f"it could not be checked: {type(error).__name__}: {error}"
        if reason:
            failed.append(
                Change(
                    kind="precondition",
                    name=one.name,
                    recorded=recorded.get(one.name),
                    current=now.get(one.name),
                    serious=True,
                    reason=reason,
                )
            )
    return failed, now


def _verdict(one: Precondition, then: Any, now: Any) -> Flow[str]:
    """Why a precondition does not hold; empty when it does."""
    check = one.check
    if check is None:
        return "" if then == now else f"was {then!r}, is {now!r}"
    said = yield Call(lambda: check(then, now))
    if isinstance(said, str):
        return said
    return "" if said else f"its check has failed (was {then!r}, is {now!r})"
