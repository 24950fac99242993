"""A connection of `aiosqlite`, as `AsyncSqliteSaver` takes one."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from building import Thread, config
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from langgraph_resilient import ResilientSaver
from langgraph_resilient.errors import ConfigurationError, DatabaseUnreachable


class Count(TypedDict):
    n: int


def graph_on(saver: Any) -> Any:
    graph = StateGraph(Count)
    graph.add_node("more", lambda state: {"n": state["n"] + 1})
    graph.add_edge(START, "more")
    graph.add_edge("more", END)
    return graph.compile(checkpointer=saver)


def run(saver_of: Any, path: Path, inputs: Any) -> int:
    async def go() -> int:
        async with aiosqlite.connect(path) as connection:
            saver = saver_of(connection)
            await saver.setup()
            found = await graph_on(saver).ainvoke(inputs, config("a"))
            if isinstance(saver, ResilientSaver):
                await saver.aclose()
            await connection.execute("SELECT 1")  # it stays the user's, and open
            return int(found["n"])

    return asyncio.run(go())


def test_a_thread_of_async_sqlite_saver_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    assert run(AsyncSqliteSaver, path, {"n": 1}) == 2
    assert run(ResilientSaver, path, {"n": 5}) == 6
    with ResilientSaver.from_conn_string(path) as saver:
        numbers = [
            found.values.get("n") for found in graph_on(saver).get_state_history(config("a"))
        ]
    assert numbers == [6, 5, 2, 2, 1, None]


@pytest.mark.parametrize("awaited", [False, True], ids=["not-yet-open", "open"])
@pytest.mark.parametrize("form", ["path", "text", "uri"])
def test_every_way_to_name_the_file(tmp_path: Path, form: str, awaited: bool) -> None:
    path = tmp_path / "agent.db"
    named: Any = {"path": path, "text": str(path), "uri": f"{path.as_uri()}?cache=private"}[form]

    async def go() -> None:
        connection = aiosqlite.connect(named, uri=form == "uri", isolation_level=None)
        if awaited:
            await connection
        saver = ResilientSaver(connection)
        try:
            await Thread(saver).aput({"x": 1})
        finally:
            await saver.aclose()
            if awaited:
                await connection.close()

    asyncio.run(go())
    with ResilientSaver.from_conn_string(path) as saver:
        found = saver.get_tuple(config("t"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"x": 1}


def test_a_database_in_memory_is_refused() -> None:
    async def go() -> None:
        async with aiosqlite.connect(":memory:") as connection:
            with pytest.raises(ConfigurationError, match="is in memory, where no other connection"):
                ResilientSaver(connection)

    asyncio.run(go())


def test_a_file_that_cannot_be_opened_is_named_as_such(tmp_path: Path) -> None:
    connection = aiosqlite.connect(tmp_path / "missing" / "agent.db")
    with pytest.raises(DatabaseUnreachable, match="the database of the aiosqlite connection"):
        ResilientSaver(connection)


@pytest.mark.parametrize(
    "wrong", ["agent.db", Path("agent.db"), 7, object()], ids=["text", "path", "number", "object"]
)
def test_anything_else_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"or an aiosqlite\.Connection, not a"):
        ResilientSaver(wrong)


def test_the_users_transaction_does_not_stop_the_saver(tmp_path: Path) -> None:
    """Readers of WAL do not block writers; a writer of the user's is waited for."""
    path = tmp_path / "agent.db"

    async def go() -> None:
        async with aiosqlite.connect(path) as connection:
            await connection.execute("CREATE TABLE mine (x)")
            await connection.execute("INSERT INTO mine VALUES (1)")
            await connection.commit()
            saver = ResilientSaver(connection)
            await Thread(saver).aput({"x": 1})
            cursor = await connection.execute("SELECT x FROM mine")
            await Thread(saver, "b").aput({"x": 2})
            assert await cursor.fetchall() == [(1,)]
            await saver.aclose()

    asyncio.run(go())
    with sqlite3.connect(path) as plain:
        assert plain.execute("SELECT x FROM mine").fetchall() == [(1,)]
    plain.close()
