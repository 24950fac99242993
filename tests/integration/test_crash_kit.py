"""The crash kit: it finds what a crash does to a graph, and finds nothing where nothing is."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from crashable import INPUT, Factory
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

from langgraph_resilient import ConfigurationError
from langgraph_resilient.testing import (
    POINTS,
    EffectLog,
    Kill,
    SweepReport,
    assert_crash_safe,
    crash_sweep,
)
from langgraph_resilient.testing.life import Tokens, _unequal

EFFECT = ("tool.before", "effect.after")
ONLY_RESUMED = {
    "ledger.replay",
    "ledger.resolve.before",
    "ledger.resolve.after",
    "lease.renew.before",
    "lease.renew.after",
    "answer",
}
"""Moments that a short undisturbed run does not come by."""


@pytest.fixture
def log(tmp_path: Path) -> EffectLog:
    return EffectLog(tmp_path / "effects")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> SweepReport:
    """An agent with recorded model and tool, killed once at each of its moments."""
    folder = tmp_path_factory.mktemp("whole")
    log = EffectLog(folder / "effects")
    return crash_sweep(Factory(log=log), INPUT, effects=log, most=1, folder=folder)


def only(report: SweepReport) -> Kill:
    [kill] = report.kills
    return kill


# --- an agent that is safe ------------------------------------------------------------------


def test_a_recorded_agent_is_safe_wherever_it_is_killed(whole: SweepReport) -> None:
    assert whole.ok, whole.table()
    assert all(kill.outcome == "resumed" for kill in whole.kills)
    assert sum(kill.questions for kill in whole.kills) >= 2


def test_every_moment_is_found_but_those_of_a_resumed_run(whole: SweepReport) -> None:
    assert {kill.point for kill in whole.kills} == set(POINTS) - ONLY_RESUMED


def test_a_report_tells_what_the_undisturbed_run_did(whole: SweepReport) -> None:
    assert whole.effects == {"mail": 1}
    assert [message["content"] for message in whole.state["messages"]] == [
        "tell Ann",
        "",
        "mailed Ann",
        "It is sent.",
    ]
    assert whole.hits["sync"]["stream.chunk.after"] >= 4


def test_a_report_is_json_and_a_table(whole: SweepReport) -> None:
    read = json.loads(whole.to_json(indent=1))
    assert read["ok"] is True
    assert [kill["point"] for kill in read["kills"]] == [kill.point for kill in whole.kills]
    last = whole.table().splitlines()[-1].split()
    assert last[:5] == ["all", str(len(whole.kills)), str(len(whole.kills)), "0", "0"]


def test_coroutines_are_swept_too(log: EffectLog) -> None:
    report = crash_sweep(
        Factory(log=log),
        INPUT,
        effects=log,
        mode="ainvoke",
        durability="async",
        points=[*EFFECT, "put_writes.commit", "ledger.settle.after"],
        most=1,
    )
    assert report.ok, report.table()
    assert {kill.durability for kill in report.kills} == {"async"}


@pytest.mark.parametrize(
    ("mode", "points"),
    [
        ("invoke", ["put_writes.*", "ledger.*", "journal.*", "lease.*"]),
        ("ainvoke", ["put.*", "tool.*", "lease.*"]),
    ],
)
def test_a_guarded_graph_is_as_safe(log: EffectLog, mode: Any, points: Any) -> None:
    factory = Factory(log=log, is_guarded=True)
    report = assert_crash_safe(factory, INPUT, effects=log, mode=mode, points=points, most=1)
    assert len(report.kills) > 5


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_answers_of_an_agent_are_cut_in_the_middle(log: EffectLog, mode: Any) -> None:
    factory = Factory(log=log, is_agent=True)
    report = crash_sweep(
        factory, INPUT, effects=log, mode=mode, points=["stream.chunk.after", "tool.after"]
    )
    assert report.ok, report.table()
    assert report.hits["sync"]["stream.chunk.after"] >= 4
    assert sum(kill.questions for kill in report.kills) == 1


def test_a_child_may_be_spawned(log: EffectLog) -> None:
    factory = Factory(log=log)
    report = crash_sweep(factory, INPUT, effects=log, points=["effect.after"], start="spawn")
    assert report.ok, report.table()
    assert only(report).questions == 1


def test_a_point_of_ones_own_is_killed_at(log: EffectLog) -> None:
    factory = Factory(log=log, body="pointed")
    kill = only(assert_crash_safe(factory, INPUT, effects=log, points=["mail.*"]))
    assert (kill.point, kill.outcome) == ("mail.half", "resumed")


def test_a_run_may_be_killed_while_a_crash_is_cleared_up(log: EffectLog) -> None:
    report = crash_sweep(
        Factory(log=log),
        INPUT,
        effects=log,
        first=[("effect.after", 1)],
        points=["answer", "ledger.resolve.*", "ledger.settle.*"],
    )
    assert report.ok, report.table()
    points = [kill.point for kill in report.kills]
    assert set(points) == {"ledger.resolve.before", "ledger.resolve.after", "answer"}
    assert points.count("ledger.resolve.before") >= 2  # it becomes unknown, then somebody decides
    assert {kill.outcome for kill in report.kills} == {"resumed"}
    assert str(report.kills[-1]).startswith("effect.after * 1 > answer * 1 (sync): resumed")
    assert json.loads(report.to_json())["kills"][0]["first"] == [["effect.after", 1]]


def test_what_must_come_first_must_come(log: EffectLog) -> None:
    with pytest.raises(ConfigurationError, match=r"first=tool\.after \* 7.*one of them came"):
        crash_sweep(Factory(log=log), INPUT, effects=log, first=[("tool.after", 7)])


def test_an_operator_may_decide_before_a_run_is_resumed(log: EffectLog) -> None:
    def decide(saver: Any) -> None:
        for entry in saver.ledger.unknown():
            saver.ledger.resolve(entry.key, "succeeded", result="mailed Ann", by="op")

    report = crash_sweep(
        Factory(log=log), INPUT, effects=log, points=["effect.after"], before_resume=decide
    )
    assert report.ok, report.table()
    assert (only(report).questions, only(report).replayed) == (0, 1)


def test_only_some_moments_are_killed_at(log: EffectLog, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    report = crash_sweep(
        Factory(log=log),
        INPUT,
        effects=log,
        only=lambda point, hit: point == "put.after" and hit in (1, 3),
    )
    assert [kill.moment for kill in report.kills] == [("put.after", 1), ("put.after", 3)]
    assert "crash_sweep, kill 2 of 2: put.after * 3 (sync): resumed" in caplog.messages


def test_a_check_of_ones_own(log: EffectLog) -> None:
    def check(saver: Any, values: Any) -> list[str]:
        asked = [entry for entry in saver.ledger.entries() if entry.history]
        return [f"{entry.tool} has a history" for entry in asked]

    report = crash_sweep(
        Factory(log=log), INPUT, effects=log, check=check, points=["put.after", "tool.after"]
    )
    assert [kill.moment for kill in report.failures] == [("tool.after", 1)]
    assert report.failures[0].problems == ["mail has a history"]


def test_effects_may_be_counted_elsewhere(log: EffectLog) -> None:
    """What is given counts from the beginning of time; a human knows the outcome."""
    answer = {"action": "succeeded", "result": "mailed Ann"}
    report = crash_sweep(
        Factory(log=log),
        INPUT,
        effects=log.counts,
        answer=lambda question: answer,
        points=["effect.after"],
    )
    assert report.ok, report.table()
    assert report.effects == {"mail": 1}
    assert log.counts()["mail"] == 3  # of two undisturbed runs and one that was killed


# --- harm -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["invoke", "ainvoke"])
def test_a_plain_saver_repeats_effects(log: EffectLog, mode: Any) -> None:
    saver: Any = SqliteSaver if mode == "invoke" else AsyncSqliteSaver
    report = crash_sweep(
        Factory(log=log, recorded=False),
        INPUT,
        effects=log,
        saver=saver.from_conn_string,
        mode=mode,
        points=["tool.after"],
    )
    assert not report.ok
    assert only(report).repeated == {"mail": 1}
    assert "mail was repeated 1x" in report.table()


def test_what_fails_says_so_as_an_assertion(log: EffectLog) -> None:
    factory = Factory(log=log, recorded=False)
    with pytest.raises(AssertionError, match=r"1 of 1 kills did harm(.|\n)*mail was repeated"):
        assert_crash_safe(factory, INPUT, effects=log, points=["tool.after"])


def test_a_node_that_forgets_to_forget_is_found(log: EffectLog) -> None:
    """It puts the pieces of an answer that was begun anew behind those of the one that was cut."""
    factory = Factory(log=log, careless=True)
    kill = only(crash_sweep(factory, INPUT, effects=log, points=["stream.chunk.after"], most=1))
    assert kill.repeated == {"mail": 1}
    assert "state.values.messages[1].calls has 2 items; undisturbed it has 1" in kill.differences


def test_a_wrong_answer_loses_an_effect(log: EffectLog) -> None:
    said = {"action": "succeeded", "result": "mailed Ann"}
    kill = only(
        crash_sweep(
            Factory(log=log), INPUT, effects=log, points=["tool.before"], answer=lambda _: said
        )
    )
    assert (kill.lost, kill.repeated, kill.ok) == ({"mail": 1}, {}, False)


def test_another_result_is_another_state(log: EffectLog) -> None:
    said = {"action": "succeeded", "result": "nobody knows"}
    kill = only(
        crash_sweep(
            Factory(log=log), INPUT, effects=log, points=["tool.after"], answer=lambda _: said
        )
    )
    [difference] = kill.differences
    assert difference == (
        "state.values.messages[2].content is 'nobody knows'; undisturbed it is 'mailed Ann'"
    )


def test_what_a_human_lets_run_again_is_told_apart(log: EffectLog) -> None:
    report = crash_sweep(
        Factory(log=log), INPUT, effects=log, points=["tool.after"], answer=lambda _: "retry"
    )
    assert only(report).allowed == {"mail": 1}
    assert report.ok


def test_a_pure_call_may_be_repeated(log: EffectLog) -> None:
    report = crash_sweep(Factory(log=log, kind="pure"), INPUT, effects=log, points=["tool.after"])
    kill = only(report)
    assert (kill.allowed, kill.repeated, kill.questions) == ({"mail": 1}, {}, 0)
    assert report.ok


def test_so_may_what_the_test_says(log: EffectLog) -> None:
    report = crash_sweep(
        Factory(log=log, recorded=False),
        INPUT,
        effects=log,
        points=["tool.after"],
        may_repeat=["mail"],
    )
    assert report.ok
    assert only(report).allowed == {"mail": 1}


def test_what_a_finished_run_does_again_is_found(log: EffectLog) -> None:
    def factory(saver: Any) -> Any:
        log.record("opened")
        return asking(saver)

    kill = only(
        crash_sweep(
            factory,
            {"said": ""},
            effects=log,
            points=["put.after"],
            most=1,
            answer=lambda _: "Ann",
            may_repeat=["opened"],
        )
    )
    assert kill.problems == ["resumed once more, there were more effects: {'opened': 1}"]
    assert not kill.ok


def test_what_was_shown_must_begin_the_message(file_saver: Any) -> None:
    emit = file_saver.emitter("t")
    for token in ("Once ", "upon"):
        emit(token)
    [id] = {piece.message_id for piece in file_saver.stream("t")}
    tokens = Tokens(file_saver, "t", fresh=False)
    assert tokens.faults([AIMessage("Once upon a time", id=id), AIMessage("x", id="y")]) == []
    [fault] = tokens.faults([AIMessage("Once more", id=id)])
    assert fault == "'Once upon' was shown of a message that is now 'Once more'"


def test_the_recorded_result_must_be_the_one_in_the_state() -> None:
    recorded = ToolMessage("sent", tool_call_id="c1")
    entry = SimpleNamespace(state="succeeded", tool="mail", result=recorded)
    assert _unequal([entry], [recorded]) == []
    assert _unequal([entry], []) == []  # the history was cut
    [fault] = _unequal([entry], [ToolMessage("lost", tool_call_id="c1")])
    assert fault == "the recorded result of 'mail' is not the one in the state"


# --- questions ------------------------------------------------------------------------------


def test_without_a_log_nobody_can_answer(log: EffectLog) -> None:
    kill = only(crash_sweep(Factory(log=log), INPUT, points=["tool.before"]))
    assert (kill.outcome, kill.ok) == ("failed", False)
    assert "nobody can say what became of it" in kill.problems[0]


def test_the_log_knows_what_the_tool_would_have_said(log: EffectLog) -> None:
    """A receipt that is drawn anew is left out of the comparison, by the test."""
    report = crash_sweep(
        Factory(log=log, body="keyed"),
        INPUT,
        effects=log,
        points=["effect.after"],
        normalize=lambda values: [str(one.text)[:8] for one in values["messages"]],
    )
    assert report.ok, report.table()
    assert only(report).questions == 1
    assert report.state[2] == "receipt "


def test_half_a_call_is_no_call(log: EffectLog) -> None:
    """A tool with two effects cannot be saved; one whose effects are steps can."""
    points = ["effect.after"]
    report = crash_sweep(Factory(log=log, body="twice"), INPUT, effects=log, points=points)
    first, second = report.kills
    assert "make each effect a step with once()" in first.problems[0]
    assert second.ok, second
    assert not report.ok


def test_steps_are_safe_between_them(log: EffectLog) -> None:
    report = crash_sweep(
        Factory(log=log, body="steps"), INPUT, effects=log, points=["ledger.settle.after"]
    )
    assert report.ok, report.table()
    assert len(report.kills) == 3


class Asking(TypedDict):
    said: str


def asking(saver: Any) -> Any:
    builder = StateGraph(Asking)
    builder.add_node("ask", lambda state: {"said": interrupt("who?")})
    builder.add_edge(START, "ask")
    builder.add_edge("ask", END)
    return builder.compile(checkpointer=saver)


async def asking_soon(saver: Any) -> Any:
    await asyncio.sleep(0)
    return asking(saver)


def test_a_graph_may_be_made_by_a_coroutine() -> None:
    report = crash_sweep(asking_soon, {"said": ""}, points=["put.after"], most=1, mode="ainvoke")
    assert report.ok, report.table()
    with pytest.raises(ConfigurationError, match="this needs coroutines"):
        crash_sweep(asking_soon, {"said": ""})


@pytest.mark.parametrize("given", [None, "Ann"])
def test_a_graph_may_ask_by_itself(given: str | None) -> None:
    report = crash_sweep(asking, {"said": ""}, points=["put.after"], most=1, answer=lambda _: given)
    assert report.ok, report.table()
    assert report.state == {"said": given or ""}


# --- what cannot be swept -------------------------------------------------------------------


def test_a_graph_of_chance_is_refused(log: EffectLog) -> None:
    with pytest.raises(ConfigurationError, match=re.escape("state.values.messages[2].content is")):
        crash_sweep(Factory(log=log, body="dice"), INPUT, effects=log)


def test_a_graph_that_fails_undisturbed_is_refused(log: EffectLog) -> None:
    with pytest.raises(ConfigurationError, match="ZeroDivisionError: Ann"):
        crash_sweep(Factory(log=log, body="broken"), INPUT, effects=log)


def test_an_unknown_point_is_refused(log: EffectLog) -> None:
    with pytest.raises(ConfigurationError, match=r"'putt' fits no fault point"):
        crash_sweep(asking, {"said": ""}, points=["putt"])


def test_a_run_that_comes_to_no_end_is_ended(log: EffectLog) -> None:
    factory = Factory(log=log, body="slow_again", kind="pure")
    report = crash_sweep(factory, INPUT, effects=log, points=["tool.after"], timeout=3)
    assert (only(report).outcome, report.ok) == ("hung", False)


def test_nothing_killed_is_nothing_proved() -> None:
    report = crash_sweep(asking, {"said": ""}, points=["tool.before"])
    assert (report.kills, report.ok) == ([], False)
    with pytest.raises(AssertionError, match="nothing was killed"):
        assert_crash_safe(asking, {"said": ""}, points=["tool.before"])


def test_this_process_is_left_alone(whole: SweepReport, tmp_path: Path) -> None:
    """Moments are watched in children only: here nothing counts and nothing is patched."""
    from langgraph_resilient import ResilientSaver
    from langgraph_resilient.stream.buffer import StreamBuffer
    from langgraph_resilient.testing import faults

    assert faults._active is None
    assert not hasattr(ResilientSaver.put, "__wrapped__")
    assert not hasattr(StreamBuffer.reset, "__wrapped__")


def test_a_sweep_works_inside_a_running_loop(log: EffectLog) -> None:
    async def main() -> SweepReport:
        factory = Factory(log=log)
        return crash_sweep(factory, INPUT, effects=log, mode="ainvoke", points=["effect.before"])

    assert asyncio.run(main()).ok


def test_databases_are_removed(tmp_path: Path, whole: SweepReport) -> None:
    crash_sweep(asking, {"said": ""}, points=["put.after"], most=1, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
