"""The ledger on every backend and with every protection: what is recorded, and under which key."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import Any

import pytest
from calling import (
    LONG,
    Counter,
    answer,
    call,
    make_unknown,
    run,
)
from conftest import SEALED, SaverFactory
from langchain_core.messages import ToolMessage
from langgraph.errors import GraphInterrupt

from langgraph_resilient.errors import (
    BusinessKeyReused,
    CallNotFound,
    LostOwnership,
)
from langgraph_resilient.ledger import Entry, Ledger
from langgraph_resilient.maintenance import verify

MORE_GUARDS = [SEALED]


# --- recording ------------------------------------------------------------------------------


def test_a_finished_call_gives_its_recorded_result_and_does_not_run_again(
    saver_factory: SaverFactory,
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
