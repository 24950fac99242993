"""A result that cannot be stored whole, in less and less complete forms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def forms(values: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Values to store, then less and less of the result until it can be stored."""
    yield values
    result = values.get("result")
    if result is None:
        return
    rest = dict(values)
    if getattr(result, "artifact", None) is not None:
        yield {**rest, "result": result.model_copy(update={"artifact": None})}
    if hasattr(result, "content") and hasattr(result, "model_copy"):
        bare: dict[str, Any] = {"artifact": None, "additional_kwargs": {}, "response_metadata": {}}
        yield {**rest, "result": result.model_copy(update={**bare, "content": str(result.content)})}
    yield {**rest, "result": repr(result)}
