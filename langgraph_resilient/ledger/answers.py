"""What a human answered about a call whose outcome is unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_ACTIONS = {
    "succeeded": "succeeded",
    "done": "succeeded",
    "yes": "succeeded",
    "retry": "retry",
    "not_done": "retry",
    "no": "retry",
    "failed": "failed",
    "fail": "failed",
}
DONE_TEXT = "A human confirmed that the call took effect."


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A decision.

    Attributes:
        action: ``succeeded``, ``retry`` or ``failed``.
        result: what the tool would have said, or what to tell the model.
        by: who decided.
        reason: why.
    """

    action: str
    result: Any = None
    by: str = ""
    reason: str = ""


def parse(given: Any) -> Answer | str:
    """The decision in an answer, or what is wrong with it.

    Understands ``{"action": …, "result": …, "by": …, "reason": …}`` and the bare action.
    """
    fields: Mapping[str, Any] = given if isinstance(given, Mapping) else {"action": given}
    word = fields.get("action")
    action = _ACTIONS.get(word.strip().lower()) if isinstance(word, str) else None
    if action is None:
        return f'"{word}" is no action; answer with succeeded, retry or failed'
    result = fields.get("result")
    if action == "succeeded" and result is None:
        result = DONE_TEXT
    return Answer(
        action=action,
        result=result,
        by=str(fields.get("by") or ""),
        reason=str(fields.get("reason") or ""),
    )
