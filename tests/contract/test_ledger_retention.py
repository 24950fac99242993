"""Threads with recorded calls that are deleted, pruned and copied, on every backend."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from building import Thread, checkpoint_id_of, config
from calling import (
    LONG,
    Asking,
    Counter,
    answer,
    begin,
    book_of,
    call,
    make_unknown,
    run,
    settle,
)
from conftest import SEALED
from langchain_core.messages import HumanMessage

from langgraph_resilient.errors import (
    CallNotFound,
    LostOwnership,
    UnknownOutcome,
)
from langgraph_resilient.ledger import Asked
from langgraph_resilient.maintenance import verify

MORE_GUARDS = [SEALED]


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


def test_force_is_there_for_coroutines_too(file_saver: Any) -> None:
    history(file_saver)
    make_unknown(file_saver, call())

    async def main() -> None:
        with pytest.raises(UnknownOutcome):
            await file_saver.adelete_thread("t")
        with pytest.raises(UnknownOutcome):
            await file_saver.aprune(["t"], strategy="delete")
        await file_saver.aprune(["t"], strategy="delete", force=True)

    asyncio.run(main())
    assert file_saver.ledger.entries("t") == []


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
