"""Questions to humans from several calls at once: the right call gets the right answer."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from agents import KINDS, MODES, asking, begin, built, call, calling, entry, run, said, states
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt

from langgraph_resilient import ResilientSaver, aonce, once, tool_node

log: list[str] = []


@pytest.fixture(autouse=True)
def _empty_log() -> None:
    log.clear()


def note(what: str) -> str:
    log.append(what)
    return what


@tool
def book(what: str) -> str:
    """Book something, when a human agrees."""
    once("hold", lambda: note(f"hold {what}"))
    answer = interrupt(f"book {what}?")
    once("charge", lambda: note(f"charge {what}"))
    return f"{what}: {answer}"


@tool("book")
async def abook(what: str) -> str:
    """Book something, when a human agrees."""

    async def step(text: str) -> str:
        return note(text)

    await aonce("hold", lambda: step(f"hold {what}"))
    answer = interrupt(f"book {what}?")
    await aonce("charge", lambda: step(f"charge {what}"))
    return f"{what}: {answer}"


@tool
def twice(what: str) -> str:
    """Ask twice."""
    once("first", lambda: note(f"first {what}"))
    one = interrupt(f"one {what}?")
    once("second", lambda: note(f"second {what}"))
    two = interrupt(f"two {what}?")
    return f"{what}: {one} {two}"


@tool
def send(what: str) -> str:
    """Send something over a line that breaks."""
    note(f"send {what}")
    if log.count(f"send {what}") == 1:
        raise ConnectionResetError("broke")
    return f"sent {what}"


def tools(mode: str) -> list[Any]:
    return [book if mode == "invoke" else abook, twice, send]


class Dialogue:
    """A graph that is built anew on a saver opened anew for every step."""

    def __init__(self, mode: str, kind: str, path: str, *calls: Any) -> None:
        self.mode, self.kind, self.path = mode, kind, path
        self.calls = calls
        self.state: Any = None
        self.recorded: list[tuple[str, str]] = []

    def step(self, given: Any = None) -> Any:
        with ResilientSaver.from_conn_string(self.path) as saver:
            made = built(self.kind, asking(*self.calls), tools(self.mode), saver)
            if given is None:
                self.state = begin(self.mode, made)
            else:
                self.state = run(self.mode, made, Command(resume=given))
            self.recorded = states(saver)
        return self

    @property
    def questions(self) -> dict[str, str]:
        """Ids by what is asked; the ledger's own questions by ``unknown`` and the argument."""
        found = {}
        for one in self.state.get("__interrupt__", ()):
            value = one.value
            if isinstance(value, Mapping):
                value = f"unknown {value['arguments']['what']}"
            found[value] = one.id
        return found

    def answer(self, **by_question: Any) -> Any:
        """Answer by id; names are the questions' without ``?`` and with underscores."""
        ids = {text.rstrip("?").replace(" ", "_"): id for text, id in self.questions.items()}
        return self.step({ids[name]: value for name, value in by_question.items()})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bare", [True, False])
