"""Whether a recorded tool call could still be made with the tool as it is now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.tools import BaseTool
from pydantic import ValidationError
from pydantic.v1 import ValidationError as OldValidationError


def fitting(tool: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether a tool takes arguments that a model has given. One that shows no schema takes all."""
    if not isinstance(tool, BaseTool):
        return True
    schema: Any = tool.tool_call_schema
    if isinstance(schema, dict):
        return _fits_json(schema, arguments)
    check = getattr(schema, "model_validate", None) or schema.parse_obj
    try:
        check(dict(arguments))
    except (ValidationError, OldValidationError):
        return False
    return True


def _fits_json(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    known = schema.get("properties") or {}
    missing = set(schema.get("required") or ()) - set(arguments)
    closed = schema.get("additionalProperties") is False
    return not missing and not (closed and set(arguments) - set(known))
