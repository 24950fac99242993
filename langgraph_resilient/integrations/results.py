"""What tools give back: ids set before recording, and recorded results fitted to a new request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.types import Command


def identified(result: Any) -> Any:
    """The same result; messages in it that had no id have one now."""
    for message in messages_in(result):
        if message.id is None:
            message.id = str(uuid4())
    return result


def messages_in(result: Any) -> list[BaseMessage]:
    """The messages in a tool's result: itself, in a list, or in a command's update."""
    if isinstance(result, BaseMessage):
        return [result]
    if isinstance(result, (list, tuple)):
        return [message for item in result for message in messages_in(item)]
    if isinstance(result, Command):
        return messages_in(result.update)
    if isinstance(result, Mapping):
        return [
            message
            for value in result.values()
            if isinstance(value, (list, tuple, BaseMessage))
            for message in messages_in(value)
        ]
    return []


def fitted(result: Any, call: Mapping[str, Any] | None) -> Any:
    """A recorded result as the answer to this call: unchanged where it is one already.

    A business key may bring back the result of another request; a human or a probe gives a text.
    """
    if call is None:
        return result
    if isinstance(result, ToolMessage):
        if result.tool_call_id == call["id"]:
            return result
        return result.model_copy(update={"tool_call_id": call["id"], "id": str(uuid4())})
    if isinstance(result, Command):
        update = result.update
        if isinstance(update, Mapping):
            update = {key: _fitted_all(value, call) for key, value in update.items()}
        return replace(result, update=_fitted_all(update, call))
    if isinstance(result, list) and any(isinstance(i, (ToolMessage, Command)) for i in result):
        return [fitted(item, call) for item in result]
    return told(result, call, status="success")


def _fitted_all(value: Any, call: Mapping[str, Any]) -> Any:
    if isinstance(value, list) and sum(isinstance(item, ToolMessage) for item in value) == 1:
        return [fitted(i, call) if isinstance(i, ToolMessage) else i for i in value]
    return value


def told(text: Any, call: Mapping[str, Any], *, status: str = "error") -> ToolMessage:
    """A message that answers a call with a text."""
    return ToolMessage(
        content=text if isinstance(text, (str, list)) else str(text),
        name=call["name"],
        tool_call_id=call["id"] or "",
        status="error" if status == "error" else "success",
        id=str(uuid4()),
    )
