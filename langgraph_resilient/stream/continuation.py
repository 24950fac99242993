"""How an interrupted answer goes on: pure functions of what was shown, the request and the model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage


class Strategy(str, Enum):
    """A way to go on.

    `NATIVE` fetches the rest of the same generation from the provider, `PREFILL` gives the partial
    answer as the last assistant message, `INSTRUCT` asks to continue and trims what is said twice,
    `RESTART` generates anew and shows what differs, `KEEP_PARTIAL` ends with what there is.
    """

    NATIVE = "native"
    PREFILL = "prefill"
    INSTRUCT = "instruct"
    RESTART = "restart"
    KEEP_PARTIAL = "keep_partial"


Table = list[tuple[re.Pattern[str], re.Pattern[str], tuple[Strategy, ...]]]
_PREFILL = (Strategy.PREFILL, Strategy.INSTRUCT, Strategy.RESTART)
_INSTRUCT = (Strategy.INSTRUCT, Strategy.RESTART)
_EARLY_CLAUDE = r"claude-(2|3|instant|(opus|sonnet|haiku)-4(-[0-5])?(-20|$|@))"
_LOCAL = "mistral|deepseek|vllm|sglang|llama|ollama|huggingface|fireworks|together"


def _row(provider: str, model: str, strategies: tuple[Strategy, ...]) -> Any:
    return re.compile(provider), re.compile(model), strategies


_TABLE: Table = [
    _row("anthropic", _EARLY_CLAUDE, _PREFILL),
    _row("anthropic", "", _INSTRUCT),  # newer models refuse a prefilled answer
    _row(_LOCAL, "", _PREFILL),
    _row("", "", _INSTRUCT),
]
INSTRUCTION = (
    "Your answer was cut off by a technical fault. Continue it exactly where it stops, in the middle "
    "of a word if need be. Repeat nothing, add no remark."
)


def register_strategies(
    provider: str, model: str = "", strategies: Sequence[Strategy | str] = _INSTRUCT
) -> None:
    """Say how answers of a provider's models go on; the latest word holds.

    Args:
        provider: regular expression for the provider's name.
        model: regular expression for the model's name.
        strategies: what to try, in this order; a refusal by the provider steps on to the next.
    """
    ways = tuple(Strategy(one) for one in strategies)
    _TABLE.insert(0, (re.compile(provider), re.compile(model), ways))


_REASONS = ("finish_reason", "stop_reason", "done_reason")
_ENDS = frozenset(
    {"stop", "length", "tool_calls", "function_call", "content_filter"}
    | {"end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "eos", "completed"}
    | {"interrupted"}
)
"""Why an answer has ended, as providers and `KEEP_PARTIAL` say it, in lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """How one interrupted answer goes on.

    Attributes:
        strategies: what to try, in order; none: it is whole.
        shown: the text that was shown.
    """

    strategies: tuple[Strategy, ...]
    shown: str


def choose(
    partial: Sequence[AIMessageChunk],
    *,
    provider: str,
    model: str,
    structured: bool,
    wanted: Strategy | str = "auto",
    attempts: int = 0,
    budget: int = 3,
) -> Continuation:
    """How an answer goes on.

    Half a tool call, half a reasoning block and structured output are never continued: half of them
    means nothing, so they begin anew. Of an answer that is whole nothing is left to ask for.

    Args:
        partial: what was shown.
        provider: the provider's name.
        model: the model's name.
        structured: whether the answer must have a format.
        wanted: a strategy, or ``"auto"``.
        attempts: how often the answer was begun before.
        budget: after so many attempts it ends with what there is.
    """
    text = text_of(partial)
    if is_whole(partial):
        return Continuation(strategies=(), shown=text or "")
    if attempts >= budget and text is not None:
        return Continuation(strategies=(Strategy.KEEP_PARTIAL,), shown=text)
    if not text or structured:
        return Continuation(strategies=(Strategy.RESTART,), shown=text or "")
    if wanted != "auto":
        first = Strategy(wanted)
        rest = () if first in (Strategy.RESTART, Strategy.KEEP_PARTIAL) else (Strategy.RESTART,)
        return Continuation(strategies=(first, *rest), shown=text)
    for providers, models, strategies in _TABLE:
        if providers.search(provider.lower()) and models.search(model.lower()):
            return Continuation(strategies=strategies, shown=text)
    return Continuation(strategies=_INSTRUCT, shown=text)


