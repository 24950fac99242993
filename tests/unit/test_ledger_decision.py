"""The ledger's rule, row by row: what is recorded, who runs it, what it would do, what was said."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from langgraph_resilient.ledger.decision import Decision, Standing, decide
from langgraph_resilient.records import CallName, CallRecord, CallState, Effect, Owner

RERUN = (Effect.PURE, Effect.IDEMPOTENT)


def record(state: CallState, **more: Any) -> CallRecord:
    fields: dict[str, Any] = {
        "key": b"k" * 16,
        "name": CallName(thread_id="t", tool="send", arguments=b"a"),
        "state": state,
        "version": 1,
        "attempt": 1,
        "epoch": 1,
        "owner": Owner(boot="b", host="h", pid=1, started=1),
        "effect": Effect.EXTERNAL,
        "first_at": 0.0,
        "started_at": 0.0,
    }
    return CallRecord(**{**fields, **more})


WITH_RESULT = (("result", b"\xc0"),)


def table() -> list[tuple[CallState, bool, Standing, Effect, bool, Decision]]:
    """Every row: state, whether a result is there, standing, effect, cleared, the decision."""
    rows = []
    for state, told, standing, effect, cleared in itertools.product(
        CallState, (False, True), Standing, Effect, (False, True)
    ):
        runs = state is CallState.STARTED and standing is not Standing.GONE
        lost = state in (CallState.STARTED, CallState.UNKNOWN)
        if runs:
            wanted = Decision.WAIT  # nobody's word stops what is running
        elif cleared:
            wanted = Decision.START
        elif state is CallState.SUCCEEDED or (state is CallState.FAILED and told):
            wanted = Decision.REPLAY
        elif lost and effect is Effect.EXTERNAL:
            wanted = Decision.UNKNOWN
        else:
            wanted = Decision.START
        rows.append((state, told, standing, effect, cleared, wanted))
    return rows


@pytest.mark.parametrize(
    ("state", "told", "standing", "effect", "cleared", "wanted"),
    table(),
    ids=lambda value: getattr(value, "name", str(value)).lower(),
)
def test_every_row_of_the_table(
    state: CallState,
    told: bool,
    standing: Standing,
    effect: Effect,
    cleared: bool,
    wanted: Decision,
) -> None:
    found = record(state, values=WITH_RESULT if told else ())
    assert decide(found, standing, effect, cleared=cleared) is wanted


@pytest.mark.parametrize("cleared", [False, True])
@pytest.mark.parametrize("effect", Effect)
@pytest.mark.parametrize("standing", Standing)
def test_a_call_that_was_never_seen_starts(
    standing: Standing, effect: Effect, cleared: bool
) -> None:
    assert decide(None, standing, effect, cleared=cleared) is Decision.START


@pytest.mark.parametrize("effect", RERUN)
def test_only_an_external_call_is_ever_unknown(effect: Effect) -> None:
    for state in CallState:
        for standing in Standing:
            assert decide(record(state), standing, effect) is not Decision.UNKNOWN


def test_no_state_lets_an_external_call_start_again_by_guess() -> None:
    """Only after a definite end or a pause: never over a row whose end nobody knows."""
    started = {
        state
        for state in CallState
        for standing in Standing
        if decide(record(state), standing, Effect.EXTERNAL) is Decision.START
    }
    assert started == {CallState.FAILED, CallState.SUSPENDED}


def test_what_the_tool_says_today_counts_not_what_it_said_when_it_ran() -> None:
    then = record(CallState.UNKNOWN, effect=Effect.PURE)
    assert decide(then, Standing.GONE, Effect.EXTERNAL) is Decision.UNKNOWN
    then = record(CallState.UNKNOWN, effect=Effect.EXTERNAL)
    assert decide(then, Standing.GONE, Effect.PURE) is Decision.START


def test_states_that_have_not_come_to_an_end_have_the_low_numbers() -> None:
    """The partial index of open calls, and files that exist, rely on the numbers."""
    assert {state.name: state.value for state in CallState} == {
        "STARTED": 1,
        "UNKNOWN": 2,
        "SUSPENDED": 3,
        "FAILED": 4,
        "SUCCEEDED": 5,
    }
