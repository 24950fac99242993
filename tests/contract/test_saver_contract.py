"""Opening, closing and calling a saver: what every user of it may rely on."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import inspect
import sqlite3
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from building import Thread, checkpoint, config, facts, in_child, observe
from conftest import KEY, SaverFactory
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from langgraph_resilient import ResilientSaver
from langgraph_resilient.errors import ConfigurationError, SaverClosed, TypeNotAllowed

PAIRS = [
    ("get", "aget"),
    ("get_tuple", "aget_tuple"),
    ("list", "alist"),
    ("put", "aput"),
    ("put_writes", "aput_writes"),
    ("delete_thread", "adelete_thread"),
    ("delete_for_runs", "adelete_for_runs"),
    ("copy_thread", "acopy_thread"),
    ("prune", "aprune"),
    ("get_delta_channel_history", "aget_delta_channel_history"),
]


@dataclasses.dataclass
class Order:
    number: int


class Count(TypedDict, total=False):
    n: int


def counting_graph(saver: BaseCheckpointSaver) -> Any:
    """One node that adds one."""
    builder = StateGraph(Count)
    builder.add_node("tick", lambda state: {"n": state["n"] + 1})
    builder.add_edge(START, "tick")
    builder.add_edge("tick", END)
    return builder.compile(checkpointer=saver)


# --- sync and async -------------------------------------------------------------------------


@pytest.mark.parametrize(("sync", "other"), PAIRS)
def test_sync_and_async_have_the_same_signature(sync: str, other: str) -> None:
    ours = inspect.signature(getattr(ResilientSaver, sync))
    theirs = inspect.signature(getattr(ResilientSaver, other))
    assert list(ours.parameters.values()) == list(theirs.parameters.values())


@pytest.mark.parametrize("name", [name for pair in PAIRS for name in pair])
def test_each_method_takes_what_the_base_class_takes(name: str) -> None:
    ours = inspect.signature(getattr(ResilientSaver, name)).parameters
    base = inspect.signature(getattr(BaseCheckpointSaver, name)).parameters
    shared = [(p.name, p.kind, p.default) for p in ours.values() if p.name in base]
    assert shared == [(p.name, p.kind, p.default) for p in base.values()]
    more = [p for p in ours.values() if p.name not in base]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in more)


@pytest.mark.parametrize(("sync", "other"), [pair for pair in PAIRS if pair[0] != "get"])
def test_each_method_is_its_own_and_not_the_base_classs(sync: str, other: str) -> None:
    for name in (sync, other):
        assert getattr(ResilientSaver, name) is not getattr(BaseCheckpointSaver, name)


def test_what_async_wrote_sync_reads_and_the_other_way_round(saver: ResilientSaver) -> None:
    async def write() -> dict:
        where = await Thread(saver, "a").aput({"x": [1, 2]})
        await saver.aput_writes(where, [("x", 3)], "task")
        return where

    where = asyncio.run(write())
    assert saver.get_tuple(where).pending_writes == [("task", "x", 3)]
    Thread(saver, "b").put({"x": 5})

    async def read() -> tuple:
        listed = [item async for item in saver.alist(config("b"))]
        return await saver.aget_tuple(config("b")), listed, await saver.aget(config("b"))

    found, listed, only = asyncio.run(read())
    assert facts(found) == facts(saver.get_tuple(config("b"))) == facts(listed[0])
    assert only == found.checkpoint


def test_every_async_method_does_what_the_sync_one_does(saver: ResilientSaver) -> None:
    async def steps() -> dict:
        thread = Thread(saver, "a")
        for n in range(3):
            await thread.aput({"x": n}, metadata={"run_id": f"run{n}"})
        await saver.acopy_thread("a", "b")
        await saver.adelete_for_runs(["run0"])
        await saver.aprune(["b"], strategy="keep_latest")
        await saver.acopy_thread("b", "c")
        await saver.adelete_thread("c")
        return await saver.aget_delta_channel_history(config=config("a"), channels=["x"])

    history = asyncio.run(steps())
    seen = observe(saver, ["a", "b", "c"])
    assert {name: [item["values"]["x"] for item in items] for name, items in seen.items()} == {
        "a": [2, 1],
        "b": [2],
    }
    assert history == {"x": {"writes": [], "seed": 1}}


def test_one_saver_serves_invoke_and_ainvoke(saver: ResilientSaver) -> None:
    graph = counting_graph(saver)
    assert graph.invoke({"n": 1}, config())["n"] == 2
    assert asyncio.run(graph.ainvoke({"n": 5}, config()))["n"] == 6
    assert graph.get_state(config()).values == {"n": 6}


def test_several_event_loops_one_after_another(saver: ResilientSaver) -> None:
    graph = counting_graph(saver)
    for n in range(3):
        assert asyncio.run(graph.ainvoke({"n": n}, config()))["n"] == n + 1
    assert len(list(saver.list(config()))) == 9


def test_event_loops_in_several_threads_at_once(saver: ResilientSaver) -> None:
    graph = counting_graph(saver)
    results: dict[int, int] = {}

    def work(k: int) -> None:
        results[k] = asyncio.run(graph.ainvoke({"n": k}, config(f"t{k}")))["n"]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {k: k + 1 for k in range(6)}
    assert [graph.get_state(config(f"t{k}")).values["n"] for k in range(6)] == list(range(1, 7))


def test_sync_calls_inside_a_running_loop_work(saver: ResilientSaver) -> None:
    async def main() -> Any:
        where = Thread(saver).put({"x": 1})
        saver.put_writes(where, [("x", 2)], "task")
        return saver.get_tuple(where)

    assert asyncio.run(main()).pending_writes == [("task", "x", 2)]


def test_many_tasks_on_one_loop_all_are_stored(saver: ResilientSaver) -> None:
    async def main() -> None:
        await asyncio.gather(*(Thread(saver, f"t{k}").aput({"x": k}) for k in range(40)))

    asyncio.run(main())
    assert [saver.get(config(f"t{k}"))["channel_values"]["x"] for k in range(40)] == list(range(40))


def test_two_branches_of_one_checkpoint_keep_their_own_values(saver: ResilientSaver) -> None:
    """LangGraph gives both branches the same version of the channel, with other values."""
    graph = counting_graph(saver)
    graph.invoke({"n": 1}, config())
    head = graph.get_state(config())
    for n in (50, 60):
        graph.update_state(head.parent_config, {"n": n}, as_node="tick")
        assert graph.get_state(config()).values == {"n": n}
    assert graph.get_state(head.config).values == {"n": 2}


# --- opening and closing --------------------------------------------------------------------


def test_with_and_async_with_both_open(db_path: str) -> None:
    with ResilientSaver.from_conn_string(db_path) as saver:
        Thread(saver).put({"x": 1})

    async def main() -> Any:
        async with ResilientSaver.from_conn_string(db_path) as other:
            assert isinstance(other, ResilientSaver)
            return await other.aget(config())

    assert asyncio.run(main())["channel_values"] == {"x": 1}


@pytest.mark.parametrize(
    "spell",
    [
        str,
        Path,
        lambda path: f"file:{path}",
        lambda path: f"file:{path}?mode=rwc",
        lambda path: f"file://{path}?mode=rwc&cache=private",
    ],
    ids=["text", "Path", "uri", "uri-mode", "uri-slashes"],
)
def test_every_spelling_of_a_path_opens_the_same_file(db_path: str, spell: Any) -> None:
    with ResilientSaver.from_conn_string(db_path) as saver:
        Thread(saver).put({"x": 1})
    with ResilientSaver.from_conn_string(spell(db_path)) as saver:
        assert saver.get(config())["channel_values"] == {"x": 1}
        Thread(saver).put({"x": 2})
    with ResilientSaver.from_conn_string(db_path) as saver:
        assert saver.get(config())["channel_values"] == {"x": 2}


@pytest.mark.parametrize("name", ["a b.db", "100%.db", "what?.db", "#1.db", "it's.db", "ü.db"])
def test_a_path_is_taken_as_it_is(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with ResilientSaver.from_conn_string(str(path)) as saver:
        Thread(saver).put({"x": 1})
    assert path.exists()
    with ResilientSaver.from_conn_string(path) as saver:
        assert saver.get(config())["channel_values"] == {"x": 1}


def test_each_memory_database_is_its_own() -> None:
    with (
        ResilientSaver.from_conn_string(":memory:") as one,
        ResilientSaver.from_conn_string(":memory:") as two,
    ):
        Thread(one).put({"x": 1})
        assert two.get(config()) is None


def test_a_memory_uri_works() -> None:
    with ResilientSaver.from_conn_string("file::memory:") as saver:
        Thread(saver).put({"x": 1})
        assert saver.get(config())["channel_values"] == {"x": 1}


def test_a_folder_that_is_missing_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        with ResilientSaver.from_conn_string(str(tmp_path / "nowhere" / "a.db")) as saver:
            saver.setup()


def test_options_are_checked(db_path: str) -> None:
    for wrong in ({"synchronous": "MAYBE"}, {"busy_timeout": -1}):
        with pytest.raises(ConfigurationError, match=next(iter(wrong))):
            with ResilientSaver.from_conn_string(db_path, **wrong):
                pass


def test_an_unknown_option_is_an_error(db_path: str) -> None:
    with pytest.raises(ConfigurationError, match="synchronus"):
        with ResilientSaver.from_conn_string(db_path, synchronus="FULL"):
            pass


@pytest.mark.parametrize(("name", "number"), [("NORMAL", 1), ("FULL", 2)])
def test_synchronous_reaches_the_database(db_path: str, name: str, number: int) -> None:
    with ResilientSaver.from_conn_string(db_path, synchronous=name) as saver:
        Thread(saver).put({"x": 1})
        with saver.lock:
            assert saver.conn.execute("PRAGMA synchronous").fetchone() == (number,)


def test_full_is_the_default(db_path: str) -> None:
    with ResilientSaver.from_conn_string(db_path) as saver:
        with saver.cursor() as cursor:
            assert cursor.execute("PRAGMA synchronous").fetchone() == (2,)


CALLS: dict[str, Any] = {
    "get_tuple": lambda s: s.get_tuple(config()),
    "get": lambda s: s.get(config()),
    "list": lambda s: list(s.list(config())),
    "put": lambda s: s.put(config(), checkpoint(), {}, {}),
    "put_writes": lambda s: s.put_writes(config("t", "1"), [("x", 1)], "task"),
    "delete_thread": lambda s: s.delete_thread("t"),
    "delete_for_runs": lambda s: s.delete_for_runs(["r"]),
    "copy_thread": lambda s: s.copy_thread("t", "u"),
    "prune": lambda s: s.prune(["t"]),
    "history": lambda s: s.get_delta_channel_history(config=config(), channels=["x"]),
    "aget_tuple": lambda s: asyncio.run(s.aget_tuple(config())),
    "aput": lambda s: asyncio.run(s.aput(config(), checkpoint(), {}, {})),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("target", ["file", ":memory:"])
def test_use_after_close_says_so(db_path: str, target: str, call: str) -> None:
    with ResilientSaver.from_conn_string(db_path if target == "file" else target) as saver:
        Thread(saver).put({"x": 1})
    with pytest.raises(SaverClosed, match=r"close|with"):
        CALLS[call](saver)


def test_close_may_be_called_twice_and_leaves_a_users_connection_open() -> None:
    conn = sqlite3.connect(":memory:", check_same_thread=False)
    saver = ResilientSaver(conn)
    Thread(saver).put({"x": 1})
    saver.close()
    saver.close()
    assert conn.execute("SELECT 1").fetchone() == (1,)
    conn.close()


def test_an_exception_in_the_with_block_passes_through(db_path: str) -> None:
    with pytest.raises(ZeroDivisionError):
        with ResilientSaver.from_conn_string(db_path) as saver:
            Thread(saver).put({"x": 1})
            raise ZeroDivisionError
    with ResilientSaver.from_conn_string(db_path) as saver:
        assert saver.get(config())["channel_values"] == {"x": 1}


def test_a_closed_file_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with ResilientSaver.from_conn_string(path) as saver:
        Thread(saver).put({"x": 1})
    assert [item.name for item in tmp_path.iterdir()] == ["agent.db"]


def test_what_was_stored_is_there_after_a_reopen(saver_factory: SaverFactory) -> None:
    if not saver_factory.persistent:
        pytest.skip("an in-memory database ends with its saver")
    with saver_factory() as saver:
        thread = Thread(saver)
        for n in range(4):
            where = thread.put({"x": n, "m": [HumanMessage(str(k), id=str(k)) for k in range(n)]})
        saver.put_writes(where, [("x", 9)], "task", "path")
        before = observe(saver, ["t"])
    with saver_factory() as saver:
        assert observe(saver, ["t"]) == before


# --- what other tools reach for on a SqliteSaver --------------------------------------------


def test_the_attributes_of_sqlitesaver_are_there(
    saver: ResilientSaver, saver_factory: SaverFactory
) -> None:
    saver.setup()
    assert saver.is_setup is True
    saver.setup()
    assert isinstance(saver.conn, sqlite3.Connection) is (saver_factory.backend != "postgres")
    with saver.lock:
        assert saver.conn.execute("SELECT 1").fetchone() == (1,)
    with saver.cursor() as cursor:
        assert cursor.execute("SELECT 2").fetchone() == (2,)
    with saver.cursor(transaction=False) as cursor:
        assert cursor.execute("SELECT 3").fetchone() == (3,)


def test_setup_is_never_needed(saver: ResilientSaver) -> None:
    assert saver.get_tuple(config()) is None
    assert list(saver.list(None)) == []
    saver.delete_thread("never-there")
    Thread(saver).put({"x": 1})
    assert saver.is_setup is True


def test_a_failed_cursor_block_leaves_nothing_behind(file_saver: ResilientSaver) -> None:
    with file_saver.cursor() as cursor:
        cursor.execute("CREATE TABLE mine (x)")
        cursor.execute("INSERT INTO mine VALUES (1)")
    with pytest.raises(ZeroDivisionError):
        with file_saver.cursor() as cursor:
            cursor.execute("INSERT INTO mine VALUES (2)")
            raise ZeroDivisionError
    Thread(file_saver).put({"x": 1})
    with file_saver.cursor() as cursor:
        assert cursor.execute("SELECT x FROM mine").fetchall() == [(1,)]


def test_the_users_own_tables_live_beside_ours(db_path: str) -> None:
    conn = sqlite3.connect(db_path, check_same_thread=False)
    conn.execute("CREATE TABLE mine (x)")
    conn.execute("INSERT INTO mine VALUES (7)")
    conn.commit()
    saver = ResilientSaver(conn)
    Thread(saver).put({"x": 1})
    assert conn.execute("SELECT x FROM mine").fetchall() == [(7,)]
    saver.close()
    conn.close()


def test_a_connection_with_its_own_row_factory_works() -> None:
    conn = sqlite3.connect(":memory:", check_same_thread=False)
    conn.row_factory = sqlite3.Row
    saver = ResilientSaver(conn)
    where = Thread(saver).put({"x": 1})
    assert saver.get_tuple(where).checkpoint["channel_values"] == {"x": 1}
    assert conn.row_factory is sqlite3.Row
    saver.close()
    conn.close()


def test_an_autocommit_connection_works() -> None:
    conn = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    saver = ResilientSaver(conn)
    where = Thread(saver).put({"x": 1})
    assert saver.get_tuple(where).checkpoint["channel_values"] == {"x": 1}
    saver.close()
    conn.close()


# --- copies, serdes, allowlists -------------------------------------------------------------


def test_a_shallow_copy_shares_the_store(saver: ResilientSaver) -> None:
    clone = copy.copy(saver)
    where = Thread(clone).put({"x": 1})
    assert facts(saver.get_tuple(where)) == facts(clone.get_tuple(where))


def test_a_serde_given_to_a_copy_leaves_the_original_alone(file_saver: ResilientSaver) -> None:
    before = file_saver.serde
    clone = copy.copy(file_saver)
    clone.serde = EncryptedSerializer.from_pycryptodome_aes(key=KEY)
    assert file_saver.serde is before
    Thread(clone, "a").put({"x": "secret"})
    Thread(file_saver, "b").put({"x": "open"})
    assert clone.get(config("a"))["channel_values"] == {"x": "secret"}
    assert file_saver.get(config("b"))["channel_values"] == {"x": "open"}


def test_a_serde_assigned_after_construction_is_used(file_factory: SaverFactory) -> None:
    serde = EncryptedSerializer.from_pycryptodome_aes(key=KEY)
    with file_factory() as saver:
        Thread(saver, "open").put({"x": "plain-canary"})
        saver.serde = serde
        where = Thread(saver, "shut").put({"x": ["secret-canary"]})
        saver.put_writes(where, [("x", "written-canary")], "task")
        assert saver.get(config("shut"))["channel_values"] == {"x": ["secret-canary"]}
    raw = file_factory.path.read_bytes()
    assert b"secret-canary" not in raw
    assert b"written-canary" not in raw
    with file_factory(serde=serde) as saver:
        found = saver.get_tuple(config("shut"))
    assert found.checkpoint["channel_values"] == {"x": ["secret-canary"]}
    assert found.pending_writes == [("task", "x", "written-canary")]


def test_a_serde_sees_every_value(file_factory: SaverFactory) -> None:
    seen: list[Any] = []

    class Spy(EncryptedSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            seen.append(obj)
            return super().dumps_typed(obj)

    spy = Spy(EncryptedSerializer.from_pycryptodome_aes(key=KEY).cipher)
    with file_factory(serde=spy) as saver:
        where = Thread(saver).put({"x": "value-1"})
        saver.put_writes(where, [("y", "value-2")], "task")
        assert "value-1" in seen
        assert "value-2" in seen


def store_order(factory: SaverFactory) -> None:
    with factory() as saver:
        Thread(saver).put({"x": [Order(7)]})


def test_strict_refuses_a_type_outside_the_allowlist(file_factory: SaverFactory) -> None:
    store_order(file_factory)
    with file_factory(strict=True) as saver:
        with pytest.raises(TypeNotAllowed, match="Order") as refused:
            saver.get_tuple(config())
    assert refused.value.type_name.endswith("Order")


def test_the_strict_environment_variable_is_heard(
    file_factory: SaverFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_order(file_factory)
    monkeypatch.setenv("LANGGRAPH_STRICT_MSGPACK", "true")
    with file_factory() as saver, pytest.raises(TypeNotAllowed, match="Order"):
        saver.get_tuple(config())
    with file_factory(strict=False) as saver:
        assert saver.get(config())["channel_values"] == {"x": [Order(7)]}


def test_allowed_types_are_restored_in_strict_mode(file_factory: SaverFactory) -> None:
    store_order(file_factory)
    with file_factory(strict=True, allowed_types=(Order,)) as saver:
        assert saver.get(config())["channel_values"] == {"x": [Order(7)]}


def test_with_allowlist_gives_a_clone_that_allows_more(file_factory: SaverFactory) -> None:
    store_order(file_factory)
    with file_factory(strict=True) as saver:
        clone = saver.with_allowlist([(Order.__module__, Order.__qualname__)])
        assert clone.get(config())["channel_values"] == {"x": [Order(7)]}
        with pytest.raises(TypeNotAllowed):
            saver.get_tuple(config())


def test_standard_types_and_messages_need_no_allowlist(file_factory: SaverFactory) -> None:
    value = [HumanMessage("hi", id="1"), uuid.UUID(int=5), {1, 2}, (3, 4), Path("a")]
    with file_factory(strict=True) as saver:
        Thread(saver).put({"x": value})
        assert saver.get(config())["channel_values"] == {"x": value}


# --- processes ------------------------------------------------------------------------------


def test_a_forked_child_may_use_the_saver(file_factory: SaverFactory) -> None:
    with file_factory() as saver:
        Thread(saver, "parent").put({"x": 1})

        def child() -> None:
            assert saver.get(config("parent"))["channel_values"] == {"x": 1}
            Thread(saver, "child").put({"x": 2})
            asyncio.run(Thread(saver, "async-child").aput({"x": 3}))
            saver.close()

        assert in_child(child) == 0
        assert saver.get(config("child"))["channel_values"] == {"x": 2}
        assert saver.get(config("async-child"))["channel_values"] == {"x": 3}
        Thread(saver, "parent").put({"x": 4})
        assert saver.get(config("parent"))["channel_values"] == {"x": 4}


def test_two_savers_on_one_file_see_each_other(file_factory: SaverFactory) -> None:
    with file_factory() as one, file_factory() as two:
        messages = [HumanMessage(f"same {k}", id=str(k)) for k in range(5)]
        for n in range(5):
            Thread(one, f"one{n}").put({"m": messages})
            assert two.get(config(f"one{n}"))["channel_values"] == {"m": messages}
            two.delete_thread(f"one{n}")
            assert one.get_tuple(config(f"one{n}")) is None