def test_an_effect_before_a_question_happens_once(
    mode: str, kind: str, bare: bool, db_path: str
) -> None:
    talk = Dialogue(mode, kind, db_path, call("book", what="car")).step()
    assert log == ["hold car"]
    assert ("book", "suspended") in talk.recorded
    if bare:
        talk.step("yes")
    else:
        talk.answer(book_car="yes")
    assert said(talk.state) == ["car: yes"]
    assert log == ["hold car", "charge car"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bare", [True, False])
def test_two_questions_in_one_tool(mode: str, kind: str, bare: bool, db_path: str) -> None:
    talk = Dialogue(mode, kind, db_path, call("twice", what="x")).step()
    for name, value in (("one_x", "a"), ("two_x", "b")):
        if bare:
            talk.step(value)
        else:
            talk.answer(**{name: value})
    assert said(talk.state) == ["x: a b"]
    assert log == ["first x", "second x"]


PAIR = (call("book", "1", what="car"), call("book", "2", what="inn"))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", list(itertools.permutations(["car", "inn"])))
def test_two_calls_answered_one_by_one_in_any_order(
    mode: str, kind: str, order: Any, db_path: str
) -> None:
    talk = Dialogue(mode, kind, db_path, *PAIR).step()
    assert set(talk.questions) == {"book car?", "book inn?"}
    for what in order:
        talk.answer(**{f"book_{what}": f"yes {what}"})
    assert said(talk.state) == ["car: yes car", "inn: yes inn"]
    assert sorted(log) == ["charge car", "charge inn", "hold car", "hold inn"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_two_calls_answered_at_once(mode: str, kind: str, db_path: str) -> None:
    talk = Dialogue(mode, kind, db_path, *PAIR).step()
    talk.answer(book_inn="I", book_car="C")
    assert said(talk.state) == ["car: C", "inn: I"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_last_of_two_questions_may_be_answered_without_its_id(
    mode: str, kind: str, db_path: str
) -> None:
    talk = Dialogue(mode, kind, db_path, *PAIR).step()
    talk.answer(book_car="C").step("I")
    assert said(talk.state) == ["car: C", "inn: I"]


MIXED = (
    call("book", "1", what="car"),
    call("send", "2", what="mail"),
    call("twice", "3", what="inn"),
)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", list(itertools.permutations(["car", "mail", "inn"])))
def test_the_ledgers_question_among_those_of_tools_in_any_order(
    mode: str, kind: str, order: Any, db_path: str
) -> None:
    talk = Dialogue(mode, kind, db_path, *MIXED).step()
    assert set(talk.questions) == {"book car?", "one inn?", "unknown mail"}
    for what in order:
        if what == "car":
            talk.answer(book_car="C")
        elif what == "mail":
            talk.answer(unknown_mail={"action": "retry"})
        else:
            talk.answer(one_inn="1")
            talk.answer(two_inn="2")
    assert said(talk.state) == ["car: C", "sent mail", "inn: 1 2"]
    assert sorted(log) == [
        "charge car",
        "first inn",
        "hold car",
        "second inn",
        "send mail",
        "send mail",
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_all_questions_answered_at_once(mode: str, kind: str, db_path: str) -> None:
    talk = Dialogue(mode, kind, db_path, *MIXED).step()
    talk.answer(one_inn="1", unknown_mail="succeeded", book_car="C")
    assert set(talk.questions) == {"two inn?"}
    talk.step("2")
    assert said(talk.state)[::2] == ["car: C", "inn: 1 2"]
    assert "confirmed" in said(talk.state)[1]
    assert log.count("send mail") == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_answers_that_belong_to_nobody_change_nothing(mode: str, kind: str, db_path: str) -> None:
    talk = Dialogue(mode, kind, db_path, *PAIR).step()
    before = talk.questions
    talk.step({"0" * 32: "whatever"})
    assert talk.questions == before
    talk.answer(book_inn="I", book_car="C")
    assert said(talk.state) == ["car: C", "inn: I"]


@pytest.mark.parametrize("kind", KINDS)
def test_equal_calls_that_ask_get_an_answer_each(kind: str, db_path: str) -> None:
    same = [call("book", "same", what="car") for _ in range(2)]
    with ResilientSaver.from_conn_string(db_path) as saver:
        made = built(kind, asking(*same), tools("invoke"), saver)
        first, second = begin("invoke", made)["__interrupt__"]
        assert first.id != second.id
        run("invoke", made, Command(resume={second.id: "B"}))
        state = run("invoke", made, Command(resume={first.id: "A"}))
        assert sorted(said(state)) == ["car: A", "car: B"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_suspended_call_is_no_failure(mode: str, kind: str, db_path: str) -> None:
    talk = Dialogue(mode, kind, db_path, call("book", what="car")).step().step("yes")
    with ResilientSaver.from_conn_string(db_path) as saver:
        found = entry(saver, "book")
    assert talk.recorded
    assert (found.state, found.attempt, found.error) == ("succeeded", 2, "")


@pytest.mark.parametrize("mode", MODES)
def test_a_task_that_was_sent_all_calls_keeps_their_answers_apart(mode: str, db_path: str) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("tools", tool_node(tools(mode)))
    builder.add_conditional_edges(START, lambda state: [Send("tools", state)], ["tools"])
    builder.add_edge("tools", END)
    with ResilientSaver.from_conn_string(db_path) as saver:
        made = builder.compile(checkpointer=saver)
        asked = {"messages": [calling(*PAIR)]}
        ids = {one.value: one.id for one in run(mode, made, asked)["__interrupt__"]}
        run(mode, made, Command(resume={ids["book inn?"]: "I"}))
        state = run(mode, made, Command(resume="C"))
    assert said(state) == ["car: C", "inn: I"]
