"""What a human answered about a call whose outcome is unknown, in every form it is given."""

from __future__ import annotations

from typing import Any

import pytest

from langgraph_resilient.ledger.answers import DONE_TEXT, Answer, parse


@pytest.mark.parametrize(
    ("word", "action"),
    [
        ("succeeded", "succeeded"),
        ("done", "succeeded"),
        ("yes", "succeeded"),
        ("retry", "retry"),
        ("no", "retry"),
        ("not_done", "retry"),
        ("failed", "failed"),
        ("fail", "failed"),
        ("  Retry\n", "retry"),
        ("DONE", "succeeded"),
    ],
)
def test_a_bare_word_and_a_mapping_say_the_same(word: str, action: str) -> None:
    bare, mapped = parse(word), parse({"action": word})
    assert isinstance(bare, Answer)
    assert bare == mapped
    assert bare.action == action


def test_everything_that_was_said_is_kept() -> None:
    given = {"action": "failed", "result": "closed", "by": "Ada", "reason": "it is Sunday"}
    assert parse(given) == Answer(action="failed", result="closed", by="Ada", reason="it is Sunday")


def test_a_success_without_a_result_has_a_text_for_the_model() -> None:
    assert parse("succeeded") == Answer(action="succeeded", result=DONE_TEXT)
    assert parse({"action": "done", "result": None}) == Answer(action="succeeded", result=DONE_TEXT)
    for result in ("", 0, [], {}):
        assert parse({"action": "done", "result": result}) == Answer(
            action="succeeded", result=result
        )


def test_other_actions_have_no_result_of_their_own() -> None:
    assert parse("retry") == Answer(action="retry")
    assert parse("failed") == Answer(action="failed")


@pytest.mark.parametrize(
    "given",
    ["", "maybe", "succeed ed", None, True, False, 1, [], ["retry"], {}, {"answer": "retry"}]
    + [{"action": value} for value in (None, True, 1, ["retry"], "perhaps")],
    ids=repr,
)
def test_what_cannot_be_understood_is_said_so_and_is_no_decision(given: Any) -> None:
    """Never a guess: True is no yes, and a word that is not known is asked about again."""
    found = parse(given)
    assert isinstance(found, str)
    assert "succeeded, retry or failed" in found


@pytest.mark.parametrize("empty", [None, "", 0])
def test_names_that_are_empty_are_texts(empty: Any) -> None:
    found = parse({"action": "retry", "by": empty, "reason": empty})
    assert found == Answer(action="retry")
