"""The ledger on every backend and with every protection: rows, owners, operators, retention."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from building import Thread, checkpoint_id_of, config, fork, in_child, plain_id, wait
from calling import (
    Asking,
    answer,
    begin,
    book_of,
    call,
    dead_owner,
    far_owner,
    make_unknown,
    run,
    settle,
)
from conftest import BACKENDS, GUARDS, KEY, SaverFactory
from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.errors import GraphInterrupt

from langgraph_resilient.errors import (
    BusinessKeyReused,
    CallNotFound,
    ConfigurationError,
    LostOwnership,
    NotDurable,
    PreconditionFailed,
    ThreadBusy,
    UnknownOutcome,
)
from langgraph_resilient.ledger import Asked, Done, Entry, Ledger, NotDone, flights
from langgraph_resilient.ledger.decision import Decision
from langgraph_resilient.maintenance import verify
from langgraph_resilient.records import CallState, Event

EVERY = [(backend, guard) for backend in BACKENDS for guard in (*GUARDS, "sealed")]
LONG = "a long line of words that are stored once " * 300


class Factory(SaverFactory):
    def options(self) -> dict[str, Any]:
        return {"integrity_key": KEY} if self.guard == "sealed" else super().options()


@pytest.fixture(params=EVERY, ids="-".join)
def saver_factory(request: pytest.FixtureRequest, tmp_path: Path) -> Factory:
    return Factory(*request.param, tmp_path)


@pytest.fixture
def saver(saver_factory: Factory) -> Iterator[Any]:
    with saver_factory() as opened:
        yield opened


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Any]:
    """For rules that do not depend on the backend."""
    with Factory("file", "plain", tmp_path)() as opened:
        yield opened


class Counter:
    """A body that counts how often it ran."""

    def __init__(self, result: Any = "sent") -> None:
        self.result, self.runs = result, 0

    def __call__(self, current: Any) -> Any:
        self.runs += 1
        return self.result


# --- recording ------------------------------------------------------------------------------


def test_a_finished_call_gives_its_recorded_result_and_does_not_run_again(
    saver_factory: Factory,
) -> None:
    body = Counter(answer(LONG, artifact={"rows": [1, [2, 3]]}))
    with saver_factory() as saver:
        assert run(saver, call(body=body)) == body.result
        assert run(saver, call(body=body)) == body.result
        if not saver_factory.persistent:
            assert body.runs == 1
            return
    with saver_factory() as saver:
        found = run(saver, call(body=body))
        assert (found, type(found), found.artifact) == (
            body.result,
            ToolMessage,
            {"rows": [1, [2, 3]]},
        )
        assert body.runs == 1


@pytest.mark.parametrize("size", [1, 5000])
def test_arguments_and_results_of_any_size_come_back(saver: Any, size: int) -> None:
    arguments = {"text": "é" * size, "data": b"\0" * size, "nested": [{"x": [1, 2]}]}
    result = [answer("x" * size), {"y": "z" * size}]
    run(saver, call(arguments=arguments, body=Counter(result)))
    (entry,) = saver.ledger.entries("t")
    assert entry.arguments == arguments
    assert entry.result == result
    assert entry.flags == ()


def test_an_entry_says_what_happened(saver: Any) -> None:
    before = time.time()
    run(saver, call("t", "c1", tool="pay", arguments={"amount": 5}))
    (entry,) = saver.ledger.entries("t")
    assert (entry.thread_id, entry.tool, entry.state, entry.effect) == (
        "t",
        "pay",
        "succeeded",
        "external",
    )
    assert (entry.attempt, entry.version, entry.epoch) == (1, 2, 1)
    assert (entry.tool_call_id, entry.message_id, entry.parent) == ("c1", "m1", "")
    assert (entry.arguments, entry.error, entry.business_key) == ({"amount": 5}, "", None)
    assert before <= entry.started_at <= entry.ended_at <= time.time()
    assert entry.idempotency_key == entry.key
    assert len(entry.key) == 32
    assert saver.ledger.get(entry.key) == entry


def test_entries_come_in_the_order_of_their_first_beginning(saver: Any) -> None:
    ids = [f"c{n}" for n in (3, 1, 2, 9, 4)]
    for id in ids:
        run(saver, call(id=id))
    run(saver, call("other", "c0"))
    make_unknown(saver, call(id="c5"))
    run(saver, call(id="c1"))
    assert [entry.tool_call_id for entry in saver.ledger.entries("t")] == [*ids, "c5"]
    assert [entry.tool_call_id for entry in saver.ledger.entries("other")] == ["c0"]
    assert saver.ledger.entries("nobody") == []


def test_a_definite_failure_runs_again_and_its_history_is_kept(saver: Any) -> None:
    outcomes = iter([ValueError("no"), KeyError("still no"), None])

    def body(current: Any) -> Any:
        error = next(outcomes)
        if error is not None:
            raise error
        return f"attempt {current.attempt}, interrupted: {current.interrupted}"

    for error in (ValueError, KeyError):
        with pytest.raises(error):
            run(saver, call(body=body))
        (entry,) = saver.ledger.entries("t")
        assert entry.state == "failed"
        assert error.__name__ in entry.error
    assert run(saver, call(body=body)) == "attempt 3, interrupted: False"
    (entry,) = saver.ledger.entries("t")
    assert (entry.state, entry.attempt, entry.error) == ("succeeded", 3, "")
    assert [event.what for event in entry.history] == [
        "attempt 2 (was failed)",
        "attempt 3 (was failed)",
    ]


def test_a_pause_inside_is_no_failure(saver: Any) -> None:
    def body(current: Any) -> Any:
        raise GraphInterrupt(())

    with pytest.raises(GraphInterrupt):
        run(saver, call(body=body))
    (entry,) = saver.ledger.entries("t")
    assert (entry.state, entry.error) == ("suspended", "")
    assert run(saver, call()).content == "sent c"
    (entry,) = saver.ledger.entries("t")
    assert (entry.state, entry.attempt) == ("succeeded", 2)


def test_an_error_message_is_a_result_and_flagged(saver: Any) -> None:
    run(saver, call(body=Counter(answer("no such address", status="error"))))
    (entry,) = saver.ledger.entries("t")
    assert (entry.state, entry.flags) == ("succeeded", ("error",))


# --- results that cannot be stored ----------------------------------------------------------


class Handle:
    """Like an open connection: no serializer takes it."""

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle")


def test_an_artifact_that_cannot_be_stored_is_left_out_and_flagged(saver: Any) -> None:
    body = Counter(answer("sent", artifact=Handle()))
    assert run(saver, call(body=body)).artifact is body.result.artifact
    (entry,) = saver.ledger.entries("t")
    assert (entry.state, entry.flags) == ("succeeded", ("degraded",))
    assert (entry.result.content, entry.result.artifact) == ("sent", None)
    assert run(saver, call(body=body)).content == "sent"
    assert body.runs == 1


def test_a_result_that_cannot_be_stored_at_all_is_recorded_as_done(saver: Any) -> None:
    body = Counter({"connection": Handle()})
    run(saver, call(body=body))
    (entry,) = saver.ledger.entries("t")
    assert (entry.state, entry.flags) == ("succeeded", ("degraded",))
    assert "Handle" in entry.result
    run(saver, call(body=body))
    assert body.runs == 1


def test_a_degraded_result_of_a_key_for_all_threads_is_recorded_too(saver: Any) -> None:
    body = Counter(answer("sent", artifact=Handle()))
    policy = {"key": lambda args: "k", "scope": "global"}
    run(saver, call("t", body=body, **policy))
    assert run(saver, call("other", body=body, **policy)).content == "sent"
    assert body.runs == 1


def test_arguments_that_cannot_be_stored_do_not_keep_a_call_from_running(saver: Any) -> None:
    assert run(saver, call(arguments={"connection": Handle()})).content == "sent c"
    (entry,) = saver.ledger.entries("t")
    assert (entry.state, entry.arguments) == ("succeeded", None)


# --- unknown outcomes and operators ---------------------------------------------------------


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
def test_what_a_policy_says_about_an_unknown_call(plain: Any, policy: Any, outcome: Any) -> None:
    make_unknown(plain, call())
    if isinstance(outcome, type):
        with pytest.raises(outcome):
            run(plain, call(**policy))
        assert plain.ledger.unknown()
    else:
        found = run(plain, call(**policy))
        assert outcome in (found if isinstance(found, str) else found.content)
        left = [entry.state for entry in plain.ledger.unknown()]
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
def test_what_a_human_answers(plain: Any, given: Any, state: str, result: str, runs: int) -> None:
    body = Counter()
    make_unknown(plain, call())
    found = run(plain, call(body=body, ask=lambda question: given))
    assert result in (found if isinstance(found, str) else found.content)
    (entry,) = plain.ledger.entries("t")
    assert (entry.state, body.runs) == (state, runs)
    assert plain.ledger.unknown() == []
    again = run(plain, call(body=body))
    assert again == found
    assert body.runs == runs


def test_an_answer_that_cannot_be_understood_is_asked_again(plain: Any) -> None:
    make_unknown(plain, call())
    questions: list[dict[str, Any]] = []

    def ask(question: dict[str, Any]) -> Any:
        questions.append(question)
        return ["perhaps", {"action": "maybe"}, "retry"][len(questions) - 1]

    assert run(plain, call(ask=ask)).content == "sent c"
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


def test_of_two_decisions_at_once_one_is_taken(plain: Any) -> None:
    key, outcomes = make_unknown(plain, call()), []
    barrier = threading.Barrier(2)

    def decide(action: str) -> None:
        barrier.wait()
        try:
            plain.ledger.resolve(key, action, by=action, version=2)
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
    entry = plain.ledger.get(key)
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


# --- coroutines -----------------------------------------------------------------------------


def test_each_method_has_its_coroutine_with_the_same_signature() -> None:
    methods = [
        name
        for name, _ in inspect.getmembers(Ledger, inspect.isfunction)
        if not name.startswith("_") and not name.startswith("a")
    ]
    assert set(methods) == {"entries", "get", "resolve", "unknown"}
    for name in ("entries", "get", "resolve", "unknown"):
        twin = getattr(Ledger, f"a{name}")
        assert inspect.iscoroutinefunction(twin)
        assert inspect.signature(twin) == inspect.signature(getattr(Ledger, name))


def test_coroutines_say_the_same(saver: Any) -> None:
    run(saver, call(id="c1"))
    key = make_unknown(saver, call(id="c2"))

    async def main() -> Entry:
        ledger = saver.ledger
        assert await ledger.aentries("t") == ledger.entries("t")
        assert await ledger.aunknown() == await ledger.aunknown("t") == ledger.unknown()
        assert await ledger.aget(key) == ledger.get(key)
        with pytest.raises(CallNotFound):
            await ledger.aget("00")
        with pytest.raises(LostOwnership):
            await ledger.aresolve(key, "retry", version=9)
        return await ledger.aresolve(key, "failed", result="no", by="Ada", reason="x", version=2)

    entry = asyncio.run(main())
    assert (entry.state, entry.result) == ("failed", "no")
    assert entry == saver.ledger.get(key)


# --- beginning ------------------------------------------------------------------------------


def test_a_call_that_runs_here_is_joined(saver: Any) -> None:
    inside, go = threading.Event(), threading.Event()

    def body(current: Any) -> Any:
        inside.set()
        assert go.wait(20)
        return "sent once"

    results: list[Any] = []
    first = threading.Thread(target=lambda: results.append(run(saver, call(body=body))))
    first.start()
    assert inside.wait(20)
    found = saver.ledger.book.enter(call())
    assert (found.decision, found.begun, found.reason) == (Decision.WAIT, False, "call")
    second = threading.Thread(target=lambda: results.append(run(saver, call())))
    second.start()
    go.set()
    first.join()
    second.join()
    assert results == ["sent once"] * 2


def test_one_of_many_that_begin_at_once_runs(saver: Any) -> None:
    body, results, barrier = Counter(), [], threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        results.append(run(saver, call(body=body)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (results, body.runs) == (["sent"] * 8, 1)
    assert len(saver.ledger.entries("t")) == 1


@pytest.mark.parametrize("effect", ["pure", "idempotent", "external"])
def test_a_row_that_this_process_left_behind_is_no_running_call(saver: Any, effect: str) -> None:
    """A body whose end could not be stored: the same process goes on, and waits for nobody."""
    begin(saver.ledger.book, call(effect=effect))
    assert [entry.state for entry in saver.ledger.entries("t")] == ["unknown"]
    if effect == "external":
        with pytest.raises(Asking):
            run(saver, call(effect=effect))
    else:
        assert run(saver, call(effect=effect)).content == "sent c"


def test_all_who_find_a_call_that_was_left_behind_ask_about_it(saver: Any) -> None:
    """Whoever is slower to say so finds it unknown, and gets no error."""
    for n in range(6):
        begin(saver.ledger.book, call(id=f"c{n}"))
    outcomes, barrier = [], threading.Barrier(4)

    def work() -> None:
        for n in range(6):
            barrier.wait()
            try:
                run(saver, call(id=f"c{n}"))
            except Asking:
                outcomes.append("asked")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == ["asked"] * 24
    assert [entry.version for entry in saver.ledger.entries("t")] == [2] * 6


def test_a_call_that_ends_while_it_is_looked_at_is_never_shown_as_unknown(saver: Any) -> None:
    """Its row is read before its end, and whether it runs is asked after it."""
    book, seen = saver.ledger.book, []
    record = book.enter(call()).record
    with book.engine.reading() as session:
        (before,) = book.records(session, record.call, record.call)
        flights.land(book.engine.scope, record.key)
        seen.append(book.state_of(session, before))
    assert seen == [CallState.UNKNOWN]
    assert flights.take_off(book.engine.scope, record.key)
    with book.engine.reading() as session:
        (before,) = book.records(session, record.call, record.call)
        settled = threading.Thread(target=settle, args=(book, record))
        if not book.engine.db.single:
            settled.start()
            settled.join()
        else:
            settle(book, record)
        flights.land(book.engine.scope, record.key)
        assert book.state_of(session, before) is CallState.STARTED


def test_many_calls_of_one_thread_at_once_are_all_recorded(saver: Any) -> None:
    barrier = threading.Barrier(8)

    def work(n: int) -> None:
        barrier.wait()
        run(saver, call(id=f"c{n}"))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = saver.ledger.entries("t")
    assert sorted(entry.tool_call_id for entry in found) == [f"c{n}" for n in range(8)]
    assert {entry.state for entry in found} == {"succeeded"}


def test_a_precondition_is_asked_before_another_attempt_only(plain: Any) -> None:
    asked: list[int] = []

    def precondition(entry: Entry) -> bool:
        asked.append(entry.attempt)
        return len(asked) > 1

    with pytest.raises(ValueError):
        run(plain, call(body=lambda current: int("x"), precondition=precondition))
    assert asked == []
    with pytest.raises(PreconditionFailed):
        run(plain, call(precondition=precondition))
    assert plain.ledger.entries("t")[0].attempt == 1
    assert run(plain, call(precondition=precondition)).content == "sent c"
    assert run(plain, call(precondition=precondition)).content == "sent c"
    assert asked == [1, 1]


def test_an_external_call_waits_for_the_checkpoint_that_asked(saver: Any) -> None:
    asked = Asked(checkpoint_ns="", checkpoint_id="0000-not-yet")
    found = saver.ledger.book.enter(call(asked=asked))
    assert (found.decision, found.reason, found.begun) == (Decision.WAIT, "checkpoint", False)
    assert saver.ledger.entries("t") == []
    assert saver.get_tuple(config("t")) is None
    where = Thread(saver, "t").put({"x": 1})
    asked = Asked(checkpoint_ns="", checkpoint_id=checkpoint_id_of(where))
    assert run(saver, call(asked=asked)).content == "sent c"
    run(saver, call(id="c2", asked=asked))
    for effect in ("pure", "idempotent"):
        later = Asked(checkpoint_ns="", checkpoint_id="0001-not-yet")
        run(saver, call(id=effect, effect=effect, asked=later))


def test_a_checkpoint_that_never_comes_is_said_so(tmp_path: Path) -> None:
    with Factory("file", "plain", tmp_path)(barrier_wait=0.05) as saver:
        asked = Asked(checkpoint_ns="", checkpoint_id="0000-never")
        with pytest.raises(NotDurable, match="was not stored"):
            run(saver, call(asked=asked))
        assert saver.ledger.entries("t") == []


# --- owners ---------------------------------------------------------------------------------


def test_a_thread_of_another_live_process_is_waited_for_and_then_refused(tmp_path: Path) -> None:
    with Factory("file", "plain", tmp_path)(lease_wait=0.05) as saver:
        begin(book_of(saver, far_owner()), call(id="theirs"))
        body = Counter()
        with pytest.raises(ThreadBusy, match="process 7 on far"):
            run(saver, call(id="ours", body=body))
        with pytest.raises(ThreadBusy):
            run(saver, call(id="theirs", body=body))
        assert run(saver, call("other", id="ours", body=body)) == "sent"
        assert [entry.state for entry in saver.ledger.entries("t")] == ["started"]
        assert body.runs == 1


def test_a_thread_whose_owner_has_nothing_running_changes_hands_at_once(saver: Any) -> None:
    far = book_of(saver, far_owner())
    settle(far, begin(far, call(id="theirs")))
    assert run(saver, call(id="ours")).content == "sent ours"
    assert [entry.epoch for entry in saver.ledger.entries("t")] == [1, 2]


def test_a_lease_that_ran_out_elsewhere_makes_the_call_unknown(saver: Any) -> None:
    far = book_of(saver, far_owner(), clock=lambda: time.time() - 1000)
    begin(far, call())
    assert [entry.state for entry in saver.ledger.entries("t")] == ["unknown"]
    with pytest.raises(Asking):
        run(saver, call())


def test_a_renewed_lease_keeps_a_long_call(saver: Any) -> None:
    far = book_of(saver, far_owner(), clock=lambda: time.time() - 1000)
    record = begin(far, call())
    assert saver.ledger.unknown()
    book_of(saver, far_owner()).renew({record.home})
    assert saver.ledger.unknown() == []
    assert [entry.state for entry in saver.ledger.entries("t")] == ["started"]
    settle(far, record)
    assert run(saver, call()) == "done"


def test_a_zombie_with_an_old_epoch_writes_nothing(saver: Any) -> None:
    far = book_of(saver, far_owner(), clock=lambda: time.time() - 1000)
    old = begin(far, call(id="c1", effect="idempotent"))
    late = begin(far, call(id="c2", effect="idempotent"))
    assert run(saver, call(id="c1", effect="idempotent")).content == "sent c1"
    before = saver.ledger.entries("t")
    for record in (old, late):
        with pytest.raises(LostOwnership):
            settle(far, record, "from the grave")
    assert saver.ledger.entries("t") == before
    assert before[0].result.content == "sent c1"


def test_a_call_that_was_resolved_while_it_ran_stays_as_resolved(saver: Any) -> None:
    far = book_of(saver, far_owner(), clock=lambda: time.time() - 1000)
    record = begin(far, call())
    (entry,) = saver.ledger.unknown()
    saver.ledger.resolve(entry.key, "failed", result="given up", by="Ada")
    with pytest.raises(LostOwnership, match="resolved"):
        settle(far, record, "too late")
    assert saver.ledger.get(entry.key).result == "given up"


def test_a_lost_call_tells_its_key_and_tool(saver: Any) -> None:
    record = begin(saver.ledger.book, call())
    settle(saver.ledger.book, record)
    for value in ("again", LONG):
        with pytest.raises(LostOwnership) as lost:
            settle(saver.ledger.book, record, value)
        assert (lost.value.key, lost.value.tool) == (record.key.hex(), "send")


def test_an_owner_that_comes_back_to_a_thread_of_its_own_keeps_the_epoch(saver: Any) -> None:
    for n in range(3):
        run(saver, call(id=f"c{n}"))
    assert {entry.epoch for entry in saver.ledger.entries("t")} == {1}


@pytest.mark.parametrize("guard", ["plain", "cipher", "serde", "sealed"])
def test_a_killed_process_leaves_an_unknown_call_and_another_goes_on(
    tmp_path: Path, guard: str
) -> None:
    import os
    import signal

    factory = Factory("file", guard, tmp_path)
    with factory() as saver:
        run(saver, call(id="before"))

    def child() -> None:
        with factory() as saver:
            run(saver, call(id="c", body=lambda current: os.kill(os.getpid(), signal.SIGKILL)))

    assert wait(fork(child)) == -signal.SIGKILL
    with factory() as saver:
        states = {entry.tool_call_id: entry.state for entry in saver.ledger.entries("t")}
        assert states == {"before": "succeeded", "c": "unknown"}
        assert run(saver, call(id="before", body=Counter("again"))).content == "sent before"
        saver.ledger.resolve(saver.ledger.unknown()[0].key, "retry")
        assert run(saver, call(id="c")).content == "sent c"
        assert verify(saver).ok


def test_a_saver_that_is_used_by_a_forked_child_too(tmp_path: Path) -> None:
    with Factory("file", "plain", tmp_path)() as saver:
        run(saver, call(id="parent"))

        def child() -> None:
            assert run(saver, call(id="parent", body=Counter("again"))).content == "sent parent"
            assert run(saver, call(id="child")).content == "sent child"
            saver.close()

        assert in_child(child) == 0
        assert run(saver, call(id="child", body=Counter("again"))).content == "sent child"


# --- business keys --------------------------------------------------------------------------


def by_order(args: Any) -> str:
    return f"order:{args['id']}"


def test_a_business_key_makes_calls_of_different_messages_one(saver: Any) -> None:
    body = Counter("ordered")
    for id in ("c1", "c2"):
        assert run(saver, call(id=id, arguments={"id": 1}, key=by_order, body=body)) == "ordered"
    run(saver, call(id="c3", arguments={"id": 2}, key=by_order, body=body))
    run(saver, call("other", arguments={"id": 1}, key=by_order, body=body))
    assert body.runs == 3
    assert [entry.business_key for entry in saver.ledger.entries("t")] == ["order:1", "order:2"]


def test_a_global_business_key_makes_calls_of_all_threads_one(saver: Any) -> None:
    body, policy = Counter(answer(LONG)), {"key": by_order, "scope": "global"}
    for thread in ("t", "other", "third"):
        found = run(saver, call(thread, arguments={"id": 1}, body=body, **policy))
        assert found.content == LONG
    assert body.runs == 1
    assert [entry.thread_id for entry in saver.ledger.entries("t")] == ["t"]
    assert saver.ledger.entries("other") == []


def test_a_global_call_outlives_the_thread_it_was_made_in(saver: Any) -> None:
    body, policy = Counter(answer(LONG)), {"key": by_order, "scope": "global"}
    run(saver, call("t", arguments={"id": 1}, body=body, **policy))
    saver.delete_thread("t")
    assert run(saver, call("other", arguments={"id": 1}, body=body, **policy)).content == LONG
    assert body.runs == 1
    assert verify(saver).ok


@pytest.mark.parametrize("scope", ["thread", "global"])
def test_a_business_key_with_other_arguments_is_an_error(saver: Any, scope: str) -> None:
    policy = {"key": lambda args: "k", "scope": scope}
    run(saver, call(arguments={"id": 1}, **policy))
    body = Counter()
    with pytest.raises(BusinessKeyReused, match="'k' was used before") as refused:
        run(saver, call(arguments={"id": 2}, body=body, **policy))
    assert (body.runs, refused.value.tool) == (0, "send")
    assert saver.ledger.get(refused.value.key).arguments == {"id": 1}


# --- retention ------------------------------------------------------------------------------


def history(saver: Any, thread: str = "t") -> Thread:
    made = Thread(saver, thread)
    for n in range(3):
        made.put({"messages": [HumanMessage(f"{k} {LONG}", id=f"{k}") for k in range(n + 1)]})
    return made


def test_a_thread_with_an_unknown_call_is_deleted_by_force_only(saver: Any) -> None:
    history(saver)
    key = make_unknown(saver, call())
    for delete in (saver.delete_thread, lambda name: saver.prune([name], strategy="delete")):
        with pytest.raises(UnknownOutcome, match=key):
            delete("t")
        assert len(list(saver.list(config("t")))) == 3
        assert saver.ledger.unknown()
    saver.delete_thread("t", force=True)
    assert saver.get_tuple(config("t")) is None
    assert saver.ledger.entries("t") == saver.ledger.unknown() == []
    with pytest.raises(CallNotFound):
        saver.ledger.get(key)
    assert verify(saver).ok


def test_prune_deletes_by_force_too_and_all_or_none_of_the_threads(saver: Any) -> None:
    for name in ("t", "other"):
        history(saver, name)
    make_unknown(saver, call())
    with pytest.raises(UnknownOutcome):
        saver.prune(["other", "t"], strategy="delete")
    assert len(list(saver.list(None))) == 6
    saver.prune(["other", "t"], strategy="delete", force=True)
    assert list(saver.list(None)) == []
    assert saver.ledger.unknown() == []


def test_force_is_there_for_coroutines_too(plain: Any) -> None:
    history(plain)
    make_unknown(plain, call())

    async def main() -> None:
        with pytest.raises(UnknownOutcome):
            await plain.adelete_thread("t")
        with pytest.raises(UnknownOutcome):
            await plain.aprune(["t"], strategy="delete")
        await plain.aprune(["t"], strategy="delete", force=True)

    asyncio.run(main())
    assert plain.ledger.entries("t") == []


def test_a_thread_whose_calls_are_all_known_is_deleted_with_them(saver: Any) -> None:
    history(saver)
    run(saver, call(arguments={"text": LONG}, body=Counter(answer(LONG))))
    saver.delete_thread("t")
    assert saver.ledger.entries("t") == []
    body = Counter()
    run(saver, call(arguments={"text": LONG}, body=body))
    assert body.runs == 1  # nothing of the old thread answers for the new one
    assert verify(saver).ok


def test_pruning_keeps_every_recorded_result_readable(saver: Any) -> None:
    history(saver)
    result = answer(f"result {LONG}", artifact={"picture": b"\1" * 9000})
    body = Counter(result)
    arguments = {"text": f"arguments {LONG}"}
    run(saver, call(arguments=arguments, body=body))
    make_unknown(saver, call(id="lost", arguments=arguments))
    saver.prune(["t"])
    assert len(list(saver.list(config("t")))) == 1
    assert run(saver, call(arguments=arguments, body=body)) == result
    assert body.runs == 1
    assert [entry.arguments for entry in saver.ledger.entries("t")] == [arguments] * 2
    report = verify(saver)
    assert report.ok, report.findings


def test_a_copy_does_not_run_the_calls_of_its_source_again(saver: Any) -> None:
    history(saver)
    body = Counter(answer(LONG))
    run(saver, call(id="done", arguments={"text": LONG}, body=body))
    parent = bytes.fromhex(saver.ledger.entries("t")[0].key)
    run(saver, call(id="inner", parent=parent, body=body))
    make_unknown(saver, call(id="lost"))
    saver.copy_thread("t", "copy")
    copied = saver.ledger.entries("copy")
    assert [(entry.tool_call_id, entry.state) for entry in copied] == [
        ("done", "succeeded"),
        ("inner", "succeeded"),
        ("lost", "unknown"),
    ]
    assert not {entry.key for entry in copied} & {entry.key for entry in saver.ledger.entries("t")}
    found = run(saver, call("copy", "done", arguments={"text": LONG}, body=body))
    assert found.content == LONG
    above = bytes.fromhex(copied[0].key)
    assert run(saver, call("copy", "inner", parent=above, body=body)).content == LONG
    assert body.runs == 2
    with pytest.raises(Asking):
        run(saver, call("copy", "lost", body=body))
    saver.delete_thread("t", force=True)
    assert saver.ledger.entries("copy")[0].arguments == {"text": LONG}
    report = verify(saver)
    assert report.ok, report.findings


def test_a_copy_follows_inner_calls_whatever_the_clock_said(saver: Any) -> None:
    """A clock that was set back must not part an inner call from the call around it."""
    history(saver)
    run(saver, call(id="outer"))
    parent = bytes.fromhex(saver.ledger.entries("t")[0].key)
    earlier = book_of(saver, saver.ledger.book._owner(), clock=lambda: time.time() - 9000)
    settle(earlier, begin(earlier, call(id="inner", parent=parent)))
    saver.copy_thread("t", "copy")
    entries = {entry.tool_call_id: entry for entry in saver.ledger.entries("copy")}
    assert entries["inner"].parent == entries["outer"].key
    body = Counter()
    above = bytes.fromhex(entries["outer"].key)
    assert run(saver, call("copy", "inner", parent=above, body=body)) == "done"
    assert body.runs == 0


def test_a_call_that_is_in_the_copy_already_is_not_there_twice(saver: Any) -> None:
    run(saver, call())
    saver.copy_thread("t", "copy")
    saver.copy_thread("t", "copy")  # no checkpoints, so nothing stands against it
    assert len(saver.ledger.entries("copy")) == 1
    assert verify(saver).ok


def test_a_call_that_runs_while_its_thread_is_copied_is_unknown_in_the_copy(saver: Any) -> None:
    """The copy has no process that runs it; its own decision is asked for."""
    history(saver)

    def body(current: Any) -> Any:
        saver.copy_thread("t", "copy")
        return "sent"

    assert run(saver, call(body=body)) == "sent"
    assert [entry.state for entry in saver.ledger.entries("copy")] == ["unknown"]
    assert [entry.state for entry in saver.ledger.entries("t")] == ["succeeded"]


@pytest.mark.parametrize("result", ["short", LONG])
def test_a_late_settle_does_not_bring_a_deleted_thread_back(saver: Any, result: str) -> None:
    history(saver)

    def body(current: Any) -> Any:
        saver.delete_thread("t")
        return result

    with pytest.raises(LostOwnership, match="deleted"):
        run(saver, call(body=body))
    assert saver.ledger.entries("t") == []
    assert saver.get_tuple(config("t")) is None
    with saver._engine.reading() as session:
        assert session.all("threads_all") == []
    assert verify(saver).ok


def test_a_call_of_a_thread_that_was_deleted_while_it_ran_does_not_start(saver: Any) -> None:
    where = history(saver).where
    asked = Asked(checkpoint_ns="", checkpoint_id=checkpoint_id_of(where))
    saver.delete_thread("t")
    body = Counter()
    with pytest.raises(LostOwnership, match="did not start"):
        run(saver, call(asked=asked, body=body))
    assert body.runs == 0
    assert saver.ledger.entries("t") == []
    with saver._engine.reading() as session:
        assert session.all("threads_all") == []


def test_calls_go_on_after_other_threads_contents_were_deleted(saver: Any) -> None:
    """References are only believed within an epoch; a deletion between begin and end is noticed."""
    history(saver, "other")

    def body(current: Any) -> Any:
        saver.delete_thread("other")
        return answer(LONG)

    run(saver, call(arguments={"text": LONG}, body=body))
    (entry,) = saver.ledger.entries("t")
    assert (entry.arguments, entry.result.content) == ({"text": LONG}, LONG)
    report = verify(saver)
    assert report.ok, report.findings


def test_recording_calls_makes_no_checkpoint(saver: Any) -> None:
    run(saver, call())
    assert list(saver.list(None)) == []
    assert saver.get_tuple(config("t")) is None
    where = Thread(saver, "t").put({"x": 1})
    assert saver.get_tuple(where).checkpoint["channel_values"] == {"x": 1}
    assert len(saver.ledger.entries("t")) == 1
