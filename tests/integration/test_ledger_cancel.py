"""Calls that are cut off are recorded truthfully, and nothing begins after the cut."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import (
    KINDS,
    USER,
    asking,
    built,
    call,
    entry,
    graph,
    run,
    said,
    state_of,
    states,
    where,
)
from langchain_core.tools import tool
from langgraph.errors import NodeTimeoutError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command

from langgraph_resilient import ResilientSaver, effect, recorded, tool_node


@pytest.fixture
def saver(db_path: str) -> Iterator[ResilientSaver]:
    with ResilientSaver.from_conn_string(db_path) as opened:
        yield opened


class Slow:
    """A coroutine tool that hangs in its first attempt until it is cancelled."""

    def __init__(self, kind: str = "external") -> None:
        self.began, self.ended = asyncio.Event(), 0
        self.attempts = 0

        @tool
        @effect(kind)
        async def slow() -> str:
            """Take long."""
            self.attempts += 1
            if self.attempts == 1:
                self.began.set()
                await asyncio.Event().wait()
            self.ended += 1
            return "slow done"

        self.tool = slow


Cut = Callable[[Any, Slow], Awaitable[None]]


async def by_cancel(running: Any, slow: Slow) -> None:
    task = asyncio.ensure_future(running)
    await slow.began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_timeout(running: Any, slow: Slow) -> None:
    with pytest.raises((TimeoutError, asyncio.TimeoutError)):
        await asyncio.wait_for(running, 0.3)
    assert slow.began.is_set()


CUTS = {"cancel": by_cancel, "timeout": by_timeout}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", CUTS)
def test_a_cancelled_external_call_is_unknown_and_asked_about(
    kind: str, cut: str, saver: Any
) -> None:
    slow = Slow()
    made = built(kind, asking(call("slow")), [slow.tool], saver)
    asyncio.run(CUTS[cut](made.ainvoke(USER, where()), slow))
    assert states(saver) == [("slow", "unknown")]
    assert entry(saver, "slow").ended_at is not None  # its own process said so
    [question] = run("ainvoke", made)["__interrupt__"]
    assert question.value["kind"] == "unknown_outcome"
    assert said(run("ainvoke", made, Command(resume="retry"))) == ["slow done"]
    assert slow.attempts == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_idempotent_call_runs_again(kind: str, saver: Any) -> None:
    slow = Slow("idempotent")
    made = built(kind, asking(call("slow")), [slow.tool], saver)
    asyncio.run(by_cancel(made.ainvoke(USER, where()), slow))
    assert states(saver) == [("slow", "unknown")]
    assert said(run("ainvoke", made)) == ["slow done"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_sibling_of_a_call_that_failed(kind: str, saver: Any) -> None:
    """What was finished is kept, what was cut off is unknown, what failed may run again."""
    slow, failed = Slow(), [1]

    @tool
    async def fail() -> str:
        """Fail once the others are under way."""
        await slow.began.wait()
        while state_of(saver, "quick") != "succeeded":
            await asyncio.sleep(0.002)
        if failed:
            failed.pop()
            raise ValueError("failed")
        return "fine"

    @tool
    async def quick() -> str:
        """Be quick."""
        return "quick done"

    calls = [call("quick"), call("slow"), call("fail")]
    made = built(kind, asking(*calls), [slow.tool, fail, quick], saver)

    async def session() -> None:
        with pytest.raises(ValueError, match="failed"):
            await made.ainvoke(USER, where())
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:  # a plain gather leaves siblings running until the loop ends
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    asyncio.run(session())
    assert states(saver) == [("fail", "failed"), ("quick", "succeeded"), ("slow", "unknown")]
    [question] = run("ainvoke", made)["__interrupt__"]
    assert question.value["tool"] == "slow"
    state = run("ainvoke", made, Command(resume="retry"))
    assert said(state) == ["quick done", "slow done", "fine"]
    assert entry(saver, "quick").attempt == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_sync_sibling_of_a_call_that_failed_is_finished_and_kept(kind: str, saver: Any) -> None:
    began, failed = threading.Event(), [1]

    @tool
    def steady() -> str:
        """Be steady."""
        began.set()
        while state_of(saver, "fail") != "failed":
            time.sleep(0.002)
        return "steady done"

    @tool
    def fail() -> str:
        """Fail."""
        began.wait(20)
        if failed:
            failed.pop()
            raise ValueError("failed")
        return "fine"

    made = built(kind, asking(call("steady"), call("fail")), [steady, fail], saver)
    with pytest.raises(ValueError, match="failed"):
        run("invoke", made, USER)
    assert said(run("invoke", made)) == ["steady done", "fine"]
    assert entry(saver, "steady").attempt == 1


@pytest.mark.parametrize("by", ["node", "step"])
def test_langgraphs_own_timeouts(by: str, saver: Any) -> None:
    slow = Slow()

    def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [asking(call("slow")).replies[len(state["messages"]) > 1]]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", think)
    more = {"timeout": 0.3} if by == "node" else {}
    builder.add_node("tools", tool_node([slow.tool]), **more)
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    builder.add_edge("tools", END)
    made = builder.compile(checkpointer=saver)
    made.step_timeout = 0.3 if by == "step" else None
    with pytest.raises((NodeTimeoutError, TimeoutError, asyncio.TimeoutError)):
        asyncio.run(made.ainvoke(USER, where()))
    assert states(saver) == [("slow", "unknown")]
    made.step_timeout = None
    assert run("ainvoke", made)["__interrupt__"]
    assert said(run("ainvoke", made, Command(resume="retry"))) == ["slow done"]


def test_nothing_begins_after_the_cut(saver: Any) -> None:
    """Cancelled at any moment of the call's way: no body begins any more, no row stays open."""
    ran: list[int] = []

    @tool
    async def pay() -> str:
        """Pay."""
        ran.append(1)
        return "paid"

    made = built("agent", asking(call("pay")), [pay], saver)

    async def cut_after(steps: int) -> None:
        task = asyncio.ensure_future(made.ainvoke(USER, where(f"t{steps}")))
        for _ in range(steps):
            await asyncio.sleep(0)
        before = len(ran)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert len(ran) == before
        assert all(one.state != "started" for one in saver.ledger.entries(f"t{steps}"))

    for steps in range(0, 400, 7):
        asyncio.run(cut_after(steps))