def is_whole(partial: Sequence[AIMessageChunk]) -> bool:
    """Whether the provider has told the end of an answer: only its record is missing."""
    return any(
        chunk.chunk_position == "last"
        or any(str(chunk.response_metadata.get(name)).lower() in _ENDS for name in _REASONS)
        for chunk in partial
    )


def text_of(partial: Sequence[AIMessageChunk]) -> str | None:
    """The text of chunks that hold nothing else; None when they hold more than text."""
    parts: list[str] = []
    for chunk in partial:
        if chunk.tool_call_chunks or chunk.additional_kwargs.get("reasoning_content"):
            return None
        if isinstance(chunk.content, str):
            parts.append(chunk.content)
            continue
        for block in chunk.content:
            if isinstance(block, str):
                parts.append(block)
            elif isinstance(block, Mapping) and block.get("type") in ("text", "text_delta"):
                parts.append(str(block.get("text") or ""))
            elif isinstance(block, Mapping) and set(block) <= {"index", "type"}:
                continue
            else:
                return None
    return "".join(parts)


def prompt(strategy: Strategy, messages: Sequence[BaseMessage], shown: str) -> list[BaseMessage]:
    """The conversation to send."""
    if strategy is Strategy.PREFILL:
        # Providers refuse a last assistant message that ends in white space.
        return [*messages, AIMessage(shown.rstrip() if shown.strip() else shown)]
    if strategy is Strategy.INSTRUCT:
        return [*messages, AIMessage(shown), HumanMessage(INSTRUCTION)]
    return list(messages)


def trimmer(strategy: Strategy, shown: str) -> Callable[[str], str | None]:
    """What to show of a new answer, fed with it piece by piece.

    The function gives the text to show of each piece, and None once, in place of everything, when a
    new answer differs from what was shown.
    """
    if strategy is Strategy.PREFILL:
        return _Prefilled(shown)
    if strategy is Strategy.INSTRUCT:
        return _Overlap(shown)
    return _Same(shown)


class _Prefilled:
    """The rest of an answer whose trailing white space was not sent."""

    def __init__(self, shown: str):
        self._space = shown[len(shown.rstrip()) :] if shown.strip() else ""

    def __call__(self, piece: str) -> str:
        while self._space and piece and piece[0] == self._space[0]:
            self._space, piece = self._space[1:], piece[1:]
        if piece:
            self._space = ""
        return piece


class _Overlap:
    """The rest of an answer that may begin with what was shown last, or with all of it."""

    _LONGEST = 400
    _SHORTEST = 4
    """Fewer equal characters are chance."""

    def __init__(self, shown: str):
        self._shown = shown
        self._tail = shown[-self._LONGEST :]
        self._held = ""
        self._decided = not shown

    def __call__(self, piece: str) -> str:
        if self._decided:
            return piece
        self._held += piece
        return "" if self._may_repeat() else self.rest()

    def _may_repeat(self) -> bool:
        """Whether more of the answer could still make it a repetition."""
        held, tail = self._held, self._tail
        if len(held) < len(self._shown) and self._shown.startswith(held):
            return True
        return any(tail.startswith(held, at) for at in range(len(tail) - len(held)))

    def rest(self) -> str:
        """What is new in what was held back, now that it is decided or the answer has ended."""
        held, self._held, self._decided = self._held, "", True
        if held.startswith(self._shown):
            return held[len(self._shown) :]
        for size in range(min(len(held), self._LONGEST), self._SHORTEST - 1, -1):
            if self._shown.endswith(held[:size]):
                return held[size:]
        return held


class _Same:
    """A new answer: nothing is shown twice as long as it is the same."""

    def __init__(self, shown: str):
        self.left = shown
        """What was shown and was not generated again so far."""
        self.matched = ""
        """What was generated again and not shown again."""

    def __call__(self, piece: str) -> str | None:
        if not self.left:
            return piece
        size = min(len(piece), len(self.left))
        if piece[:size] != self.left[:size]:
            return None
        self.left = self.left[size:]
        self.matched += piece[:size]
        return piece[size:]


def is_refusal(error: BaseException) -> bool:
    """Whether a provider refused the way in which it was asked to go on."""
    status: Any = getattr(error, "status_code", getattr(error, "code", None))
    return status in (400, 404, 405, 415, 422, 501) or isinstance(error, NotImplementedError)
