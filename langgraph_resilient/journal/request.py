"""What a model call asks: the request, its identity, its parameters.

The identity leaves out what may differ when the same work is done again: ids, times, usage, and the
parameters, which an interrupted call keeps although the code's defaults have changed since.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from langgraph_resilient.codec.packed import pack
from langgraph_resilient.ledger.keys import canonical

DIGEST_BYTES = 16
SAMPLING = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_output_tokens",
        "max_tokens",
        "min_p",
        "model",
        "model_name",
        "n",
        "num_ctx",
        "num_predict",
        "presence_penalty",
        "reasoning",
        "reasoning_effort",
        "repeat_penalty",
        "seed",
        "service_tier",
        "stop",
        "stop_sequences",
        "temperature",
        "text",
        "thinking",
        "top_k",
        "top_logprobs",
        "top_p",
        "verbosity",
    }
)
"""Parameters that steer sampling: an interrupted call keeps them."""
_FORMATS = (
    "response_format",
    "text_format",
    "format",
    "output_format",
    "response_schema",
    "response_mime_type",
)
_SHAPE = ("tools", "functions", "tool_choice", "function_call", *_FORMATS)
_IDS = frozenset(
    {
        "annotations",
        "call_id",
        "encrypted_content",
        "id",
        "index",
        "signature",
        "tool_call_id",
        "tool_use_id",
    }
)
_SECRET = re.compile(
    r"(api|access|auth|private)[_-]?(key|token)|(session|refresh|id|security)[_-]?token|secret"
    r"|authori[sz]ation|passw(or)?d|passphrase|headers|credential|^(key|token)$|cookie|bearer",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A model call, as it is really sent.

    Attributes:
        messages: the conversation.
        sent: everything else by the provider's own names: parameters, tools, tool choice, response
            format. No secrets.
        provider: for example ``openai``.
        model: the model's name.
        seeded: whether the seed in `sent` is ours: no parameter that the code has.
    """

    messages: Sequence[BaseMessage]
    sent: Mapping[str, Any] = field(default_factory=dict)
    provider: str = ""
    model: str = ""
    seeded: bool = False

    @cached_property
    def identity(self) -> bytes:
        """What tells this request from others: messages, tools, tool choice, response format."""
        shape = {name: self.sent[name] for name in _SHAPE if name in self.sent}
        if self._text_format is not None:
            shape["text"] = self._text_format
        return _digest([conversation(self.messages), canonical(shape)])

    @cached_property
    def sampling(self) -> bytes:
        """Digest of the model's name and the parameters."""
        found = self.parameters
        if self.seeded:
            found.pop("seed", None)
        return _digest([self.model, canonical(_same_numbers(found))])

    @property
    def parameters(self) -> dict[str, Any]:
        """What was sent besides messages, tools and formats."""
        return {name: value for name, value in self.sent.items() if name not in _SHAPE}

    @property
    def structured(self) -> bool:
        """Whether the answer must have a format, half of which means nothing."""
        return self._text_format is not None or any(self.sent.get(name) for name in _FORMATS)

    @property
    def _text_format(self) -> Any:
        """The format that OpenAI's Responses take among the settings of texts; None for plain."""
        text = self.sent.get("text")
        found = text.get("format") if isinstance(text, Mapping) else None
        plain = isinstance(found, Mapping) and found.get("type") == "text"
        return None if plain else found


def _digest(tree: Any) -> bytes:
    return hashlib.blake2b(pack(tree), digest_size=DIGEST_BYTES, person=b"lgr-request-1").digest()


def conversation(messages: Sequence[BaseMessage]) -> list[Any]:
    """Messages without ids; tool calls are numbered in the order in which they come up."""
    numbers: dict[str, int] = {}
    return [_message(message, numbers) for message in messages]


def _message(message: BaseMessage, numbers: dict[str, int]) -> list[Any]:
    found = [message.type, _content(message.content), message.name or ""]
    if isinstance(message, AIMessage):
        found.append(
            [
                [call["name"], canonical(call["args"]), _number(call.get("id"), numbers)]
                for call in message.tool_calls
            ]
        )
    elif isinstance(message, ToolMessage):
        found.append([_number(message.tool_call_id, numbers), message.status])
    elif message.type == "chat":
        found.append(getattr(message, "role", ""))
    return found


def _number(id: str | None, numbers: dict[str, int]) -> int:
    return numbers.setdefault(id or "", len(numbers))


def _content(content: Any) -> Any:
    return content if isinstance(content, str) else canonical(_without_ids(content))


def _without_ids(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _without_ids(v) for k, v in value.items() if k not in _IDS}
    if isinstance(value, (list, tuple)):
        return [_without_ids(item) for item in value]
    return value


def _same_numbers(value: Any) -> Any:
    """A temperature of 1 is one of 1.0."""
    if isinstance(value, Mapping):
        return {key: _same_numbers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_same_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


# --- what is sent -------------------------------------------------------------------------------


def without_secrets(value: Any) -> Any:
    """A plain copy of what is sent: no secrets, and nothing that is only an object here."""
    if isinstance(value, Mapping):
        return {
            str(key): without_secrets(item)
            for key, item in value.items()
            if not _SECRET.search(str(key)) and not hasattr(item, "get_secret_value")
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return [without_secrets(item) for item in value if not hasattr(item, "get_secret_value")]
    if isinstance(value, type):
        schema = getattr(value, "model_json_schema", None)
        return {"name": value.__name__, "schema": schema()} if schema else value.__qualname__
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if hasattr(value, "model_dump"):
        return without_secrets(value.model_dump())
    return f"<{type(value).__qualname__}>"


def difference(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Parameters that differ: by name, the recorded and the current value."""
    names = sorted(set(recorded) | set(current))
    return {
        name: [recorded.get(name), current.get(name)]
        for name in names
        if canonical(recorded.get(name)) != canonical(current.get(name))
    }
