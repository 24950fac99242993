"""An answer is for one question: what was said to another one decides nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agents import KINDS, MODES, asking, begin, built, call, entry, run, said
from building import in_child
from langchain_core.tools import tool
from langgraph.types import Command, interrupt

from langgraph_resilient import ResilientSaver


class Process:
    """Runs a graph with a tool that writes a line per attempt, and dies in those named."""

    def __init__(self, db_path: str, folder: Path, mode: str, kind: str, *calls: Any) -> None:
        self.path, self.mode, self.kind, self.calls = db_path, mode, kind, calls
        self.effects = folder / "effects"
        self.effects.touch()

    @property
    def attempts(self) -> list[str]:
        return self.effects.read_text().split()

    def tools(self, saver: Any, deaths: tuple[int, ...]) -> list[Any]:
        def effect_or_death() -> None:
            with self.effects.open("a") as file:
                file.write("pay\n")
            if len(self.attempts) in deaths:
                os.kill(os.getpid(), signal.SIGKILL)

        @tool
        def pay() -> str:
            """Pay, once the other calls wait."""
            others = len(self.calls) - 1
            while sum(e.state != "started" for e in saver.ledger.entries("t")) < others:
                time.sleep(0.002)
            effect_or_death()
            return "paid"

        @tool
        def ask() -> str:
            """Ask, then pay."""
            answer = interrupt("pay?")
            effect_or_death()
            return f"asked: {answer}"

        return [pay, ask]

    def step(self, given: Any, look: Callable[[Any, Any], Any], deaths: Any = ()) -> Any:
        with ResilientSaver.from_conn_string(self.path) as saver:
            made = built(self.kind, asking(*self.calls), self.tools(saver, deaths), saver)
            state = begin(self.mode, made) if given == "begin" else run(self.mode, made, given)
            return look(state, saver)

    def killed(self, given: Any, *deaths: int) -> None:
        """Run a step in a child that dies in the attempts of these numbers."""
        assert in_child(lambda: self.step(given, lambda *_: None, deaths)) == -signal.SIGKILL


def asked(state: Any, saver: Any) -> list[Any]:
    values = [one.value for one in questions(state)]
    return [value if isinstance(value, str) else value["kind"] for value in values]


def questions(state: Any) -> list[Any]:
    return list(state.get("__interrupt__", ()))


@pytest.fixture(params=[(mode, kind) for mode in MODES for kind in KINDS], ids="-".join)
def process(request: Any, db_path: str, tmp_path: Path) -> Callable[..., Process]:
    return lambda *calls: Process(db_path, tmp_path, *request.param, *calls)


@pytest.mark.parametrize("bare", [True, False])
def test_a_second_unknown_outcome_is_a_second_question(process: Any, bare: bool) -> None:
    run_ = process(call("pay"))
    run_.killed("begin", 1)
    [question] = run_.step(None, lambda state, _: questions(state))
    answer = "retry" if bare else {question.id: "retry"}
    run_.killed(Command(resume=answer), 2)
    for _ in range(2):  # nobody answers; the first answer was for the first question
        assert run_.step(None, asked) == ["unknown_outcome"]
    assert len(run_.attempts) == 2
    [question] = run_.step(None, lambda state, _: questions(state))
    assert run_.step(Command(resume={question.id: "retry"}), lambda s, _: said(s)) == ["paid"]
    assert len(run_.attempts) == 3


@pytest.mark.parametrize("answer", ["yes", "retry", "succeeded"])
@pytest.mark.parametrize("bare", [True, False])
def test_an_answer_to_the_tools_own_question_says_nothing_about_the_outcome(
    process: Any, answer: str, bare: bool
) -> None:
    run_ = process(call("ask"))
    [question] = run_.step("begin", lambda state, _: questions(state))
    run_.killed(Command(resume=answer if bare else {question.id: answer}), 1)
    for _ in range(2):
        assert run_.step(None, asked) == ["unknown_outcome"]
    assert len(run_.attempts) == 1
    state_of = run_.step(None, lambda _, saver: entry(saver, "ask").state)
    assert state_of == "unknown"


@pytest.mark.parametrize("bare", [True, False])
def test_an_answer_to_one_call_says_nothing_about_another(process: Any, bare: bool) -> None:
    """The tool's question waits, the other call's outcome becomes unknown only later."""
    run_ = process(call("ask", "1"), call("pay", "2"))
    run_.killed("begin", 1)
    found = run_.step(None, lambda state, _: questions(state))
    theirs = [one.id for one in found if one.value == "pay?"]
    if bare:
        mine = next(one.id for one in found if one.value != "pay?")
        run_.step(Command(resume={mine: "retry"}), asked)
        assert run_.step(Command(resume="yes"), lambda s, _: said(s)) == ["asked: yes", "paid"]
    else:
        assert run_.step(Command(resume={theirs[0]: "yes"}), asked) == ["unknown_outcome"]
        for _ in range(2):
            assert run_.step(None, asked) == ["unknown_outcome"]
        assert run_.step(Command(resume="retry"), lambda s, _: said(s)) == ["asked: yes", "paid"]


def test_a_question_may_be_answered_without_its_id_more_than_once(process: Any) -> None:
    run_ = process(call("pay"))
    run_.killed("begin", 1)
    assert run_.step(None, asked) == ["unknown_outcome"]
    run_.killed(Command(resume={"action": "retry", "reason": "first"}), 2)
    assert run_.step(None, asked) == ["unknown_outcome"]
    again = Command(resume={"action": "retry", "reason": "second"})
    assert run_.step(again, lambda s, _: said(s)) == ["paid"]


def test_an_answer_that_is_not_understood_is_asked_for_again(process: Any) -> None:
    run_ = process(call("pay"))
    run_.killed("begin", 1)
    run_.step(None, asked)
    [question] = run_.step(Command(resume="perhaps"), lambda state, _: questions(state))
    assert "perhaps" in question.value["problem"]
    assert len(run_.attempts) == 1
    answer = {"action": "failed", "result": "do not pay"}
    assert run_.step(Command(resume=answer), lambda s, _: said(s)) == ["do not pay"]


def test_who_decided_and_why_is_kept(process: Any) -> None:
    run_ = process(call("pay"))
    run_.killed("begin", 1)
    run_.step(None, asked)
    answer = {"action": "succeeded", "result": "paid 5", "by": "ann", "reason": "saw it"}
    found = run_.step(Command(resume=answer), lambda _, saver: entry(saver, "pay"))
    assert (found.state, found.result.content) == ("succeeded", "paid 5")
    last = found.history[-1]
    assert (last.what, last.by, last.reason) == ("succeeded", "ann", "saw it")


def test_a_decision_by_an_operator_needs_no_answer(process: Any) -> None:
    run_ = process(call("pay"))
    run_.killed("begin", 1)

    def decide(state: Any, saver: Any) -> None:
        [found] = saver.ledger.unknown("t")
        saver.ledger.resolve(found.key, "succeeded", result="paid it", by="ann")

    run_.step(None, decide)
    assert run_.step(None, lambda s, _: said(s)) == ["paid it"]
    assert len(run_.attempts) == 1
