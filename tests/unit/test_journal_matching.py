"""Which recorded call answers a call of a run that goes on."""

from __future__ import annotations

from typing import Any

import pytest

from langgraph_resilient.journal.matching import Found, Match, find
from langgraph_resilient.records import ModelCallRecord, ModelCallState

ENDED, STARTED = ModelCallState.ENDED, ModelCallState.STARTED


def record(call: int, state: ModelCallState = ENDED, **more: Any) -> ModelCallRecord:
    fields: dict[str, Any] = {
        "call": call,
        "thread_id": "t",
        "state": state,
        "request": b"r",
        "sampling": b"s",
        "parent": b"",
        "task": b"",
        "root": b"",
        "place": "model:1",
        "provider": "p",
        "model": "m",
        "message_id": f"id-{call}",
        "started_at": 0.0,
    }
    return ModelCallRecord(**{**fields, **more})


def found(*candidates: ModelCallRecord, **more: Any) -> Found:
    asked = {"request": b"r", "sampling": b"s", "parent": b"", "place": "model:1", **more}
    return find(candidates, **asked)


def number(of: Found) -> int | None:
    return of.record.call if of.record is not None else None


def test_without_records_the_model_is_called() -> None:
    assert found() == Found(match=Match.NEW)


def test_an_ended_call_answers() -> None:
    assert found(record(1)) == Found(match=Match.ANSWERED, record=record(1))


def test_equal_calls_are_answered_in_the_order_in_which_they_were_made() -> None:
    assert number(found(record(1), record(2))) == 1


def test_a_call_at_another_place_answers_when_all_it_asks_is_the_same() -> None:
    # Tasks of one step begin in any order, and a graph may have been changed.
    assert number(found(record(1, place="other:7"))) == 1


def test_a_call_that_asks_something_else_does_not_answer() -> None:
    assert found(record(1, request=b"x", place="other")).match is Match.NEW


@pytest.mark.parametrize("state", [ENDED, STARTED])
def test_calls_inside_another_tool_call_do_not_answer(state: ModelCallState) -> None:
    other = record(1, state, parent=b"tool")
    assert found(other) == Found(match=Match.NEW)
    assert number(found(other, parent=b"tool")) == 1


@pytest.mark.parametrize("state", [STARTED, ModelCallState.INTERRUPTED])
def test_an_interrupted_call_goes_on(state: ModelCallState) -> None:
    got = found(record(1, state))
    assert (got.match, number(got), got.drifted) == (Match.INTERRUPTED, 1, False)


def test_an_answer_comes_before_an_interrupted_call() -> None:
    got = found(record(1, STARTED), record(2))
    assert (got.match, number(got)) == (Match.ANSWERED, 2)


@pytest.mark.parametrize(
    ("state", "match"), [(ENDED, Match.ANSWERED), (STARTED, Match.INTERRUPTED)]
)
def test_changed_parameters_fit_only_at_the_same_place(state: ModelCallState, match: Match) -> None:
    drifted = record(1, state, sampling=b"old")
    got = found(drifted)
    assert (got.match, number(got), got.drifted) == (match, 1, True)
    assert found(drifted, place="model:2") == Found(match=Match.NEW)


def test_nodes_that_ask_the_same_get_back_their_own_answers() -> None:
    one = record(1, place="@1/__pregel_pull/a#0")
    two = record(2, place="@1/__pregel_pull/b#0")
    assert number(found(one, two, place="@1/__pregel_pull/b#0")) == 2
    assert number(found(one, two, place="@7/__pregel_pull/b#3")) == 2
    assert number(found(one, two, place="@1/__pregel_pull/c#0")) == 1


def test_unchanged_parameters_come_before_changed_ones() -> None:
    got = found(record(1, sampling=b"old"), record(2, place="model:2"))
    assert (number(got), got.drifted) == (2, False)


def test_a_drifted_answer_comes_before_an_interrupted_call() -> None:
    got = found(record(1, STARTED, place="model:2"), record(2, sampling=b"old"))
    assert (got.match, number(got), got.drifted) == (Match.ANSWERED, 2, True)


def test_an_exact_interrupted_call_comes_before_a_drifted_one() -> None:
    got = found(record(1, STARTED, sampling=b"old"), record(2, STARTED))
    assert (number(got), got.drifted) == (2, False)


def test_samples_of_an_ensemble_are_not_taken_for_one_another() -> None:
    hot, cold = record(1, sampling=b"hot"), record(2, sampling=b"cold", place="model:2")
    assert number(found(hot, cold, sampling=b"cold", place="model:2")) == 2
    assert number(found(hot, cold, sampling=b"hot", place="model:1")) == 1


def test_another_question_at_the_same_place_is_a_divergence() -> None:
    other = record(1, request=b"x")
    assert found(other) == Found(match=Match.NEW, diverged=other)


def test_what_was_asked_elsewhere_is_no_divergence() -> None:
    assert found(record(1, request=b"x", place="model:2")).diverged is None
    assert found(record(1, request=b"x", parent=b"tool")).diverged is None


def test_a_match_is_no_divergence() -> None:
    assert found(record(1, request=b"x"), record(2)).diverged is None
