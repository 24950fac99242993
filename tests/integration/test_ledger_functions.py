"""Effects outside tools: recorded functions in nodes and tasks, and steps inside one tool."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import MODES, asking, begin, built, call, run, said, states, where
from building import in_child
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command

from langgraph_resilient import (
    BusinessKeyReused,
    ConfigurationError,
    NoSaver,
    ResilientSaver,
    current_call,
    effect,
    once,
    recorded,
)

ran: list[Any] = []


@pytest.fixture
def saver(db_path: str) -> Iterator[ResilientSaver]:
    ran.clear()
    with ResilientSaver.from_conn_string(db_path) as opened:
        yield opened


@recorded
def charge(x: int, *, currency: str = "EUR") -> str:
    """Charge."""
    ran.append(x)
    assert current_call() is not None
    return f"{x} {currency} {len(ran)}"


@recorded
async def acharge(x: int, *, currency: str = "EUR") -> str:
    """Charge."""
    ran.append(x)
    return f"{x} {currency} {len(ran)}"


def one_node(body: Any, saver: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("work", body)
    builder.add_edge(START, "work")
    builder.add_edge("work", END)
    return builder.compile(checkpointer=saver)


class Breaking:
    """A node's body that breaks in its first run, after its charges."""

    def __init__(self, *amounts: int) -> None:
        self.amounts, self.results, self.fails = amounts, [], 1  # type: ignore[var-annotated]

    def end(self, found: list[str]) -> dict[str, Any]:
        self.results.append(found)
        if self.fails:
            self.fails -= 1
            raise RuntimeError("broke")
        return {}

    def plain(self, state: MessagesState) -> dict[str, Any]:
        return self.end([charge(x) for x in self.amounts])

    async def coroutine(self, state: MessagesState) -> dict[str, Any]:
        return self.end([await acharge(x) for x in self.amounts])

    def on(self, mode: str, saver: Any) -> Any:
        return one_node(self.plain if mode == "invoke" else self.coroutine, saver)


@pytest.mark.parametrize("mode", MODES)
def test_equal_calls_in_one_node_all_run_once_and_keep_their_results(mode: str, saver: Any) -> None:
    body = Breaking(5, 5, 7, 5)
    made = body.on(mode, saver)
    with pytest.raises(RuntimeError, match="broke"):
        begin(mode, made)
    run(mode, made)
    assert ran == [5, 5, 7, 5]
    assert body.results[0] == body.results[1]
    assert all(one.flags == ("weak",) for one in saver.ledger.entries("t"))


@pytest.mark.parametrize("mode", MODES)
def test_equal_calls_in_two_turns_run_twice(mode: str, saver: Any) -> None:
    body = Breaking(5)
    body.fails = 0
    made = body.on(mode, saver)
    begin(mode, made)
    begin(mode, made)
    assert ran == [5, 5]


@pytest.mark.parametrize("mode", MODES)
def test_the_rounds_of_a_loop_are_different_calls(mode: str, saver: Any) -> None:
    fails = [2]

    def again(state: MessagesState) -> str:
        return "work" if len(ran) < 3 else END

    def broken() -> None:
        if len(ran) == fails[0]:
            fails[0] = -1
            raise RuntimeError("broke")

    def work(state: MessagesState) -> dict[str, Any]:
        charge(5)
        broken()
        return {}

    async def awork(state: MessagesState) -> dict[str, Any]:
        await acharge(5)
        broken()
        return {}

    builder = StateGraph(MessagesState)
    builder.add_node("work", work if mode == "invoke" else awork)
    builder.add_edge(START, "work")
    builder.add_conditional_edges("work", again)
    made = builder.compile(checkpointer=saver)
    with pytest.raises(RuntimeError, match="broke"):
        begin(mode, made)
    run(mode, made)
    assert ran == [5, 5, 5]


