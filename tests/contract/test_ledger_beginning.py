"""Who may begin a call, and whose it is, on every backend: joined calls, owners, zombies."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from building import Thread, checkpoint_id_of, config, fork, in_child, wait
from calling import (
    LONG,
    Asking,
    Counter,
    begin,
    book_of,
    call,
    far_owner,
    run,
    settle,
)
from conftest import SEALED, SaverFactory

from langgraph_resilient.errors import (
    LostOwnership,
    NotDurable,
    PreconditionFailed,
    ThreadBusy,
)
from langgraph_resilient.ledger import Asked, Entry, flights
from langgraph_resilient.ledger.decision import Decision
from langgraph_resilient.maintenance import verify
from langgraph_resilient.records import CallState

MORE_GUARDS = [SEALED]


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


def test_a_precondition_is_asked_before_another_attempt_only(file_saver: Any) -> None:
    asked: list[int] = []

    def precondition(entry: Entry) -> bool:
        asked.append(entry.attempt)
        return len(asked) > 1

    with pytest.raises(ValueError):
        run(file_saver, call(body=lambda current: int("x"), precondition=precondition))
    assert asked == []
    with pytest.raises(PreconditionFailed):
        run(file_saver, call(precondition=precondition))
    assert file_saver.ledger.entries("t")[0].attempt == 1
    assert run(file_saver, call(precondition=precondition)).content == "sent c"
    assert run(file_saver, call(precondition=precondition)).content == "sent c"
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
    with SaverFactory("file", "plain", tmp_path)(barrier_wait=0.05) as saver:
        asked = Asked(checkpoint_ns="", checkpoint_id="0000-never")
        with pytest.raises(NotDurable, match="was not stored"):
            run(saver, call(asked=asked))
        assert saver.ledger.entries("t") == []


# --- owners ---------------------------------------------------------------------------------


def test_a_thread_of_another_live_process_is_waited_for_and_then_refused(tmp_path: Path) -> None:
    with SaverFactory("file", "plain", tmp_path)(lease_wait=0.05) as saver:
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

    factory = SaverFactory("file", guard, tmp_path)
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
    with SaverFactory("file", "plain", tmp_path)() as saver:
        run(saver, call(id="parent"))

        def child() -> None:
            assert run(saver, call(id="parent", body=Counter("again"))).content == "sent parent"
            assert run(saver, call(id="child")).content == "sent child"
            saver.close()

        assert in_child(child) == 0
        assert run(saver, call(id="child", body=Counter("again"))).content == "sent child"
