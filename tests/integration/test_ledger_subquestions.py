"""Questions from deep inside: sub-agents within parallel tools, steps within one tool."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from agents import (
    KINDS,
    MODES,
    USER,
    asking,
    begin,
    built,
    call,
    calling,
    entry,
    run,
    said,
    script,
    state_of,
)
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.types import Command, interrupt

from langgraph_resilient import ResilienceMiddleware, ResilientSaver, effect, once

ran: list[Any] = []


@pytest.fixture
def saver(db_path: str) -> Iterator[ResilientSaver]:
    ran.clear()
    with ResilientSaver.from_conn_string(db_path) as opened:
        yield opened


@tool
def book(what: str) -> str:
    """Book."""
    once("hold", lambda: ran.append(f"hold {what}"))
    answer = interrupt(f"book {what}?")
    ran.append(f"book {what}")
    return f"{what} {answer}"


def buyer(what: str) -> Any:
    """A sub-agent that books something and says what came of it."""

    def report(messages: Any) -> AIMessage:
        return AIMessage(messages[-1].content)

    replies = [calling(call("book", "b", what=what)), report]
    return create_agent(script(*replies), [book], middleware=[ResilienceMiddleware()])


@tool
@effect("idempotent")
def delegate(what: str) -> str:
    """Let a sub-agent book."""
    found = buyer(what).invoke({"messages": [HumanMessage("go", id=f"go {what}")]})
    return str(found["messages"][-1].content)


@tool("delegate")
@effect("idempotent")
async def adelegate(what: str) -> str:
    """Let a sub-agent book."""
    found = await buyer(what).ainvoke({"messages": [HumanMessage("go", id=f"go {what}")]})
    return str(found["messages"][-1].content)


def delegating(mode: str) -> Any:
    return delegate if mode == "invoke" else adelegate


CALLS = tuple(call("delegate", what, what=what) for what in ("car", "inn", "taxi"))


def ids(state: Any) -> dict[str, str]:
    return {one.value: one.id for one in state["__interrupt__"]}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", list(itertools.permutations(["car", "inn", "taxi"])))
def test_sub_agents_of_parallel_calls_get_their_own_answers(
    mode: str, kind: str, order: Any, saver: Any
) -> None:
    made = built(kind, asking(*CALLS), [delegating(mode)], saver)
    state = begin(mode, made)
    assert set(ids(state)) == {"book car?", "book inn?", "book taxi?"}
    for what in order:
        answer = {ids(state)[f"book {what}?"]: f"yes {what}"}
        state = run(mode, made, Command(resume=answer))
    assert said(state) == ["car yes car", "inn yes inn", "taxi yes taxi"]
    assert len(ran) == 6


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_sub_agents_answered_at_once(mode: str, kind: str, saver: Any) -> None:
    made = built(kind, asking(*CALLS), [delegating(mode)], saver)
    state = begin(mode, made)
    answer = {id: f"yes {text[5:-1]}" for text, id in ids(state).items()}
    state = run(mode, made, Command(resume=answer))
    assert said(state) == ["car yes car", "inn yes inn", "taxi yes taxi"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_single_sub_agent_may_be_answered_without_an_id(mode: str, kind: str, saver: Any) -> None:
    made = built(kind, asking(CALLS[0]), [delegating(mode)], saver)
    begin(mode, made)
    assert said(run(mode, made, Command(resume="yes"))) == ["car yes"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("outer", KINDS)
@pytest.mark.parametrize("bare", [True, False])
def test_the_ledgers_question_from_a_sub_agents_call(
    mode: str, outer: str, bare: bool, saver: Any
) -> None:
    fails = [1]

    @tool
    def send() -> str:
        """Send."""
        ran.append("send")
        if fails:
            fails.pop()
            raise ConnectionResetError("broke")
        return "sent"

    inner = create_agent(asking(call("send")), [send], middleware=[ResilienceMiddleware()])

    @tool
    def sub() -> str:
        """Ask a sub-agent."""
        return str(inner.invoke(USER)["messages"][-1].content)

    @tool("sub")
    async def asub() -> str:
        """Ask a sub-agent."""
        return str((await inner.ainvoke(USER))["messages"][-1].content)

    made = built(outer, asking(call("sub")), [sub if mode == "invoke" else asub], saver)
    [question] = begin(mode, made)["__interrupt__"]
    assert question.value["tool"] == "send"
    assert (state_of(saver, "sub"), state_of(saver, "send")) == ("suspended", "unknown")
    answer = "retry" if bare else {question.id: "retry"}
    assert said(run(mode, made, Command(resume=answer))) == ["done"]
    assert ran == ["send", "send"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bare", [True, False])
def test_who_lets_a_tool_run_again_lets_its_unknown_step_run_again(
    mode: str, kind: str, bare: bool, saver: Any
) -> None:
    """One question, not one for the tool and one for its step; finished steps stay done."""

    def step(name: str) -> str:
        ran.append(name)
        if ran == ["first", "second"]:
            raise ConnectionResetError("broke")
        return name

    @tool
    def both() -> str:
        """Both."""
        return once("first", lambda: step("first")) + once("second", lambda: step("second"))

    made = built(kind, asking(call("both")), [both], saver)
    [question] = begin(mode, made)["__interrupt__"]
    assert question.value["tool"] == "both"
    answer = "retry" if bare else {question.id: "retry"}
    assert said(run(mode, made, Command(resume=answer))) == ["firstsecond"]
    assert ran == ["first", "second", "second"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_is_unknown_in_a_tool_that_failed_is_asked_about(
    mode: str, kind: str, saver: Any
) -> None:
    def broken() -> str:
        ran.append(1)
        raise ConnectionResetError("broke")

    @tool
    def one() -> str:
        """One."""
        try:
            return once("step", broken if not ran else lambda: "stepped")
        except ConnectionResetError:
            raise ValueError("failed for another reason") from None

    made = built(kind, asking(call("one")), [one], saver)
    with pytest.raises(ValueError, match="another reason"):
        begin(mode, made)
    assert (state_of(saver, "one"), state_of(saver, "one.step")) == ("failed", "unknown")
    [question] = run(mode, made)["__interrupt__"]
    assert question.value["tool"] == "one.step"
    assert said(run(mode, made, Command(resume="retry"))) == ["stepped"]
    assert entry(saver, "one.step").attempt == 2
