"""A failure at every statement of every operation: the state before it or after it, never between.

The faults come through the seam that users have as well: their own ``sqlite3.Connection``. An
operation is tried with the first statement failing, then the second, and so on until it ends
without a fault. After each failure the state must be the one before or the one after, and the
saver must go on working.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from building import Thread, config, facts
from campaign import (
    ALL_NAMES,
    Operation,
    assert_sound,
    legacy_operations,
    touched,
    visible,
)
from conftest import KEY, make_cipher, tried_now
from journaling import ROOT, TASK, answered, begun, new_run, request, show, spot
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_resilient import ResilientSaver
from langgraph_resilient.errors import ResilientError, StorageError
from langgraph_resilient.store.quick import Waiting
from langgraph_resilient.stream import StreamBuffer

Fault = Callable[[], BaseException]
FAULTS: dict[str, Fault] = {
    "io": lambda: sqlite3.OperationalError("disk I/O error"),
    "full": lambda: sqlite3.OperationalError("database or disk is full"),
    "interrupt": lambda: KeyboardInterrupt("injected"),
}


class FaultyCursor(sqlite3.Cursor):
    def execute(self, *arguments: Any) -> Any:
        self.connection.step()
        return super().execute(*arguments)

    def executemany(self, *arguments: Any) -> Any:
        self.connection.step()
        return super().executemany(*arguments)

    def executescript(self, *arguments: Any) -> Any:
        self.connection.step()
        return super().executescript(*arguments)


class FaultyConnection(sqlite3.Connection):
    """Raises once, at the statement it is armed for; rolling back never fails."""

    countdown: int | None = None
    fault: Fault = FAULTS["io"]

    def step(self) -> None:
        if self.countdown is None:
            return
        self.countdown -= 1
        if self.countdown == 0:
            self.countdown = None
            raise self.fault()

    def cursor(self, factory: Any = FaultyCursor) -> Any:
        return super().cursor(factory)

    def execute(self, sql: str, *arguments: Any) -> Any:
        if sql.upper().startswith("ROLLBACK"):
            return super().cursor().execute(sql, *arguments)
        return self.cursor().execute(sql, *arguments)

    def executemany(self, *arguments: Any) -> Any:
        return self.cursor().executemany(*arguments)

    def executescript(self, *arguments: Any) -> Any:
        return self.cursor().executescript(*arguments)

    def commit(self) -> None:
        self.step()
        super().commit()


def history(saver: ResilientSaver) -> dict[str, Thread]:
    """Three threads with some messages, writes and a value they share."""
    threads = {}
    for name in ("t0", "t1", "t2"):
        thread = threads[name] = Thread(saver, name)
        for n in range(4):
            messages = [HumanMessage(f"{name} {k}", id=f"{name}{k}") for k in range(n + 1)]
            changed = {"messages": messages, "shared": "shared " * 900, "n": n}
            where = thread.put(changed, metadata={"run_id": f"r{n}"}, id=f"{n:04}")
            saver.put_writes(where, [("n", n), ("messages", messages)], f"task{n}", "~")
    return threads


def operations(threads: dict[str, Thread]) -> Iterator[tuple[str, Operation]]:
    """One of each kind, with new values, new threads and large leaves among them."""
    thread = threads["t0"]
    changed = {
        "messages": [*thread.values["messages"], HumanMessage("new " * 300, id="new")],
        "files": {f"f{n}": f"content {n} " * 200 for n in range(8)},
        "image": bytes(range(256)) * 40,
    }
    where = thread.where
    yield "put", Operation("put", thread.prepare(changed, {"run_id": "r9"}, "0009"))
    first = Thread(None, "u0")  # type: ignore[arg-type]
    yield "first put", Operation("put", first.prepare({"n": 1, "text": "x" * 5000}, None, "0001"))
    writes = [("n", 7), ("messages", [HumanMessage("w " * 500, id="w")]), ("__error__", "e")]
    yield "put_writes", Operation("put_writes", (where, writes, "task9", "~9"))
    special = [("__interrupt__", "again")]
    yield "special", Operation("put_writes", (where, special, "task1", "~"))
    yield "early", Operation("put_writes", (config("u0", "0002"), writes, "task1", "~"))
    yield "copy", Operation("copy_thread", ("t1", "u1"))
    yield "prune", Operation("prune", (["t0", "t1"],))
    yield "purge", Operation("delete_thread", ("t1",))
    yield "runs", Operation("delete_for_runs", (["r1", "r3"],))
    yield "wipe", Operation("delete_thread", ("t2",))


def attempt(
    saver: ResilientSaver,
    conn: FaultyConnection,
    operation: Operation | Callable[[], Any],
    n: int,
    fault: Fault,
) -> bool:
    """Try the operation with its ``n``-th statement failing; whether it came to its end."""
    conn.fault, conn.countdown = fault, n
    try:
        if isinstance(operation, Operation):
            operation.apply(saver)
        else:
            operation()
        return conn.countdown is not None
    except KeyboardInterrupt:
        return False
    except sqlite3.Error as error:
        raise AssertionError(f"statement {n}: {error!r} is not translated") from error
    except StorageError:
        return False
    finally:
        conn.countdown = None


def sweep(
    saver: ResilientSaver, conn: FaultyConnection, name: str, operation: Operation, fault: Fault
) -> int:
    """Fail at each statement in turn; the number of statements."""
    before = visible(saver)
    names = {*before, *touched(operation)}
    seen = {thread: [before.get(thread)] for thread in names}
    for n in itertools.count(1):
        assert n < 2000, f"{name} never ends"
        ended = attempt(saver, conn, operation, n, fault)
        now = visible(saver)
        for thread in names:
            if now.get(thread) not in seen[thread]:
                seen[thread].append(now.get(thread))
            assert len(seen[thread]) <= 2, f"{name}: statement {n} left {thread} half done"
        if ended:
            assert {thread: states[-1] for thread, states in seen.items()} == {
                thread: now.get(thread) for thread in names
            }
            return n - 1
    raise AssertionError


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("guard", tried_now(["plain", "cipher", "sealed"], "plain", "cipher"))
def test_every_operation_is_all_or_nothing(tmp_path: Path, guard: str, fault: str) -> None:
    options: dict[str, Any] = {
        "plain": {},
        "cipher": {"cipher": make_cipher()},
        "sealed": {"integrity_key": KEY},
    }[guard]
    path = str(tmp_path / "agent.db")
    conn = sqlite3.connect(path, check_same_thread=False, factory=FaultyConnection)
    saver = ResilientSaver(conn, **options)
    counts = {}
    for name, operation in list(operations(history(saver))):
        counts[name] = sweep(saver, conn, name, operation, FAULTS[fault])
    assert min(counts.values()) >= 1, counts
    final = visible(saver)
    assert_sound(saver, path)
    saver.close()
    conn.close()
    with ResilientSaver.from_conn_string(path, **options) as other:
        assert visible(other) == final


# --- model calls ------------------------------------------------------------------------------


def journal_of(saver: ResilientSaver) -> dict[str, list[Any]]:
    """What can be seen of the model calls: their states, what is recorded, what was shown."""
    return {
        thread_id: [
            *(
                (call.state, call.error, call.drift, call.answer and call.answer.text)
                for call in saver.journal(thread_id)
            ),
            [piece.text for piece in saver.stream(thread_id)],
        ]
        for thread_id in ("t", "u")
    }


def model_call_steps(saver: ResilientSaver) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Everything that happens to a model call, in its order."""
    book, long = saver.journal.book, "a long answer " * 300
    thread = Thread(saver)
    where = thread.put({"x": 1}, id=ROOT)
    made: list[Any] = []

    def begins() -> None:
        made[:] = [book.begin(spot(), request(long, temperature=0.5))]

    def reopens() -> None:
        new_run(saver)
        made[:] = [book.reopen(spot(task="again"), made[0], {"temperature": [0.5, 0.9]})]

    yield "begin", begins
    buffer = StreamBuffer(book.engine, made[0], book.reading())
    for n in range(64):  # the last one folds the others
        yield f"chunk {n}", lambda n=n: buffer.text(f"w{n} ")
    yield "interrupt", lambda: book.interrupt(made[0])
    new_run(saver)
    made[:] = [book.match(spot(), request(long, temperature=0.5)).record]
    yield "reopen", reopens
    yield "reset", lambda: StreamBuffer(book.engine, made[0], book.reading(), 64).reset()
    yield "end", lambda: book.end(made[0], AIMessage(long, id="a"), streamed=True)
    yield "copy", lambda: saver.copy_thread("t", "u")
    yield "retire by writes", lambda: saver.put_writes(where, [("x", 2)], "again")
    put = Thread(saver, "u").prepare({"x": long}, None, "0009")
    yield "retire by a checkpoint", lambda: saver.put(*put)
    failing = begun(saver, "fails")
    show(saver, failing, ["a", "b"])
    yield "fail", lambda: book.fail(failing, ValueError("no"))
    answered(saver, "chokes")
    error = [("__error__", ValueError("no"))]
    yield "discard", lambda: saver.put_writes(where, error, TASK)
    yield "prune", lambda: saver.prune(["t"])
    yield "purge", lambda: saver.delete_thread("t")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("guard", ["plain", "cipher", "sealed"])
