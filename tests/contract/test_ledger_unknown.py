"""Unknown outcomes on every backend: what policies do, humans answer and operators decide."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from building import plain_id
from calling import (
    LONG,
    Asking,
    Counter,
    answer,
    begin,
    book_of,
    call,
    dead_owner,
    far_owner,
    make_unknown,
    run,
)
from conftest import SEALED

from langgraph_resilient.errors import (
    CallNotFound,
    ConfigurationError,
    LostOwnership,
    UnknownOutcome,
)
from langgraph_resilient.ledger import Done, Entry, NotDone
from langgraph_resilient.records import CallState, Event

MORE_GUARDS = [SEALED]


def test_an_unknown_call_is_asked_about_and_never_run_by_guess(saver: Any) -> None:
    body = Counter()
    key = make_unknown(saver, call())
    for _ in range(2):
        with pytest.raises(Asking) as asked:
            run(saver, call(body=body))
        question = asked.value.args[0]
        assert (question["key"], question["tool"], question["arguments"]) == (
            key,
            "send",
            {"to": "someone", "n": 1},
        )
    assert body.runs == 0
    (entry,) = saver.ledger.unknown()
    assert (entry.key, entry.state, entry.error) == (key, "unknown", "TimeoutError: slow")
    assert saver.ledger.unknown("t") == [entry]
    assert saver.ledger.unknown("other") == []


def test_a_call_of_a_dead_process_is_unknown_before_anybody_resumes(saver: Any) -> None:
    record = begin(book_of(saver, dead_owner()), call())
    assert record.state is CallState.STARTED
    (entry,) = saver.ledger.entries("t")
    assert (entry.state, entry.attempt, entry.version) == ("unknown", 1, 1)
    assert [item.key for item in saver.ledger.unknown()] == [entry.key]
    with pytest.raises(Asking):
        run(saver, call())
    (entry,) = saver.ledger.entries("t")
    assert (entry.state, entry.version) == ("unknown", 2)
    assert "left behind by process" in entry.history[-1].what


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [
        ({"on_unknown": "raise"}, UnknownOutcome),
        ({"on_unknown": "message"}, "was interrupted"),
        ({"on_unknown": "retry"}, "sent c"),
        ({"effect": "idempotent"}, "sent c"),
        ({"effect": "pure"}, "sent c"),
        ({"verify": lambda entry: Done("it arrived")}, "it arrived"),
        ({"verify": lambda entry: True}, "took effect"),
        ({"verify": lambda entry: NotDone("no trace")}, "sent c"),
        ({"verify": lambda entry: False}, "sent c"),
        ({"verify": lambda entry: None}, Asking),
    ],
    ids=plain_id,
)
def test_what_a_policy_says_about_an_unknown_call(
    file_saver: Any, policy: Any, outcome: Any
) -> None:
    make_unknown(file_saver, call())
    if isinstance(outcome, type):
        with pytest.raises(outcome):
            run(file_saver, call(**policy))
        assert file_saver.ledger.unknown()
    else:
        found = run(file_saver, call(**policy))
        assert outcome in (found if isinstance(found, str) else found.content)
        left = [entry.state for entry in file_saver.ledger.unknown()]
        assert left == (["unknown"] if policy.get("on_unknown") == "message" else [])


@pytest.mark.parametrize(
    ("given", "state", "result", "runs"),
    [
        ("succeeded", "succeeded", "A human confirmed that the call took effect.", 0),
        ({"action": "succeeded", "result": "id 7"}, "succeeded", "id 7", 0),
        ("retry", "succeeded", "sent", 1),
        ({"action": "failed", "result": "closed"}, "failed", "closed", 0),
        ("failed", "failed", "The call to send failed.", 0),
    ],
    ids=plain_id,
)
def test_what_a_human_answers(
    file_saver: Any, given: Any, state: str, result: str, runs: int
) -> None:
    body = Counter()
    make_unknown(file_saver, call())
    found = run(file_saver, call(body=body, ask=lambda question: given))
    assert result in (found if isinstance(found, str) else found.content)
    (entry,) = file_saver.ledger.entries("t")
    assert (entry.state, body.runs) == (state, runs)
    assert file_saver.ledger.unknown() == []
    again = run(file_saver, call(body=body))
    assert again == found
    assert body.runs == runs


def test_an_answer_that_cannot_be_understood_is_asked_again(file_saver: Any) -> None:
    make_unknown(file_saver, call())
    questions: list[dict[str, Any]] = []

    def ask(question: dict[str, Any]) -> Any:
        questions.append(question)
        return ["perhaps", {"action": "maybe"}, "retry"][len(questions) - 1]

    assert run(file_saver, call(ask=ask)).content == "sent c"
    assert ["problem" in question for question in questions] == [False, True, True]


@pytest.mark.parametrize(
    ("action", "extra", "state", "runs"),
    [
        ("succeeded", {"result": "id 7"}, "succeeded", 0),
        ("succeeded", {"result": answer("id 8")}, "succeeded", 0),
        ("succeeded", {}, "succeeded", 0),
        ("failed", {"result": "never mind"}, "failed", 0),
        ("failed", {"reason": "closed"}, "failed", 0),
        ("retry", {}, "failed", 1),
        ("done", {}, "succeeded", 0),
        ("not_done", {}, "failed", 1),
    ],
    ids=plain_id,
)
def test_operators_resolve_a_call_and_the_run_goes_on_with_that(
    saver: Any, action: str, extra: dict[str, Any], state: str, runs: int
) -> None:
    key, body = make_unknown(saver, call()), Counter()
    found = saver.ledger.resolve(
        key,
        action,
        by="Ada",
        reason=extra.get("reason", "x"),
        **{k: v for k, v in extra.items() if k != "reason"},
    )
    assert isinstance(found, Entry)
    assert (found.state, found.version) == (state, 3)
    assert found == saver.ledger.get(key)
    event = found.history[-1]
    assert (event.what, event.by, event.reason) == (
        {"done": "succeeded", "not_done": "retry"}.get(action, action),
        "Ada",
        extra.get("reason", "x"),
    )
    assert saver.ledger.unknown() == []
    run(saver, call(body=body))
    assert body.runs == runs
    assert saver.ledger.get(key).history[: len(found.history)] == found.history


def test_a_resolution_with_a_long_result_is_kept_whole(saver: Any) -> None:
    key = make_unknown(saver, call(arguments={"text": LONG}))
    assert saver.ledger.resolve(key, "succeeded", result=LONG).result == LONG
    assert run(saver, call(arguments={"text": LONG})) == LONG
    assert saver.ledger.get(key).arguments == {"text": LONG}


def test_the_audit_trail_grows_and_nothing_of_it_is_lost(saver: Any) -> None:
    key = make_unknown(saver, call())
    saver.ledger.resolve(key, "retry", by="Ada", reason="the log shows nothing")
    make_unknown(saver, call())
    saver.ledger.resolve(key, "succeeded", by="Bob", reason="seen in the inbox")
    trail = saver.ledger.get(key).history
    assert [(event.what, event.by, event.reason) for event in trail] == [
        ("retry", "Ada", "the log shows nothing"),
        ("attempt 2 (was failed)", "", ""),
        ("succeeded", "Bob", "seen in the inbox"),
    ]
    assert all(isinstance(event, Event) for event in trail)
    assert [event.at for event in trail] == sorted(event.at for event in trail)


def test_a_decision_about_another_version_is_refused(saver: Any) -> None:
    key = make_unknown(saver, call())
    looked = saver.ledger.get(key)
    with pytest.raises(LostOwnership, match=f"version {looked.version}, not 7"):
        saver.ledger.resolve(key, "retry", version=7)
    assert saver.ledger.get(key) == looked
    saver.ledger.resolve(key, "retry", version=looked.version)
    make_unknown(saver, call())
    with pytest.raises(LostOwnership, match="look again"):
        saver.ledger.resolve(key, "succeeded", version=looked.version)
    assert saver.ledger.get(key).state == "unknown"


def test_of_two_decisions_at_once_one_is_taken(file_saver: Any) -> None:
    key, outcomes = make_unknown(file_saver, call()), []
    barrier = threading.Barrier(2)

    def decide(action: str) -> None:
        barrier.wait()
        try:
            file_saver.ledger.resolve(key, action, by=action, version=2)
            outcomes.append(action)
        except (LostOwnership, ConfigurationError):
            outcomes.append("refused")

    threads = [threading.Thread(target=decide, args=(a,)) for a in ("succeeded", "failed")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes)[0] in ("failed", "refused")
    assert outcomes.count("refused") == 1
    entry = file_saver.ledger.get(key)
    assert entry.state == next(item for item in outcomes if item != "refused")
    assert len(entry.history) == 1


def test_only_what_is_unknown_can_be_resolved(saver: Any) -> None:
    run(saver, call(id="done"))
    with pytest.raises(ValueError):
        run(saver, call(id="failed", body=lambda current: int("x")))
    begin(book_of(saver, far_owner()), call("far", id="running"))
    for thread, state in (("t", "succeeded"), ("t", "failed"), ("far", "started")):
        entry = next(e for e in saver.ledger.entries(thread) if e.state == state)
        with pytest.raises(ConfigurationError, match=f"is {state}; only"):
            saver.ledger.resolve(entry.key, "retry")
        assert saver.ledger.get(entry.key) == entry


def test_what_cannot_be_found_or_understood_is_said_so(saver: Any) -> None:
    key = make_unknown(saver, call())
    for wrong in ("", "00", "no hex", "0" * 32, key[:-2]):
        with pytest.raises(CallNotFound):
            saver.ledger.get(wrong)
        with pytest.raises(CallNotFound):
            saver.ledger.resolve(wrong, "retry")
    with pytest.raises(ConfigurationError, match="succeeded, retry or failed"):
        saver.ledger.resolve(key, "perhaps")
    assert saver.ledger.get(key).version == 2


def test_a_call_of_a_dead_process_can_be_resolved_at_once(saver: Any) -> None:
    begin(book_of(saver, dead_owner()), call())
    (entry,) = saver.ledger.unknown()
    found = saver.ledger.resolve(entry.key, "succeeded", result="it went out", by="Ada")
    assert (found.state, found.result) == ("succeeded", "it went out")
    assert run(saver, call()) == "it went out"


def test_resolving_a_key_for_all_threads(saver: Any) -> None:
    policy = {"key": lambda args: "k", "scope": "global"}
    key = make_unknown(saver, call("t", **policy))
    assert [entry.thread_id for entry in saver.ledger.unknown()] == ["t"]
    saver.ledger.resolve(key, "succeeded", result="went out")
    assert run(saver, call("other", **policy)) == "went out"
