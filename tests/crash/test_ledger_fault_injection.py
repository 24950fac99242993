"""A failure at every statement that changes the ledger, or a file's schema: all of it or nothing."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from calling import answer, book_of, call, far_owner, make_unknown, run
from campaign import assert_sound
from conftest import KEY, make_cipher
from golden.make import GUARDS as GOLDEN
from golden.make import HERE
from test_fault_injection import FAULTS, Fault, FaultyConnection, history

from langgraph_resilient import ResilientSaver
from langgraph_resilient.errors import ResilientError, StorageError
from langgraph_resilient.ledger import Book, flights
from langgraph_resilient.ledger.owner import this_process
from langgraph_resilient.maintenance import verify
from langgraph_resilient.records import CallState


@pytest.mark.parametrize("guard", ["plain", "cipher", "keyed"])
def test_bringing_an_older_file_to_the_newest_schema_can_fail_anywhere(
    tmp_path: Path, guard: str
) -> None:
    path = tmp_path / "agent.db"
    shutil.copy(HERE / "v1" / f"{guard}.bin", path)
    for n in itertools.count(1):
        conn = sqlite3.connect(path, check_same_thread=False, factory=FaultyConnection)
        conn.fault, conn.countdown = FAULTS["io"], n
        saver = ResilientSaver(conn, **GOLDEN[guard])
        try:
            saver.setup()
            ended = conn.countdown is not None
        except ResilientError:
            ended = False
        conn.countdown = None
        conn.close()
        if ended:
            break
    assert n > 5
    with ResilientSaver.from_conn_string(path, **GOLDEN[guard]) as saver:
        run(saver, call("chat"))
        assert_sound(saver, str(path))


# --- the ledger -----------------------------------------------------------------------------

LONG = "long " * 2000
Step = Callable[[], Any]


def ledger_state(saver: ResilientSaver) -> Any:
    """All that the ledger holds: calls, and who runs them until when."""
    entries = [
        (e.key, e.thread_id, e.state, e.version, e.attempt, e.epoch, e.arguments, str(e.result))
        for e in saver.ledger.entries()
    ]
    trail = [[(event.what, event.by) for event in e.history] for e in saver.ledger.entries()]
    with saver._engine.reading() as session:
        leases = session.raw("SELECT thread, epoch, expires FROM resilient_leases")
        threads = [row[1] for row in session.all("threads_all")]
    return entries, trail, leases, threads


def begun(book: Book, invocation: Any, **more: Any) -> Any:
    """Begin a call; nothing flies when that failed."""
    entered = book.enter(invocation, **more)
    assert entered.begun
    flights.land(book.engine.scope, entered.record.key)
    return entered.record


def ledger_steps(saver: ResilientSaver) -> Iterator[tuple[str, Step]]:
    """Each way a row of the ledger is written; what a step needs is made right before it."""

    def book(clock: float = 1000.0, owner: Any = None) -> Book:
        return book_of(saver, owner or this_process(), clock=lambda: clock)

    mine, far = book(), far_owner()
    everywhere = {"key": lambda args: "k", "scope": "global"}
    history(saver)
    yield "first of a new thread", lambda: begun(mine, call("new", "c1"))
    yield "first of a thread", lambda: begun(mine, call("t0", "c1"))
    yield "another one", lambda: begun(mine, call("t0", "c2"))
    yield "one with long arguments", lambda: begun(mine, call("t0", "c3", arguments={"x": LONG}))
    for name, value in (("short", "done"), ("long", answer(LONG))):
        record = begun(mine, call("t1", name))
        settled = partial(mine.settle, record, CallState.SUCCEEDED, {"result": value})
        yield f"settle {name}", settled
    record = begun(mine, call("t1", "failing"))
    yield "settle failed", partial(mine.settle, record, CallState.FAILED, {"error": "no"})
    yield "another attempt", lambda: begun(mine, call("t1", "failing"))
    for action, value in (("succeeded", LONG), ("failed", "no"), ("retry", None)):
        key = make_unknown(saver, call("t1", action))
        yield f"resolve {action}", partial(saver.ledger.resolve, key, action, result=value)
    number = begun(mine, call("t1", "running")).home
    yield "renew", lambda: book(2000.0).renew({number})
    begun(book(owner=far), call("t2", "theirs"))
    yield "take over", lambda: begun(book(9000.0), call("t2", "ours"))
    yield "begin everywhere", lambda: begun(mine, call("t2", "e1", **everywhere))
    record = begun(mine, call("t2", "e2", **{**everywhere, "key": lambda args: "k2"}))
    settled = partial(mine.settle, record, CallState.SUCCEEDED, {"result": LONG})
    yield "settle everywhere", settled
    yield "copy", lambda: saver.copy_thread("t1", "copied")
    yield "delete", lambda: saver.delete_thread("t1", force=True)


def ledger_sweep(saver: ResilientSaver, conn: FaultyConnection, step: Step, fault: Fault) -> int:
    """Fail at each statement in turn until the step is done; how many there were."""
    before = ledger_state(saver)
    for n in itertools.count(1):
        assert n < 2000
        conn.fault, conn.countdown = fault, n
        try:
            step()
            ended = conn.countdown is not None
        except (StorageError, KeyboardInterrupt):
            ended = False
        except sqlite3.Error as error:
            raise AssertionError(f"statement {n}: {error!r} is not translated") from error
        finally:
            conn.countdown = None
        now = ledger_state(saver)
        if ended:
            assert now != before
            return n - 1
        if now != before:  # done, and something failed after it: never half of it
            assert verify(saver).ok
            return n
    raise AssertionError


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("guard", ["plain", "cipher", "sealed"])
def test_every_change_of_the_ledger_is_all_or_nothing(
    tmp_path: Path, guard: str, fault: str
) -> None:
    options: dict[str, Any] = {
        "plain": {},
        "cipher": {"cipher": make_cipher()},
        "sealed": {"integrity_key": KEY},
    }[guard]
    path = str(tmp_path / "agent.db")
    conn = sqlite3.connect(path, check_same_thread=False, factory=FaultyConnection)
    saver = ResilientSaver(conn, **options)
    counts = {
        name: ledger_sweep(saver, conn, step, FAULTS[fault]) for name, step in ledger_steps(saver)
    }
    assert min(counts.values()) >= 2, counts
    assert_sound(saver, path)
    final = ledger_state(saver)
    saver.close()
    conn.close()
    with ResilientSaver.from_conn_string(path, **options) as other:
        assert ledger_state(other) == final