@pytest.mark.parametrize("mode", MODES)
def test_tasks_of_the_functional_api(mode: str, saver: Any) -> None:
    fails = [1]
    charging, acharging = task(charge), task(acharge)

    def end() -> None:
        if fails:
            fails.pop()
            raise RuntimeError("broke")

    @entrypoint(checkpointer=saver)
    def flow(amounts: list[int]) -> list[str]:
        found = [one.result() for one in [charging(x) for x in amounts]]
        charge(9)
        end()
        return found

    @entrypoint(checkpointer=saver)
    async def aflow(amounts: list[int]) -> list[str]:
        found = list(await asyncio.gather(*(acharging(x) for x in amounts)))
        await acharge(9)
        end()
        return found

    made = flow if mode == "invoke" else aflow
    with pytest.raises(RuntimeError, match="broke"):
        run(mode, made, [1, 1, 2])
    found = run(mode, made)
    assert sorted(ran) == [1, 1, 2, 9]
    assert len(set(found)) == 3
    run(mode, made, [1, 1, 2])
    assert sorted(ran) == [1, 1, 1, 1, 2, 2, 9, 9]


def test_tasks_within_tasks_are_told_apart(saver: Any) -> None:
    inner = task(charge)

    @task
    def outer() -> str:
        return str(inner(5).result())

    @entrypoint(checkpointer=saver)
    def flow(_: Any) -> list[str]:
        return [outer().result(), outer().result(), inner(5).result()]

    assert run("invoke", flow, 0) == ["5 EUR 1", "5 EUR 2", "5 EUR 3"]


def test_a_kill_between_an_effect_and_its_task_repeats_nothing(
    db_path: str, tmp_path: Path
) -> None:
    effects = tmp_path / "effects"

    def session(deadly: bool) -> Any:
        def effect_once(x: int) -> str:
            with effects.open("a") as file:
                file.write(f"{x}\n")
            return "done"

        recorded_once = recorded(effect_once)

        @task
        def step(x: int) -> str:
            found: str = recorded_once(x)
            if deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        with ResilientSaver.from_conn_string(db_path) as saver:

            @entrypoint(checkpointer=saver)
            def flow(x: int) -> str:
                return step(x).result()

            return flow.invoke(4 if deadly else None, where())

    assert in_child(lambda: session(True)) == -signal.SIGKILL
    assert session(False) == "done"
    assert effects.read_text() == "4\n"


@pytest.mark.parametrize("mode", MODES)
def test_policies_of_functions(mode: str, saver: Any) -> None:
    @recorded(key=lambda a: f"order:{a['order']}", effect="external")
    def order(order: int, amount: int = 1) -> str:
        ran.append(order)
        return f"order {order} of {amount}"

    def work(state: MessagesState) -> dict[str, Any]:
        assert order(1) == order(order=1) == "order 1 of 1"
        with pytest.raises(BusinessKeyReused):
            order(1, amount=2)
        return {}

    begin(mode, one_node(work, saver))
    begin(mode, one_node(work, saver))
    assert ran == [1]
    assert saver.ledger.entries("t")[0].flags == ()


@pytest.mark.parametrize("mode", MODES)
def test_an_unknown_function_call_is_asked_about(mode: str, saver: Any) -> None:
    fails = [1]

    @recorded
    def pay(x: int) -> str:
        if fails:
            fails.pop()
            raise ConnectionResetError("broke")
        return "paid"

    def work(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", pay(1))]}

    made = one_node(work, saver)
    with pytest.raises(ConnectionResetError):
        begin(mode, made)
    assert run(mode, made)["__interrupt__"][0].value["kind"] == "unknown_outcome"
    answer = {"action": "succeeded", "result": "paid already"}
    assert run(mode, made, Command(resume=answer))["messages"][-1].content == "paid already"


def test_outside_a_graph() -> None:
    assert recorded(lambda: 5, passthrough=True)() == 5
    with pytest.raises(NoSaver):
        recorded(lambda: 5)()
    with pytest.raises(ConfigurationError, match="outside a recorded tool"):
        once("x", lambda: 1)


@pytest.mark.parametrize("mode", MODES)
def test_steps_of_one_tool(mode: str, saver: Any) -> None:
    @tool
    @effect("idempotent")
    def ship() -> str:
        """Ship."""
        label = once("label", lambda: ran.append("label") or f"L{len(ran)}")
        once("label again", lambda: ran.append("again"))
        if len(ran) == 2:
            ran.append("broke")
            raise ValueError("broke")
        return f"shipped {label}"

    made = built("agent", asking(call("ship")), [ship], saver)
    with pytest.raises(ValueError, match="broke"):
        begin(mode, made)
    assert said(run(mode, made)) == ["shipped L1"]
    assert ran == ["label", "again", "broke"]
    names = [name for name, _ in states(saver)]
    assert names == ["ship", "ship.label", "ship.label again"]
