"""What may be done with a tool's calls: the effect class, and what goes with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from langgraph_resilient.errors import ConfigurationError
from langgraph_resilient.records import Effect

OnUnknown = Literal["interrupt", "raise", "message", "retry"]
T = TypeVar("T")

_ON_UNKNOWN = ("interrupt", "raise", "message", "retry")
_ATTRIBUTE = "__resilient_policy__"


@dataclass(frozen=True, slots=True)
class Done:
    """What a `verify` probe found: the call took effect; `result` is what the tool would return."""

    result: Any = "The call took effect; its answer was lost."


@dataclass(frozen=True, slots=True)
class NotDone:
    """What a `verify` probe found: the call had no effect, so it may run again."""

    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ToolPolicy:
    """How the ledger treats the calls of one tool.

    Attributes:
        effect: ``"pure"``, ``"idempotent"`` or ``"external"``; None takes what the tool itself
            says, and else the middleware's default.
        key: a business key from the arguments, such as ``lambda args: f"order:{args['id']}"``.
            Calls with one key are one call, whichever message asked.
        scope: whether a business key holds within its ``"thread"`` or for all (``"global"``).
        verify: a probe for calls whose outcome is unknown. Gets the `Entry`, returns `Done`,
            `NotDone`, or None when it cannot tell. May be a coroutine function in async graphs.
        on_unknown: what happens to an external call whose outcome stays unknown: ask a human
            (``"interrupt"``), ``"raise"`` `UnknownOutcome`, tell the model (``"message"``), or
            ``"retry"``.
        precondition: checked before an external call runs again; gets the `Entry`, returns False or
            raises when it must not. Never asked before a recorded result is returned.
        still_valid: whether a recorded result of a pure tool may still be used; gets the result.
        artifacts: the files a call made, from its result: paths that are fingerprinted, so that a
            resume can report those that are gone or changed.
        definite: exceptions that say the call had no effect.
        ambiguous: exceptions after which nobody knows.
    """

    effect: Effect | Literal["pure", "idempotent", "external"] | None = None
    key: Callable[[Mapping[str, Any]], str] | None = None
    scope: Literal["thread", "global"] = "thread"
    verify: Callable[[Any], Any] | None = None
    on_unknown: OnUnknown = "interrupt"
    precondition: Callable[[Any], Any] | None = None
    still_valid: Callable[[Any], bool] | None = None
    artifacts: Callable[[Any], Iterable[Any]] | None = None
    definite: tuple[type[BaseException], ...] = ()
    ambiguous: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if self.effect is not None:
            try:
                object.__setattr__(self, "effect", Effect(self.effect))
            except ValueError:
                raise ConfigurationError(
                    f"effect={self.effect!r} is not one of pure, idempotent, external"
                ) from None
        if self.on_unknown not in _ON_UNKNOWN:
            raise ConfigurationError(
                f"on_unknown={self.on_unknown!r} is not one of {', '.join(_ON_UNKNOWN)}"
            )
        if self.scope not in ("thread", "global"):
            raise ConfigurationError(f"scope={self.scope!r} is not 'thread' or 'global'")

    def business_key(self, tool: str, arguments: Mapping[str, Any]) -> str | None:
        """The user's own key of a call, or None.

        Raises:
            ConfigurationError: the function gives something else than a text.
        """
        if self.key is None:
            return None
        found = self.key(arguments)
        if not isinstance(found, str) or not found:
            raise ConfigurationError(
                f"tool {tool!r}: its key= function gave {type(found).__name__} {found!r}; "
                "it must give a text that is not empty"
            )
        return found


def effect(
    kind: Effect | Literal["pure", "idempotent", "external"], **policy: Any
) -> Callable[[T], T]:
    """Say what calling a tool does; use it above or below ``@tool``, or on a function.

    Args:
        kind: the effect class.
        **policy: what else `ToolPolicy` knows, for example ``verify=`` or ``key=``.

    Returns:
        A decorator that gives back the very object it got, with the policy noted on it.
    """
    made = ToolPolicy(effect=kind, **policy)

    def mark(thing: T) -> T:
        # Tools are pydantic models that refuse unknown attributes; this is a note, not a field.
        object.__setattr__(thing, _ATTRIBUTE, made)
        return thing

    return mark


def policy_of(thing: Any) -> ToolPolicy | None:
    """What a tool, or the function inside it, was marked with; else what its metadata say.

    ``metadata={"retry_safe": True}`` means idempotent. Tools of MCP servers carry the annotations
    ``readOnlyHint`` (pure) and ``idempotentHint`` (idempotent).
    """
    for part in (thing, getattr(thing, "func", None), getattr(thing, "coroutine", None)):
        found = getattr(part, _ATTRIBUTE, None)
        if isinstance(found, ToolPolicy):
            return found
    kind = _from_metadata(getattr(thing, "metadata", None) or {})
    return None if kind is None else ToolPolicy(effect=kind)


def _from_metadata(metadata: Mapping[str, Any]) -> Effect | None:
    if metadata.get("readOnlyHint") is True:
        return Effect.PURE
    if metadata.get("retry_safe") is True or metadata.get("idempotentHint") is True:
        return Effect.IDEMPOTENT
    return None


def resolved(given: ToolPolicy | None, own: ToolPolicy | None, default: Effect) -> ToolPolicy:
    """The policy that holds: what the graph says of the tool, over what the tool says of itself."""
    if given is not None and own is not None:
        unset = ToolPolicy()
        merged = {
            name: getattr(given, name)
            if getattr(given, name) != getattr(unset, name)
            else getattr(own, name)
            for name in ToolPolicy.__dataclass_fields__
        }
        chosen = ToolPolicy(**merged)
    else:
        chosen = given or own or ToolPolicy()
    return chosen if chosen.effect is not None else replace(chosen, effect=default)
