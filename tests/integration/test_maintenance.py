"""Counting, verifying, migrating and exporting real files."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from building import Thread, checkpoint, config, facts, fork, kill
from conftest import make_cipher
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from langgraph_resilient import ResilientSaver
from langgraph_resilient.errors import ConfigurationError, StorageError
from langgraph_resilient.maintenance import export, migrate, stats, threads, verify
from langgraph_resilient.store.migrate import newest

TABLES = ("threads", "namespaces", "checkpoints", "writes", "blobs", "templates")


def sql(path: Path, text: str, *values: Any) -> list[tuple]:
    with closing(sqlite3.connect(path)) as conn:
        rows = conn.execute(text, values).fetchall()
        conn.commit()
        return rows


def folded(current: list | None, batches: Any) -> list:
    result = list(current or [])
    for batch in batches:
        result = add_messages(result, batch)
    return result


def agent(saver: Any) -> Any:
    """A root graph with a subgraph of its own memory, delta channels and an interrupt."""

    class Inner(TypedDict, total=False):
        asked: list

    def ask(state: Inner) -> dict:
        return {"asked": [*state.get("asked", []), interrupt("which?")]}

    inner = StateGraph(Inner)
    inner.add_node("ask", ask)
    inner.add_edge(START, "ask")

    class State(TypedDict, total=False):
        n: int
        asked: list
        log: Annotated[list, DeltaChannel(lambda c, b: [*(c or []), *(i for x in b for i in x)])]
        messages: Annotated[list[AnyMessage], DeltaChannel(folded, snapshot_frequency=4)]

    builder = StateGraph(State)
    builder.add_node("start", lambda state: {"log": [f"start {state['n']}"]})
    builder.add_node("inner", inner.compile(checkpointer=True))
    builder.add_node(
        "answer",
        lambda state: {
            "messages": [AIMessage(f"answer {state['n']}", id=f"a{state['n']}")],
            "log": [f"answer {state['n']}"],
        },
    )
    builder.add_edge(START, "start")
    builder.add_edge("start", "inner")
    builder.add_edge("inner", "answer")
    return builder.compile(checkpointer=saver)


def run(saver: Any, thread_id: str, *numbers: int, resume: bool = True) -> None:
    built = agent(saver)
    for n in numbers:
        inputs = {"n": n, "log": [f"in {n}"], "messages": [HumanMessage(f"q {n}", id=f"h{n}")]}
        built.invoke(inputs, config(thread_id))
        if resume:
            built.invoke(Command(resume=f"reply {n}"), config(thread_id))


def state(saver: Any, thread_id: str) -> tuple[Any, ...]:
    found = agent(saver).get_state(config(thread_id), subgraphs=True)
    return found.values, found.next, [task.interrupts for task in found.tasks], found.config


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def filled(path: Path) -> Path:
    """Threads with everything: subgraphs, interrupts, writes, templates, shares, a pruned one."""
    source = random.Random(3)
    with ResilientSaver.from_conn_string(path) as saver:
        run(saver, "graph", 1, 2)
        run(saver, "waiting", 1, resume=False)
        run(saver, "pruned", 1, 2, 3)
        saver.prune(["pruned"])
        long = Thread(saver, "long")
        said = []
        for n in range(60):
            said.append(HumanMessage(" ".join(str(source.random()) for _ in range(80)), id=f"{n}"))
            long.put({"messages": list(said)})
        long.put({"text": "x" * 3000, "many": list(range(5000)), "big": os.urandom(9000)})
        saver.put_writes(long.where, [("messages", said[-2:]), ("n", 1)], "task", "path")
        saver.copy_thread("long", "copy")
        saver.copy_thread("graph", "gone")
        saver.copy_thread("gone", "heir")
        saver.delete_thread("gone")
    return path


# --- verify ---------------------------------------------------------------------------------


def test_a_sound_file_has_no_finding(filled: Path) -> None:
    with ResilientSaver.from_conn_string(filled) as saver:
        steps: list[Any] = []
        report = verify(saver, progress=steps.append)
    assert report.findings == []
    assert report.ok
    assert report.checked["threads"] == 6
    assert report.checked["templates"] > 2
    assert report.checked["shares"] > 50
    assert report.checked["blobs"] > 60
    assert steps[-1].done == steps[-1].total


def options_of(guard: str) -> dict[str, Any]:
    return {
        "checksum": {},
        "keyed": {"integrity_key": b"k" * 32},
        "cipher": {"cipher": make_cipher()},
    }[guard]


@pytest.mark.parametrize("guard", ["checksum", "keyed", "cipher"])
@pytest.mark.parametrize("table", TABLES)
def test_a_flipped_byte_in_any_row_is_found(tmp_path: Path, table: str, guard: str) -> None:
    """Also with another row damaged as well: nothing ends the search."""
    path = tmp_path / "agent.db"
    with ResilientSaver.from_conn_string(path, **options_of(guard)) as saver:
        run(saver, "t", 1)
        thread = Thread(saver, "other")
        thread.put({"messages": [HumanMessage("hello " * 40, id="1")], "text": "abc" * 700})
        saver.put_writes(thread.where, [("n", 1)], "task")
    column = "seal" if table in ("threads", "namespaces") else "frame"
    key = "rowid" if table != "writes" else "task"
    rows = sql(path, f"SELECT {key}, {column} FROM resilient_{table}")
    assert len(rows) >= 2
    for chosen in ([rows[0]], rows):
        for name, value in chosen:
            cut = len(value) // 2
            damaged = value[:cut] + bytes([value[cut] ^ 1]) + value[cut + 1 :]
            sql(path, f"UPDATE resilient_{table} SET {column} = ? WHERE {key} = ?", damaged, name)
        with ResilientSaver.from_conn_string(path, **options_of(guard)) as saver:
            report = verify(saver)
        kind = {"writes": "writes"}.get(table, table[:-1])
        mine = [item for item in report.findings if item.kind == kind]
        assert len(mine) >= len(chosen)
        assert not report.ok
        for name, value in chosen:
            sql(path, f"UPDATE resilient_{table} SET {column} = ? WHERE {key} = ?", value, name)
    with ResilientSaver.from_conn_string(path, **options_of(guard)) as saver:
        assert verify(saver).ok


DAMAGE = {
    "a checkpoint is gone": "DELETE FROM resilient_checkpoints WHERE seq = "
    "(SELECT max(head) FROM resilient_namespaces WHERE checkpoints > 2)",
    "an older checkpoint is gone": "DELETE FROM resilient_checkpoints WHERE seq = 2",
    "a checkpoint twice": "INSERT INTO resilient_checkpoints (ns, id, parent, frame) "
    "SELECT ns, x'74' || id, parent, frame FROM resilient_checkpoints WHERE seq = 2",
    "a value is gone": "DELETE FROM resilient_blobs WHERE part >> 8 = "
    "(SELECT min(blob) FROM resilient_shares)",
    "a part is gone": "DELETE FROM resilient_blobs WHERE digest IS NULL AND part & 255 = 1",
    "two values change places": "UPDATE resilient_blobs SET frame = "
    "(SELECT frame FROM resilient_blobs WHERE part = (SELECT max(part) FROM resilient_blobs)) "
    "WHERE part = (SELECT min(part) FROM resilient_blobs)",
    "an address is another": "UPDATE resilient_blobs SET digest = randomblob(16) "
    "WHERE part = (SELECT min(part) FROM resilient_blobs)",
    "a thread's row is gone": "DELETE FROM resilient_threads WHERE thread_id = 'long'",
    "a thread's name is another": "UPDATE resilient_threads SET thread_id = 'no' "
    "WHERE thread_id = 'long'",
    "a thread's name is no text": "UPDATE resilient_threads SET thread_id = "
    "CAST(x'ff80fe' AS TEXT) WHERE thread_id = 'long'",
    "the second way leads elsewhere": "UPDATE resilient_threads SET name_hash = 1 "
    "WHERE thread_id = 'long'",
    "namespaces are gone": "DELETE FROM resilient_namespaces",
    "a namespace is empty": "UPDATE resilient_namespaces SET checkpoints = 0",
    "a head is another": "UPDATE resilient_namespaces SET head = head - 1",
    "shares are gone": "DELETE FROM resilient_shares",
    "a share of one's own": "INSERT INTO resilient_shares "
    "SELECT thread, (thread << 24) + 1 FROM resilient_threads",
    "templates are gone": "DELETE FROM resilient_templates",
    "writes are moved": "UPDATE resilient_writes SET task = x'00' || task",
    "the clock stands elsewhere": "UPDATE resilient_meta SET number = 99 WHERE name = 'clock'",
    "the count of threads is lower": "UPDATE resilient_meta SET number = 1 WHERE name = 'thread'",
    "an index is gone": "DROP INDEX resilient_blobs_digest",
    "a table is gone": "DROP TABLE resilient_shares",
    "a table too many": "CREATE TABLE resilient_other (x)",
    "frames are text": "UPDATE resilient_checkpoints SET frame = 'text'",
    "frames are numbers": "UPDATE resilient_writes SET frame = 12",
    "blobs are empty": "UPDATE resilient_blobs SET frame = x''",
    "names are numbers": "UPDATE resilient_checkpoints SET id = seq",
}


@pytest.mark.parametrize("what", DAMAGE)
def test_every_kind_of_damage_is_found_and_nothing_raises(filled: Path, what: str) -> None:
    with ResilientSaver.from_conn_string(filled) as saver:
        assert verify(saver).ok
        sql(filled, DAMAGE[what])
        report = verify(saver)
        assert not report.ok
        assert report.findings
        assert all(
            "run `langgraph-resilient verify`" not in item.message for item in report.findings
        )


def test_damage_names_what_it_hits(filled: Path) -> None:
    sql(
        filled,
        "UPDATE resilient_blobs SET frame = x'00' || frame WHERE part >> 32 = "
        "(SELECT thread FROM resilient_threads WHERE thread_id = 'long')",
    )
    with ResilientSaver.from_conn_string(filled) as saver:
        hit = {(item.thread_id, item.channel) for item in verify(saver).findings}
        assert ("long", "messages") in hit
        assert ("copy", "messages") in hit
        assert not {"graph", "waiting", "pruned"} & {thread for thread, _ in hit}


def test_pages_that_sqlite_cannot_walk_are_findings(filled: Path) -> None:
    (page_size,) = sql(filled, "PRAGMA page_size")[0]
    (root,) = sql(filled, "SELECT rootpage FROM sqlite_master WHERE name = 'resilient_blobs'")[0]
    with open(filled, "r+b") as file:
        file.seek((root - 1) * page_size)
        file.write(b"\xff" * 40)
    with ResilientSaver.from_conn_string(filled) as saver:
        report = verify(saver)
    assert {"file", "blob"} <= {item.kind for item in report.findings}


def test_writers_beside_a_verification_cause_no_finding(filled: Path) -> None:
    stop = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with ResilientSaver.from_conn_string(filled, synchronous="OFF") as other:
                for n in range(10_000):
                    if stop.is_set():
                        return
                    name = f"busy{n % 3}"
                    thread = Thread(other, name)
                    for k in range(4):
                        thread.put({"messages": [HumanMessage(f"{n} {k} {i}") for i in range(9)]})
                        other.put_writes(thread.where, [("n", "y" * 2000)], f"task{k}")
                    other.prune([name])
                    other.delete_thread(f"copy{n % 3}")
                    other.copy_thread(name, f"copy{n % 3}")
                    other.delete_thread(name)
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        with ResilientSaver.from_conn_string(filled) as saver:
            for _ in range(25):
                report = verify(saver)
                assert report.findings == []
    finally:
        stop.set()
        worker.join()
    assert errors == []


def test_values_of_a_serializer_that_was_not_given_are_no_damage(tmp_path: Path) -> None:
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    path = tmp_path / "agent.db"
    with ResilientSaver.from_conn_string(path, serde=JsonPlusSerializer()) as saver:
        Thread(saver).put({"x": 1})
    with ResilientSaver.from_conn_string(path) as saver:
        report = verify(saver)
    assert report.ok
    assert report.checked["opaque"] >= 1


@dataclass
class Plan:
    goal: str


def test_a_class_that_strict_mode_refuses_is_no_damage(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        Thread(saver).put({"plan": Plan("home"), "long": [Plan("x" * 99)] * 40})
    with ResilientSaver.from_conn_string(path, strict=True) as saver:
        report = verify(saver)
    assert report.ok
    assert report.checked["not_restored"] >= 1


def test_contents_that_nothing_names_are_counted_and_no_damage(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        where = Thread(saver).put({"text": "a" * 3000}, id="1ef00000-0000-6000-8000-000000000001")
        again = checkpoint({"text": "b" * 3000}, id=where["configurable"]["checkpoint_id"])
        saver.put(config(), again, {"source": "loop", "step": 0}, {})
        report = verify(saver)
    assert report.ok
    assert report.checked["unreachable_blobs"] == 1


def test_an_older_copy_is_found_by_its_anchor(path: Path, tmp_path: Path) -> None:
    anchored = {"integrity_key": b"k" * 32, "rollback_anchor": tmp_path / "anchor"}
    with ResilientSaver.from_conn_string(path, **anchored) as saver:
        thread = Thread(saver)
        thread.put({"n": 1})
        old = path.read_bytes(), Path(f"{path}-wal").read_bytes()
        thread.put({"n": 2})
        assert verify(saver).ok
    path.write_bytes(old[0])
    Path(f"{path}-wal").write_bytes(old[1])
    saver = ResilientSaver.from_conn_string(path, **anchored)
    assert not verify(saver).ok
    saver.close()


@pytest.mark.parametrize("backend", ["memory", "connection"])
def test_maintenance_works_on_a_single_connection(path: Path, backend: str) -> None:
    with closing(sqlite3.connect(path, check_same_thread=False)) as conn:
        saver = (
            ResilientSaver(conn)
            if backend == "connection"
            else ResilientSaver.from_conn_string(":memory:")
        )
        run(saver, "t", 1)
        assert verify(saver).ok
        assert stats(saver).threads == 1
        target = path.with_name("plain.db")
        assert export(saver, target).threads == 1
        assert not conn.in_transaction
        saver.close()


# --- threads and stats ----------------------------------------------------------------------


def test_threads_tells_of_every_thread(filled: Path) -> None:
    with SqliteSaver.from_conn_string(str(filled)) as old:
        run(old, "old", 1)
    with ResilientSaver.from_conn_string(filled) as saver:
        found = {info.thread_id: info for info in threads(saver)}
        assert set(found) == {"graph", "waiting", "pruned", "long", "copy", "heir", "old"}
        for name, info in found.items():
            listed = list(saver.list({"configurable": {"thread_id": name}}))
            assert info.checkpoints == len(listed)
            stamps = {item.checkpoint["ts"] for item in listed}
            assert {info.first_ts, info.last_ts} <= stamps
            assert info.source == ("sqlite" if name == "old" else "resilient")
            assert info.bytes > 0
        assert found["graph"].namespaces == 2
        assert found["copy"].bytes < found["long"].bytes / 5


def test_stats_adds_up(filled: Path) -> None:
    with ResilientSaver.from_conn_string(filled) as saver:
        found = stats(saver)
        listed = threads(saver)
    assert found.threads == len(listed) == 6
    assert found.checkpoints == sum(info.checkpoints for info in listed)
    assert found.blob_raw_bytes > found.blob_bytes > 0
    assert found.file_bytes > found.blob_bytes + found.envelope_bytes + found.write_bytes
    assert (found.mode, found.schema, found.old_threads) == ("checksum", newest(), 0)
    assert found.shared_blobs > 50


# --- migrate --------------------------------------------------------------------------------


@pytest.fixture
def old(path: Path) -> Path:
    """A file of SqliteSaver with threads of every kind."""
    with SqliteSaver.from_conn_string(str(path)) as saver:
        run(saver, "graph", 1, 2, 3)
        run(saver, "waiting", 1, resume=False)
        thread = Thread(saver, "plain")
        for n in range(5):
            thread.put({"n": n, "t": (1, "two"), "m": [HumanMessage(f"{n}", id=f"{n}")]})
        saver.put_writes(config("early", "not-there-yet"), [("n", 1), ("m", "two")], "task")
    return path


def seen(saver: Any, thread_id: str) -> list[dict]:
    found = [facts(item) for item in saver.list({"configurable": {"thread_id": thread_id}})]
    return sorted(found, key=lambda item: (item["ns"], item["id"]))


NAMES = ("graph", "waiting", "plain")


@pytest.mark.parametrize("guard", ["checksum", "keyed", "cipher"])
def test_a_migrated_file_reads_as_before_and_goes_on(old: Path, guard: str) -> None:
    with SqliteSaver.from_conn_string(str(old)) as before:
        tuples = {name: seen(before, name) for name in NAMES}
        states = {name: state(before, name) for name in ("graph", "waiting")}
        (writes,) = sql(old, "SELECT count(*) FROM writes")[0]
    with ResilientSaver.from_conn_string(old, **options_of(guard)) as saver:
        steps: list[Any] = []
        report = migrate(saver, drop=True, progress=steps.append)
        assert report.skipped == []
        assert (report.threads, report.verified, report.dropped) == (4, 4, 4)
        assert report.checkpoints == sum(map(len, tuples.values()))
        assert report.writes == writes
        assert (steps[-1].done, steps[-1].total) == (4, 4)
        assert {name: seen(saver, name) for name in NAMES} == tuples
        assert {name: state(saver, name) for name in states} == states
        agent(saver).invoke(Command(resume="late"), config("waiting"))
        assert state(saver, "waiting")[0]["messages"][-1] == AIMessage("answer 1", id="a1")
        run(saver, "graph", 4)
        assert len(state(saver, "graph")[0]["messages"]) == 8
        assert verify(saver).ok
        assert migrate(saver).threads == 0
    names = {row[0] for row in sql(old, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert not {"checkpoints", "writes"} & names


def test_nothing_is_dropped_unless_it_is_asked_for(old: Path) -> None:
    rows = sql(old, "SELECT count(*) FROM checkpoints")
    with ResilientSaver.from_conn_string(old) as saver:
        assert migrate(saver).dropped == 0
        assert sql(old, "SELECT count(*) FROM checkpoints") == rows
        again = migrate(saver)
        assert (again.threads, again.verified, len(again.skipped)) == (0, 4, 4)
        last = migrate(saver, drop=True)
        assert (last.threads, last.dropped, last.skipped) == (0, 4, [])


def test_only_the_named_threads_are_moved(old: Path) -> None:
    with ResilientSaver.from_conn_string(old) as saver:
        report = migrate(saver, thread_ids=["plain", "nobody"], drop=True)
        assert (report.threads, report.dropped) == (1, 1)
        assert [item.thread_id for item in report.skipped] == ["nobody"]
        assert {i.thread_id: i.source for i in threads(saver)}["graph"] == "sqlite"
        assert state(saver, "graph")[0]["n"] == 3


def test_a_thread_that_differs_in_both_is_left_alone(old: Path) -> None:
    with ResilientSaver.from_conn_string(old) as saver:
        migrate(saver)
        with SqliteSaver.from_conn_string(str(old)) as other:
            thread = Thread(other, "plain")
            thread.where = other.get_tuple(config("plain")).config
            thread.put({"n": 99})
        report = migrate(saver, drop=True)
        assert [item.thread_id for item in report.skipped] == ["plain"]
        assert "differ" in report.skipped[0].reason
        assert report.dropped == 3
        assert sql(old, "SELECT count(*) FROM checkpoints WHERE thread_id = 'plain'") == [(6,)]


def test_a_thread_that_cannot_be_read_is_skipped_and_kept(old: Path) -> None:
    sql(old, "UPDATE checkpoints SET checkpoint = x'c1' WHERE thread_id = 'plain'")
    with ResilientSaver.from_conn_string(old) as saver:
        report = migrate(saver, drop=True)
        assert [item.thread_id for item in report.skipped] == ["plain"]
        assert report.dropped == 3
        assert verify(saver).ok
    assert sql(old, "SELECT count(*) FROM checkpoints WHERE thread_id = 'plain'") == [(5,)]


def test_a_thread_that_sqlitesaver_made_again_after_a_deletion_is_moved_whole(old: Path) -> None:
    with ResilientSaver.from_conn_string(old) as saver:
        saver.get_tuple(config("plain"))
        migrate(saver, drop=False)
        saver.delete_thread("plain")
    with SqliteSaver.from_conn_string(str(old)) as other:
        thread = Thread(other, "plain")
        for n in range(3):
            thread.put({"n": n})
    with ResilientSaver.from_conn_string(old) as saver:
        assert migrate(saver, thread_ids=["plain"], drop=True).dropped == 1
        assert len(seen(saver, "plain")) == 3


def test_another_process_may_drop_the_old_tables(old: Path) -> None:
    with ResilientSaver.from_conn_string(old) as first, ResilientSaver.from_conn_string(old) as two:
        assert state(first, "graph")[0]["n"] == 3
        assert migrate(two, drop=True).dropped == 4
        assert state(first, "graph")[0]["n"] == 3
        assert first.get_tuple(config("nobody")) is None
        assert len(list(first.list(None))) == len(list(two.list(None)))
        Thread(first, "new").put({"n": 1})
        first.delete_thread("new")
        assert {item.source for item in threads(first)} == {"resilient"}


def test_a_killed_migration_goes_on(path: Path) -> None:
    with SqliteSaver.from_conn_string(str(path)) as saver:
        for k in range(40):
            thread = Thread(saver, f"t{k:02}")
            for n in range(5):
                thread.put({"n": n, "text": f"{k} {n} " * 500})
        before = {f"t{k:02}": seen(saver, f"t{k:02}") for k in range(40)}
    for killed_after in (3, 11, 25):
        reached, told = os.pipe()

        def body(after: int = killed_after, out: int = told) -> None:
            def progress(step: Any) -> None:
                if step.done == after:
                    os.write(out, b"!")

            with ResilientSaver.from_conn_string(path) as child:
                migrate(child, drop=True, progress=progress)
                threading.Event().wait()

        pid = fork(body)
        assert os.read(reached, 1) == b"!"
        kill(pid)
        os.close(reached)
        os.close(told)
        with ResilientSaver.from_conn_string(path) as saver:
            assert verify(saver).ok
            assert {name: seen(saver, name) for name in before} == before
    with ResilientSaver.from_conn_string(path) as saver:
        report = migrate(saver, drop=True)
        assert report.skipped == []
        assert report.dropped <= 37
        assert {name: seen(saver, name) for name in before} == before
        assert {info.source for info in threads(saver)} == {"resilient"}
        assert verify(saver).ok


# --- export ---------------------------------------------------------------------------------


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return tmp_path / "plain.db"


def test_an_exported_thread_has_the_same_state_and_goes_on(filled: Path, plain: Path) -> None:
    with ResilientSaver.from_conn_string(filled) as saver:
        steps: list[Any] = []
        report = export(saver, plain, progress=steps.append)
        assert (report.threads, report.skipped, report.lossy) == (6, [], [])
        assert (steps[-1].done, steps[-1].total) == (6, 6)
        assert report.bytes == plain.stat().st_size
        with SqliteSaver.from_conn_string(str(plain)) as other:
            for name in ("graph", "waiting", "pruned", "heir"):
                assert state(other, name) == state(saver, name)
                assert list(agent(other).get_state_history(config(name)))
            for name in ("graph", "waiting", "long", "copy", "heir"):
                ours, theirs = seen(saver, name), seen(other, name)
                assert [as_numbers(item) for item in theirs] == [as_numbers(item) for item in ours]
            for back in (saver, other):
                agent(back).invoke(Command(resume="late"), config("waiting"))
                for name in ("graph", "pruned", "heir"):
                    run(back, name, 7)
            for name in ("graph", "waiting", "pruned", "heir"):
                assert state(other, name)[:3] == state(saver, name)[:3]
    assert oct(plain.stat().st_mode & 0o777) == "0o600"


def as_numbers(found: dict) -> dict:
    """The facts of a tuple, versions as numbers."""

    def plain(versions: dict) -> dict:
        return {k: v if isinstance(v, int) else int(v.split(".")[0]) for k, v in versions.items()}

    return {
        **found,
        "versions": plain(found["versions"]),
        "seen": {node: plain(item) for node, item in found["seen"].items()},
        "metadata": as_lists(found["metadata"]),
        "writes": as_lists(found["writes"]),
    }


def as_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_lists(item) for key, item in value.items()}
    return [as_lists(item) for item in value] if isinstance(value, tuple | list) else value


def test_the_history_of_a_pruned_thread_is_the_same_on_the_other_side(
    filled: Path, plain: Path
) -> None:
    channels = ["log", "messages"]
    with ResilientSaver.from_conn_string(filled) as saver:
        export(saver, plain, thread_ids=["pruned"])
        ours = saver.get_delta_channel_history(config=config("pruned"), channels=channels)
    with SqliteSaver.from_conn_string(str(plain)) as other:
        theirs = other.get_delta_channel_history(config=config("pruned"), channels=channels)
    for channel in channels:
        values = [value for _, _, value in ours[channel]["writes"]]
        assert [value for _, _, value in theirs[channel]["writes"]] == values
        assert theirs[channel].get("seed") == ours[channel].get("seed")
    assert ours["log"]["writes"]
    assert "seed" in ours["messages"]


def test_an_export_can_be_migrated_again(filled: Path, plain: Path) -> None:
    with ResilientSaver.from_conn_string(filled) as saver:
        export(saver, plain)
        expected = {name: state(saver, name)[:3] for name in ("graph", "waiting", "pruned")}
    with ResilientSaver.from_conn_string(plain) as saver:
        report = migrate(saver, drop=True)
        assert (report.skipped, report.verified) == ([], 6)
        assert {name: state(saver, name)[:3] for name in expected} == expected
        assert verify(saver).ok


def test_threads_of_the_old_tables_are_exported_as_they_are(old: Path, plain: Path) -> None:
    with ResilientSaver.from_conn_string(old) as saver:
        migrate(saver, thread_ids=["graph"])
        report = export(saver, plain)
    assert (report.threads, report.skipped) == (4, [])
    text = "SELECT * FROM {} WHERE thread_id = 'plain' ORDER BY checkpoint_id"
    assert sql(plain, text.format("checkpoints")) == sql(old, text.format("checkpoints"))
    with (
        SqliteSaver.from_conn_string(str(plain)) as new,
        SqliteSaver.from_conn_string(str(old)) as before,
    ):
        assert seen(new, "graph") == seen(before, "graph")


def test_the_newest_checkpoint_stays_the_newest(path: Path, plain: Path) -> None:
    """SqliteSaver takes the greatest id, this package the one written last."""
    with ResilientSaver.from_conn_string(path) as saver:
        thread = Thread(saver)
        thread.put({"n": 1}, id="1ef00000-0000-6000-8000-000000000009")
        thread.put({"n": 2}, id="1ef00000-0000-6000-8000-000000000003")
        saver.put_writes(thread.where, [("n", 3)], "task")
        report = export(saver, plain)
        assert report.lossy
        with SqliteSaver.from_conn_string(str(plain)) as other:
            ours, theirs = facts(saver.get_tuple(config())), facts(other.get_tuple(config()))
    for key in ("values", "parent", "writes", "metadata"):
        assert theirs[key] == ours[key]


class Odd:
    """SqliteSaver has no way to store it; this package stores its fields."""

    def __init__(self) -> None:
        self.inner = 1


def test_what_sqlitesaver_changes_or_refuses_is_told(path: Path, plain: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        Thread(saver, "good").put({"x": [1, "two"]})
        Thread(saver, "changed").put({"x": {"deep": [(1, 2)]}, "y": [HumanMessage("a", id="b")]})
        Thread(saver, "refused").put({"x": 1, "y": {"odd": 1 << 80}})
        report = export(saver, plain)
    assert report.threads == 2
    assert [(item.thread_id, item.channel, item.type_name) for item in report.lossy] == [
        ("changed", "x", "builtins.tuple")
    ]
    (skipped,) = report.skipped
    assert skipped.thread_id == "refused"
    assert "'y'" in skipped.reason
    with SqliteSaver.from_conn_string(str(plain)) as other:
        assert other.get_tuple(config("refused")) is None
        assert other.get_tuple(config("good")).checkpoint["channel_values"] == {"x": [1, "two"]}


def test_a_damaged_thread_does_not_keep_the_others_from_being_exported(
    filled: Path, plain: Path
) -> None:
    sql(filled, "UPDATE resilient_writes SET frame = x'10'")
    with ResilientSaver.from_conn_string(filled) as saver:
        report = export(saver, plain)
    assert report.skipped
    assert {"long", "copy"} <= {item.thread_id for item in report.skipped}


def leftovers(plain: Path) -> list[str]:
    return sorted(item.name for item in plain.parent.iterdir() if "plain" in item.name)


def test_a_target_in_use_is_refused_and_stays_as_it_is(filled: Path, plain: Path) -> None:
    with ResilientSaver.from_conn_string(filled) as saver:
        plain.write_bytes(b"mine")
        with pytest.raises(ConfigurationError, match="exists"):
            export(saver, plain)
        assert plain.read_bytes() == b"mine"
        plain.write_bytes(b"")
        assert export(saver, plain).threads == 6
        with pytest.raises(ConfigurationError, match="exists"):
            export(saver, filled)
        other = plain.with_name("plain2.db")
        Path(f"{other}-wal").write_bytes(b"old")
        with pytest.raises(ConfigurationError, match=r"plain2\.db-wal"):
            export(saver, other)
        with pytest.raises(ConfigurationError, match="no thread 'nobody'"):
            export(saver, plain.with_name("plain3.db"), thread_ids=["nobody"])
        with pytest.raises(ConfigurationError, match="folder"):
            export(saver, plain / "sub" / "x.db")
    assert leftovers(plain) == ["plain.db", "plain2.db-wal"]


@pytest.mark.parametrize("raised", [KeyboardInterrupt, StorageError])
def test_an_interrupted_export_leaves_nothing_behind(
    filled: Path, plain: Path, raised: type[BaseException]
) -> None:
    def progress(step: Any) -> None:
        if step.done == 3:
            raise raised

    with ResilientSaver.from_conn_string(filled) as saver:
        with pytest.raises(raised):
            export(saver, plain, progress=progress)
        assert leftovers(plain) == []
        assert export(saver, plain).threads == 6


def test_a_killed_export_leaves_nothing_under_the_final_name(filled: Path, plain: Path) -> None:
    reached, told = os.pipe()

    def body() -> None:
        def progress(step: Any) -> None:
            if step.done == 2:
                os.write(told, b"!")
                threading.Event().wait()

        with ResilientSaver.from_conn_string(filled) as child:
            export(child, plain, progress=progress)

    pid = fork(body)
    assert os.read(reached, 1) == b"!"
    kill(pid)
    os.close(reached)
    os.close(told)
    assert not plain.exists()
    with ResilientSaver.from_conn_string(filled) as saver:
        assert verify(saver).ok
        assert export(saver, plain).threads == 6


def test_a_simple_graph_is_exported_from_an_encrypted_file(path: Path, plain: Path) -> None:
    def graph(saver: Any) -> Any:
        builder = StateGraph(MessagesState)
        builder.add_node("echo", lambda state: {"messages": [AIMessage("yes", id="a")]})
        builder.add_edge(START, "echo")
        return builder.compile(checkpointer=saver)

    with ResilientSaver.from_conn_string(path, cipher=make_cipher()) as saver:
        graph(saver).invoke({"messages": [HumanMessage("no?", id="h")]}, config("t"))
        export(saver, plain)
        expected = graph(saver).get_state(config("t")).values
    with SqliteSaver.from_conn_string(str(plain)) as other:
        assert graph(other).get_state(config("t")).values == expected


def test_a_thread_whose_runs_were_all_deleted_does_not_come_back_from_its_old_rows(
    old: Path,
) -> None:
    with SqliteSaver.from_conn_string(str(old)) as before:
        Thread(before, "brief").put({"n": 1}, metadata={"run_id": "r"})
    with ResilientSaver.from_conn_string(old) as saver:
        migrate(saver)
        saver.delete_for_runs(["r"])
    with ResilientSaver.from_conn_string(old) as saver:
        assert saver.get_tuple(config("brief")) is None
        assert "brief" not in [info.thread_id for info in threads(saver)]