def test_every_step_of_a_model_call_is_all_or_nothing(
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
    counts = {}
    for name, step in model_call_steps(saver):
        seen = [(visible(saver, ("t", "u")), journal_of(saver))]
        for n in itertools.count(1):
            assert n < 500, f"{name} never ends"
            ended = attempt(saver, conn, step, n, FAULTS[fault])
            now = (visible(saver, ("t", "u")), journal_of(saver))
            if now not in seen:
                seen.append(now)
            assert len(seen) <= 2, f"{name}: statement {n} left something half done"
            if ended:
                break
        counts[name] = n - 1
    assert min(counts.values()) >= 1, counts
    final = journal_of(saver)
    assert_sound(saver, path)
    saver.close()
    conn.close()
    with ResilientSaver.from_conn_string(path, **options) as other:
        assert journal_of(other) == final


def test_an_interrupted_commit_says_so_to_all_who_shared_it(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.db")
    conn = sqlite3.connect(path, check_same_thread=False, factory=FaultyConnection)
    saver = ResilientSaver(conn)
    quick = saver._engine.quick
    other = Waiting([("chunks_delete", (1, 1))])
    saver.setup()
    quick._queue.append(other)
    conn.fault, conn.countdown = FAULTS["interrupt"], 2
    with pytest.raises(KeyboardInterrupt):
        quick.write([("chunks_delete", (2, 2))])
    assert other.done
    assert isinstance(other.error, StorageError)
    assert not conn.in_transaction
    quick.write([("chunks_delete", (2, 2))])
    saver.close()
    conn.close()


# --- whole files ------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["io", "interrupt"])
def test_setting_up_a_new_file_can_fail_anywhere(tmp_path: Path, fault: str) -> None:
    path = str(tmp_path / "agent.db")
    for n in itertools.count(1):
        conn = sqlite3.connect(path, check_same_thread=False, factory=FaultyConnection)
        conn.fault, conn.countdown = FAULTS[fault], n
        try:
            saver = ResilientSaver(conn)
            saver.setup()
            ended = conn.countdown is not None
        except (ResilientError, KeyboardInterrupt):
            ended = False
        finally:
            conn.countdown = None
            conn.close()
        if ended:
            break
    with ResilientSaver.from_conn_string(path) as saver:
        where = Thread(saver).put({"x": 1})
        assert saver.get_tuple(where).checkpoint["channel_values"] == {"x": 1}
        assert_sound(saver, path)


def test_the_first_write_to_an_old_thread_can_fail_anywhere(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.db")
    with SqliteSaver.from_conn_string(path) as old:
        for operation in legacy_operations():
            operation.apply(old)
    conn = sqlite3.connect(path, check_same_thread=False, factory=FaultyConnection)
    saver = ResilientSaver(conn)
    for name in ("old0", "old1"):
        thread = Thread(saver, name)
        thread.where = saver.get_tuple(config(name)).config
        thread.step = 3
        put = Operation("put", thread.prepare({"n": 9}, None, "1-new"))
        assert sweep(saver, conn, f"put {name}", put, FAULTS["io"]) >= 1
    assert_sound(saver, path)
    saver.close()
    conn.close()


def test_migrate_can_fail_anywhere(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.db")
    with SqliteSaver.from_conn_string(path) as old:
        for operation in legacy_operations():
            operation.apply(old)
    conn = sqlite3.connect(path, check_same_thread=False, factory=FaultyConnection)
    saver = ResilientSaver(conn)
    before = visible(saver)
    for fault in ("io", "interrupt"):
        sweep(saver, conn, "migrate", Operation("migrate", ()), FAULTS[fault])
        assert visible(saver) == before
    assert_sound(saver, path)
    saver.close()
    conn.close()


def test_reading_can_fail_anywhere_and_works_again(tmp_path: Path) -> None:
    conn = sqlite3.connect(
        str(tmp_path / "agent.db"), check_same_thread=False, factory=FaultyConnection
    )
    saver = ResilientSaver(conn)
    history(saver)
    reads: list[Callable[[], Any]] = [
        lambda: facts(saver.get_tuple(config("t0"))),
        lambda: [facts(item) for item in saver.list(None)],
        lambda: [facts(item) for item in saver.list(None, filter={"run_id": "r1"})],
        lambda: saver.get_delta_channel_history(config=config("t0"), channels=["n"]),
    ]
    for read in reads:
        whole = read()
        for n in itertools.count(1):
            conn.fault, conn.countdown = FAULTS["io"], n
            try:
                read()
                ended = conn.countdown is not None
            except StorageError:
                ended = False
            finally:
                conn.countdown = None
            assert read() == whole
            if ended:
                break
    saver.close()
    conn.close()


@pytest.mark.parametrize("target", ["file", "connection"])
def test_an_operation_interrupted_inside_a_statement(tmp_path: Path, target: str) -> None:
    """SQLite's own interruption, after 1, 2, 4, … steps of its virtual machine."""
    path = str(tmp_path / "agent.db")
    conn = sqlite3.connect(path, check_same_thread=False)
    opened = ResilientSaver(conn) if target == "connection" else None
    if opened is None:
        conn.close()
    with opened or ResilientSaver.from_conn_string(path) as saver:
        for _, operation in list(operations(history(saver))):
            seen = {name: [state] for name, state in threads_of(saver).items()}
            for power in itertools.count():
                saver.conn.set_progress_handler(lambda: 1, 2**power)
                try:
                    operation.apply(saver)
                    ended = True
                except StorageError:
                    ended = False
                finally:
                    saver.conn.set_progress_handler(None, 0)
                for name, state in threads_of(saver).items():
                    if state not in seen[name]:
                        seen[name].append(state)
                    assert len(seen[name]) <= 2, (operation.name, name, 2**power)
                if ended:
                    break
        assert_sound(saver, path)


@pytest.mark.parametrize(
    "denied", [sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE]
)
def test_a_denied_statement_leaves_nothing_half_done(tmp_path: Path, denied: int) -> None:
    conn = sqlite3.connect(str(tmp_path / "agent.db"), check_same_thread=False)
    saver = ResilientSaver(conn)
    everything = list(operations(history(saver)))
    before = visible(saver)
    for name, operation in everything:
        conn.set_authorizer(
            lambda action, *_: sqlite3.SQLITE_DENY if action == denied else sqlite3.SQLITE_OK
        )
        try:
            operation.apply(saver)
        except StorageError:
            assert visible_now(conn, saver) == before, name
        else:
            conn.set_authorizer(lambda *_: sqlite3.SQLITE_OK)  # None allows all from 3.11 on
            before = visible(saver)
    assert_sound(saver, str(tmp_path / "agent.db"))
    saver.close()
    conn.close()


def threads_of(saver: ResilientSaver) -> dict[str, list[dict] | None]:
    """Each thread's state, None for one that is not there."""
    return dict.fromkeys(ALL_NAMES) | visible(saver)


def visible_now(conn: sqlite3.Connection, saver: ResilientSaver) -> dict:
    conn.set_authorizer(lambda *_: sqlite3.SQLITE_OK)  # None allows all from 3.11 on
    return visible(saver)
