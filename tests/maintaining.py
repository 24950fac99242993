"""Files with threads of every kind, for the tests of maintenance."""

from __future__ import annotations

import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

from building import Thread, config, facts
from conftest import make_cipher
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from langgraph_resilient import ResilientSaver


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


def fill(path: Path) -> Path:
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


def fill_old(path: Path) -> Path:
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


def options_of(guard: str) -> dict[str, Any]:
    return {
        "checksum": {},
        "keyed": {"integrity_key": b"k" * 32},
        "cipher": {"cipher": make_cipher()},
    }[guard]
