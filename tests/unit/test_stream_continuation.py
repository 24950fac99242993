"""How an interrupted answer goes on: the table, the prompts, what is trimmed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage

from langgraph_resilient import register_strategies
from langgraph_resilient.stream import continuation
from langgraph_resilient.stream.continuation import (
    INSTRUCTION,
    Strategy,
    choose,
    is_refusal,
    prompt,
    text_of,
    trimmer,
)

PREFILL = (Strategy.PREFILL, Strategy.INSTRUCT, Strategy.RESTART)
INSTRUCT = (Strategy.INSTRUCT, Strategy.RESTART)
RESTART = (Strategy.RESTART,)
SHOWN = [AIMessageChunk("Once upon")]
CALL = AIMessageChunk("", tool_call_chunks=[{"name": "pay", "args": '{"eu', "id": "c", "index": 0}])
WORDS = "abc \n"


@pytest.fixture(autouse=True)
def table() -> Iterator[None]:
    """Tests may say how models go on; other tests do not hear it."""
    before = list(continuation._TABLE)
    yield
    continuation._TABLE[:] = before


def chosen(provider: str = "openai", model: str = "m", **more: Any) -> tuple[Strategy, ...]:
    asked = {"structured": False, "partial": SHOWN, **more}
    return choose(provider=provider, model=model, **asked).strategies


# --- choosing ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        "claude-2.1",
        "claude-instant-1.2",
        "claude-3-5-sonnet-20241022",
        "claude-3-7-sonnet-latest",
        "claude-3-haiku-20240307",
        "claude-sonnet-4-20250514",
        "claude-opus-4-0",
        "claude-opus-4-1-20250805",
        "claude-opus-4-5-20251101",
        "claude-sonnet-4-5",
        "claude-haiku-4-5@20251001",
    ],
)
def test_earlier_anthropic_models_take_a_prefilled_answer(model: str) -> None:
    assert chosen("anthropic", model) == PREFILL


@pytest.mark.parametrize(
    "model",
    [
        "claude-opus-4-6",
        "claude-sonnet-4-6",
        "claude-opus-4-6-20260205",
        "claude-opus-4-7",
        "claude-haiku-4-8",
        "claude-opus-5",
        "claude-sonnet-5-20270101",
        "claude-opus-4-10",
        "claude-next",
    ],
)
def test_newer_anthropic_models_are_asked_to_go_on(model: str) -> None:
    assert chosen("anthropic", model) == INSTRUCT


@pytest.mark.parametrize(
    "provider",
    ["mistralai", "deepseek", "vllm", "sglang", "llamacpp", "ollama", "huggingface", "fireworks"],
)
def test_local_and_open_models_take_a_prefilled_answer(provider: str) -> None:
    assert chosen(provider) == PREFILL
    assert chosen(provider.upper()) == PREFILL


@pytest.mark.parametrize("provider", ["openai", "google_genai", "azure", "amazon_bedrock", ""])
def test_other_models_are_asked_to_go_on(provider: str) -> None:
    assert chosen(provider) == INSTRUCT


def test_the_table_can_be_extended_and_the_latest_word_holds() -> None:
    register_strategies("openai", "^mine", ["prefill", Strategy.RESTART])
    assert chosen(model="mine-7b") == (Strategy.PREFILL, Strategy.RESTART)
    assert chosen(model="gpt") == INSTRUCT
    register_strategies("openai", strategies=["keep_partial"])
    assert chosen(model="mine-7b") == (Strategy.KEEP_PARTIAL,)


def test_a_strategy_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="hope"):
        register_strategies("openai", strategies=["hope"])
    with pytest.raises(ValueError, match="hope"):
        chosen(wanted="hope")


@pytest.mark.parametrize(
    ("wanted", "strategies"),
    [
        ("native", (Strategy.NATIVE, Strategy.RESTART)),
        ("prefill", (Strategy.PREFILL, Strategy.RESTART)),
        ("instruct", INSTRUCT),
        ("restart", RESTART),
        ("keep_partial", (Strategy.KEEP_PARTIAL,)),
        (Strategy.PREFILL, (Strategy.PREFILL, Strategy.RESTART)),
    ],
)
def test_the_users_strategy_holds_and_steps_down_to_a_restart(
    wanted: Any, strategies: tuple[Strategy, ...]
) -> None:
    assert chosen("mistral", wanted=wanted) == strategies


@pytest.mark.parametrize("wanted", ["auto", "prefill", "instruct", "keep_partial"])
@pytest.mark.parametrize(
    "more",
    [
        {"structured": True},
        {"partial": [CALL]},
        {"partial": [*SHOWN, CALL]},
        {"partial": [AIMessageChunk("", additional_kwargs={"reasoning_content": "hm"})]},
        {"partial": [AIMessageChunk([{"type": "thinking", "thinking": "hm", "index": 0}])]},
        {"partial": [AIMessageChunk("")]},
        {"partial": []},
    ],
    ids=["structured", "call", "text, call", "reasoning", "thinking", "empty", "none"],
)
def test_half_of_what_means_nothing_begins_anew(wanted: str, more: dict[str, Any]) -> None:
    assert chosen("mistral", wanted=wanted, **more) == RESTART


@pytest.mark.parametrize(
    "last",
    [
        AIMessageChunk("", chunk_position="last"),
        AIMessageChunk("", response_metadata={"finish_reason": "stop"}),
        AIMessageChunk("", response_metadata={"finish_reason": "STOP"}),
        AIMessageChunk(" a time", response_metadata={"stop_reason": "end_turn"}),
        AIMessageChunk("", response_metadata={"done_reason": "length"}),
        AIMessageChunk("", response_metadata={"finish_reason": "interrupted"}),
    ],
)
@pytest.mark.parametrize("before", [SHOWN, [CALL]], ids=["text", "call"])
def test_nothing_is_left_to_ask_of_an_answer_that_is_whole(
    before: list[AIMessageChunk], last: AIMessageChunk
) -> None:
    plan = choose([*before, last], provider="openai", model="gpt", structured=False, attempts=9)
    assert plan.strategies == ()


@pytest.mark.parametrize("reason", ["", None, "FINISH_REASON_UNSPECIFIED"])
def test_a_reason_that_is_none_ends_no_answer(reason: str | None) -> None:
    chunk = AIMessageChunk("Once", response_metadata={"finish_reason": reason})
    assert choose([chunk], provider="openai", model="gpt", structured=False).strategies == INSTRUCT


def test_the_budget_ends_an_answer_with_what_there_is() -> None:
    assert chosen(attempts=2, budget=3) == INSTRUCT
    assert chosen(attempts=3, budget=3) == (Strategy.KEEP_PARTIAL,)


def test_what_is_shown_is_the_text() -> None:
    partial = [AIMessageChunk("Once "), AIMessageChunk("upon")]
    asked: dict[str, Any] = {"provider": "openai", "model": "m"}
    assert choose(partial, structured=False, **asked).shown == "Once upon"
    assert choose(partial, structured=True, **asked).shown == "Once upon"
    assert choose([*partial, CALL], structured=False, **asked).shown == ""


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a", "a"),
        ("", ""),
        (["a", "b"], "ab"),
        ([{"type": "text", "text": "a", "index": 0}, {"type": "text", "index": 0}], "a"),
        ([{"type": "text_delta", "text": None}], ""),
        ([{"index": 0}], ""),
        ([{"type": "thinking", "thinking": "hm"}], None),
        ([{"type": "image", "url": "x"}], None),
    ],
    ids=str,
)
def test_text_of_a_chunk(content: Any, text: str | None) -> None:
    assert text_of([AIMessageChunk(content)]) == text


# --- prompts ----------------------------------------------------------------------------------


def test_a_prefilled_answer_does_not_end_in_white_space() -> None:
    asked = [HumanMessage("x")]
    sent = prompt(Strategy.PREFILL, asked, "Once upon \n")
    assert sent == [*asked, AIMessage("Once upon")]
    assert prompt(Strategy.PREFILL, asked, " ") == [*asked, AIMessage(" ")]


def test_asking_to_go_on_gives_the_answer_and_the_instruction() -> None:
    asked = [HumanMessage("x")]
    sent = prompt(Strategy.INSTRUCT, asked, "Once upon ")
    assert sent == [*asked, AIMessage("Once upon "), HumanMessage(INSTRUCTION)]


def test_a_restart_asks_what_was_asked() -> None:
    asked = [HumanMessage("x")]
    sent = prompt(Strategy.RESTART, asked, "Once")
    assert sent == asked
    assert sent is not asked


# --- trimming ---------------------------------------------------------------------------------


def pieces(text: str, cuts: Iterable[int]) -> list[str]:
    bounds = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    return [text[a:b] for a, b in pairwise(bounds)]


def trimmed(strategy: Strategy, shown: str, given: Iterable[str]) -> str:
    trim: Any = trimmer(strategy, shown)
    said = "".join(trim(piece) for piece in given)
    return said + getattr(trim, "rest", str)()


texts = st.text(WORDS, max_size=30)
splits = st.lists(st.integers(0, 60), max_size=8)


@given(texts, texts, splits)
def test_a_prefilled_answer_goes_on_where_it_stopped(
    shown: str, rest: str, cuts: list[int]
) -> None:
    sent = prompt(Strategy.PREFILL, [], shown)[0].text
    answer = (shown + rest)[len(sent) :]
    assert shown + trimmed(Strategy.PREFILL, shown, pieces(answer, cuts)) == shown + rest


@given(texts, texts, splits)
def test_a_prefilled_answer_may_leave_the_white_space_out(
    shown: str, rest: str, cuts: list[int]
) -> None:
    assume(rest[:1].strip())
    assert trimmed(Strategy.PREFILL, shown, pieces(rest, cuts)) == rest


def longest_overlap(shown: str, answer: str) -> int:
    if answer.startswith(shown):
        return len(shown)
    sizes = range(min(len(answer), 400), 3, -1)
    return next((n for n in sizes if shown.endswith(answer[:n])), 0)


@given(texts, texts, st.integers(0, 40), splits)
def test_what_an_answer_says_twice_is_trimmed(
    shown: str, rest: str, overlap: int, cuts: list[int]
) -> None:
    said = shown[len(shown) - min(overlap, len(shown)) :]
    answer = said + rest
    # An answer that repeats itself can be read in several ways; the longest repetition counts.
    assume(longest_overlap(shown, answer) == len(said))
    assert trimmed(Strategy.INSTRUCT, shown, pieces(answer, cuts)) == rest


@given(st.text("abcdefgh", min_size=500, max_size=900), texts, st.integers(4, 400), splits)
def test_a_long_answer_is_trimmed_alike(
    shown: str, rest: str, overlap: int, cuts: list[int]
) -> None:
    said = shown[-overlap:]
    assume(longest_overlap(shown, said + rest) == overlap)
    assert trimmed(Strategy.INSTRUCT, shown, pieces(said + rest, cuts)) == rest


@given(st.text("abcdefgh", min_size=500, max_size=900), texts, splits)
def test_all_of_a_long_answer_said_again_is_trimmed(shown: str, rest: str, cuts: list[int]) -> None:
    assert trimmed(Strategy.INSTRUCT, shown, pieces(shown + rest, cuts)) == rest


@given(texts, texts, splits)
def test_nothing_of_what_is_new_is_lost(shown: str, answer: str, cuts: list[int]) -> None:
    assume(longest_overlap(shown, answer) == 0)
    assert trimmed(Strategy.INSTRUCT, shown, pieces(answer, cuts)) == answer


def test_what_cannot_be_a_repetition_is_shown_at_once() -> None:
    trim = trimmer(Strategy.INSTRUCT, "Once upon a time")
    assert trim("a ") == ""
    assert trim("time ") == " "
    assert trim("there") == "there"
    trim = trimmer(Strategy.INSTRUCT, "Once upon a time")
    assert trim("zebra") == "zebra"


@given(texts, texts, splits)
def test_the_same_answer_is_not_shown_twice(shown: str, rest: str, cuts: list[int]) -> None:
    answer = shown + rest
    assert trimmed(Strategy.RESTART, shown, pieces(answer, cuts)) == rest


@given(st.text(WORDS, min_size=1, max_size=30), texts, st.data())
def test_another_answer_is_noticed_at_the_first_difference(
    shown: str, rest: str, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(shown) - 1))
    other = data.draw(st.sampled_from([c for c in WORDS if c != shown[at]]))
    answer = shown[:at] + other + rest
    trim: Any = trimmer(Strategy.RESTART, shown)
    said = ""
    for piece in pieces(answer, data.draw(splits)):
        given_back = trim(piece)
        if len(said + piece) <= at:
            assert given_back == ""
        else:
            assert given_back is None
            assert trim.matched == said
            break
        said += piece
    else:
        raise AssertionError("the difference was not noticed")


def test_an_answer_that_ends_early_leaves_something() -> None:
    trim: Any = trimmer(Strategy.RESTART, "Once upon")
    assert trim("Once ") == ""
    assert (trim.left, trim.matched) == ("upon", "Once ")


# --- refusals ---------------------------------------------------------------------------------


class Refused(Exception):
    def __init__(self, **fields: Any) -> None:
        super().__init__()
        self.__dict__.update(fields)


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (Refused(status_code=400), True),
        (Refused(status_code=422), True),
        (Refused(code=404), True),
        (NotImplementedError(), True),
        (Refused(status_code=429), False),
        (Refused(status_code=401), False),
        (Refused(status_code=500), False),
        (Refused(code="invalid"), False),
        (Refused(code=["invalid"]), False),
        (TimeoutError(), False),
        (ValueError(), False),
    ],
    ids=repr,
)
def test_what_a_refusal_is(error: BaseException, refused: bool) -> None:
    assert is_refusal(error) is refused