CTRL_C = """
import sys, time, asyncio
sys.path[:0] = {paths!r}
from agents import USER, asking, built, call, where
from langchain_core.tools import tool
from langgraph_resilient import ResilientSaver

@tool
def slow() -> str:
    "Take long."
    print("began", flush=True)
    time.sleep(2)
    return "done"

@tool
async def aslow() -> str:
    "Take long."
    print("began", flush=True)
    await asyncio.sleep(30)
    return "done"

with ResilientSaver.from_conn_string({db!r}) as saver:
    made = built({kind!r}, asking(call({name!r})), [slow, aslow], saver)
    if {name!r} == "slow":
        made.invoke(USER, where())
    else:
        asyncio.run(made.ainvoke(USER, where()))
"""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["slow", "aslow"])
def test_ctrl_c_is_recorded_truthfully(kind: str, name: str, db_path: str) -> None:
    here = str(Path(__file__).parent)
    code = CTRL_C.format(paths=[here, str(Path(here).parents[1])], db=db_path, kind=kind, name=name)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "began\n"
    os.kill(child.pid, signal.SIGINT)
    child.communicate(timeout=60)
    # A thread cannot be stopped: Python waits for it, and what it did is known.
    expected = "succeeded" if name == "slow" else "unknown"
    with ResilientSaver.from_conn_string(db_path) as saver:
        assert states(saver) == [(name, expected)]


def test_a_recorded_function_that_is_cancelled_is_unknown(saver: Any) -> None:
    began = asyncio.Event()

    @recorded
    async def charge() -> str:
        began.set()
        await asyncio.Event().wait()
        return "never"

    async def work(state: MessagesState) -> dict[str, Any]:
        await charge()
        return {}

    made = graph(asking(call("x")), work, saver)

    async def session() -> None:
        task = asyncio.ensure_future(made.ainvoke(USER, where()))
        await began.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(session())
    assert [one.state for one in saver.ledger.entries("t")] == ["unknown"]
    assert run("ainvoke", made)["__interrupt__"][0].value["kind"] == "unknown_outcome"
