"""Threads of a SqliteSaver file: whoever writes first moves them, and what was deleted stays away."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Annotated, Any

import pytest
from building import Thread, config, observe
from calling import call, run
from conftest import make_serde
from journaling import answered, begun
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from langgraph_resilient import ResilientSaver
from langgraph_resilient.maintenance import migrate

ENDINGS: dict[str, Any] = {
    "delete_thread": lambda saver: saver.delete_thread("old"),
    "prune": lambda saver: saver.prune(["old"], strategy="delete"),
    "delete_for_runs": lambda saver: saver.delete_for_runs(["first", "second"]),
}


@pytest.mark.parametrize("moved", ["by migrate", "by a write", "not yet"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_deleted_thread_does_not_come_back_from_the_old_tables(
    db_path: str, ending: str, moved: str
) -> None:
    with SqliteSaver.from_conn_string(db_path) as old:
        thread = Thread(old, "old")
        thread.put({"x": 1}, metadata={"run_id": "first"})
        thread.put({"x": 2}, metadata={"run_id": "second"})
    with ResilientSaver.from_conn_string(db_path) as saver:
        if moved == "by migrate":
            migrate(saver)
        elif moved == "by a write":
            saver.put_writes(saver.get_tuple(config("old")).config, [("x", 3)], "task")
        ENDINGS[ending](saver)
        assert saver.get_tuple(config("old")) is None
        assert list(saver.list(None)) == []
        migrate(saver)
        assert saver.get_tuple(config("old")) is None
    with ResilientSaver.from_conn_string(db_path) as saver:
        assert saver.get_tuple(config("old")) is None


def test_pruned_checkpoints_do_not_come_back_from_the_old_tables(db_path: str) -> None:
    with SqliteSaver.from_conn_string(db_path) as old:
        thread = Thread(old, "old")
        for n in range(3):
            thread.put({"x": n})
    with ResilientSaver.from_conn_string(db_path) as saver:
        saver.prune(["old"])
        migrate(saver)
        found = [item.checkpoint["channel_values"]["x"] for item in saver.list(config("old"))]
    assert found == [2]


WRITERS: dict[str, Any] = {
    "put": lambda saver, where: Thread(saver, "other").put({"n": 1}),
    "put_writes": lambda saver, where: saver.put_writes(where, [("x", 3)], "task"),
    "tool call": lambda saver, where: run(saver, call("old")),
    "model call": lambda saver, where: answered(saver, thread="old"),
    "begun model call": lambda saver, where: begun(saver, thread="old"),
    "stream": lambda saver, where: saver.emitter("old")("token"),
    "ttl": lambda saver, where: saver.set_ttl("old", 60),
    "no ttl": lambda saver, where: saver.set_ttl("old", None),
    "copy": lambda saver, where: saver.copy_thread("old", "copy", latest_only=True),
}


@pytest.mark.parametrize("serde", [None, "encrypted"])
@pytest.mark.parametrize("writer", WRITERS)
def test_whatever_is_written_first_hides_no_checkpoint(
    db_path: str, writer: str, serde: str | None
) -> None:
    """An agent that stopped under SqliteSaver may go on with a tool call or a model call."""
    given = {} if serde is None else {"serde": make_serde("file")}
    with SqliteSaver.from_conn_string(db_path) as old:
        old.serde = given.get("serde", old.serde)
        thread = Thread(old, "old")
        for n in range(3):
            thread.put({"x": n})
        wanted = observe(old, ["old"])["old"]
    with ResilientSaver.from_conn_string(db_path, **given) as saver:
        WRITERS[writer](saver, thread.where)
        found = observe(saver, ["old"])["old"]
    assert [item["values"] for item in found] == [item["values"] for item in wanted]
    assert [item["parent"] for item in found] == [item["parent"] for item in wanted]


def unwritten_graph(saver: Any) -> Any:
    """One delta channel is written, the other one is not before somebody has answered."""

    def joined(old: list | None, batches: list) -> list:
        return [*(old or []), *chain.from_iterable(batches)]

    delta = Annotated[list, DeltaChannel(joined, snapshot_frequency=3)]
    State = TypedDict("State", {"log": delta, "said": delta}, total=False)  # noqa: UP013
    builder = StateGraph(State)
    builder.add_node("ask", lambda state: {"said": [interrupt("who?")]})
    builder.add_edge(START, "ask")
    builder.add_edge("ask", END)
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("is_async", [False, True], ids=["invoke", "ainvoke"])
def test_a_fork_gives_a_channel_its_first_version_in_the_threads_own_kind(
    db_path: str, is_async: bool
) -> None:
    """The kinds cannot be compared; LangGraph does not tell for which thread it asks for a version."""

    def run_on(saver: Any, given: Any, where: Any) -> Any:
        graph = unwritten_graph(saver)
        return asyncio.run(graph.ainvoke(given, where)) if is_async else graph.invoke(given, where)

    with SqliteSaver.from_conn_string(db_path) as saver:
        unwritten_graph(saver).invoke({"log": ["in"]}, config("old"))
    with ResilientSaver.from_conn_string(db_path) as saver:
        assert run_on(saver, {"log": ["in"]}, config("new"))["__interrupt__"]
        for found in list(unwritten_graph(saver).get_state_history(config("old"))):
            run_on(saver, None, found.config)
        out = run_on(saver, Command(resume="Ann"), config("old"))
        assert (out["log"], out["said"]) == (["in"], ["Ann"])
        for thread, kind in (("old", str), ("new", int)):
            for found in saver.list(config(thread)):
                kinds = {type(one) for one in found.checkpoint["channel_versions"].values()}
                assert kinds <= {kind}
