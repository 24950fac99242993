"""A model's call with other parameters than the model has: those that were recorded.

Providers' names are not always those of the client's fields, and a field that was not set when the
call was recorded must not be sent now. Knows no journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import SecretStr

_STOPS = ("stop", "stop_sequences")
_FIELDS = {"max_output_tokens": "max_tokens", "max_completion_tokens": "max_tokens"}
"""Fields by the name under which their value is sent, where no alias says so."""
_SAID_BY = {"reasoning": ("reasoning_effort",), "text": ("verbosity",)}
"""Fields that are sent as a part of a parameter with another name."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What makes a call send recorded parameters.

    Attributes:
        fields: of the model.
        given: keyword arguments of the call.
        dropped: keyword arguments that the recorded call did not have.
        stop: stop sequences, in a tuple of one; empty when the call's own hold.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    stop: tuple[list[str] | None, ...] = ()

    def arguments(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The call's keyword arguments, changed."""
        kept = {name: value for name, value in kwargs.items() if name not in self.dropped}
        return {**kept, **self.given}


def changes(model: Any, kwargs: Mapping[str, Any], parameters: Mapping[str, Any]) -> Changes:
    """How to call a model so that it sends parameters as they were recorded.

    Args:
        model: the chat model.
        kwargs: the call's keyword arguments.
        parameters: by the provider's names; None where the recorded call sent nothing.
    """
    known = type(model).model_fields
    fields: dict[str, Any] = {}
    given: dict[str, Any] = {}
    dropped: set[str] = set()
    stop: tuple[Any, ...] = ()
    for name, value in parameters.items():
        own = _field(known, name)
        if name in _STOPS:
            stop = (value,)
            if own:
                fields[own] = value
            continue
        for other in _SAID_BY.get(name, ()):
            if other in known:
                fields[other] = None
        if own is None and name not in kwargs and "extra_body" in known:
            more = {**(fields.get("extra_body") or model.extra_body or {}), name: value}
            fields["extra_body"] = {k: v for k, v in more.items() if v is not None} or None
        elif name in kwargs or own in kwargs or own is None:
            given.update({} if value is None else {name: value})
            dropped |= {name, own or name}
        if own:
            fields[own] = value
    return Changes(fields=fields, given=given, dropped=frozenset(dropped), stop=stop)


def secrets_of(model: Any) -> list[str]:
    """The values of a model's secret fields: an error may repeat them."""
    found = (getattr(model, name, None) for name in type(model).model_fields)
    values = (item.get_secret_value() for item in found if isinstance(item, SecretStr))
    return [value for value in values if value]


def _field(known: Mapping[str, Any], name: str) -> str | None:
    """The model's field for a parameter, or None."""
    if name in known:
        return name
    aliased = next((own for own, info in known.items() if info.alias == name), None)
    fallback = _FIELDS.get(name)
    return aliased or (fallback if fallback in known else None)
