"""How the crash kit compares: what counts as equal, what as missing, what as repeated."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from pydantic import BaseModel

from langgraph_resilient import ConfigurationError
from langgraph_resilient.testing import EffectLog, Kill, SweepReport, fault_point
from langgraph_resilient.testing.effects import LoggedEffect
from langgraph_resilient.testing.faults import POINTS, Faults, chosen
from langgraph_resilient.testing.states import call_faults, differences, messages_of, plain
from langgraph_resilient.testing.sweep import _Run, compared


def asking(*ids: str) -> AIMessage:
    calls = [{"name": "mail", "args": {"to": "Ann"}, "id": id} for id in ids]
    return AIMessage("", tool_calls=calls, id=f"msg-{ids}")


class Model(BaseModel):
    one: int


@dataclass
class Fields:
    one: int


def test_messages_are_equal_without_their_ids() -> None:
    first = [asking("c1"), ToolMessage("done", tool_call_id="c1", id="a")]
    second = [asking("c2"), ToolMessage("done", tool_call_id="c2", id="b")]
    assert plain(first) == plain(second)


def test_ids_inside_of_content_do_not_count() -> None:
    first = AIMessage([{"type": "text", "text": "x", "id": "1"}, "y"])
    second = AIMessage([{"type": "text", "text": "x", "id": "2"}, "y"])
    assert plain(first) == plain(second)
    assert plain(first)["content"] == [{"type": "text", "text": "x"}, "y"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (HumanMessage("a"), AIMessage("a")),
        (ToolMessage("a", tool_call_id="1"), ToolMessage("a", tool_call_id="1", status="error")),
        (Model(one=1), Model(one=2)),
        (Model(one=1), Fields(one=1)),
        ({"a": 1}, {"a": 1, "b": None}),
        ([1, 2], [2, 1]),
        (1, True),
        (b"a", b"b"),
    ],
)
def test_what_differs_differs(one: Any, other: Any) -> None:
    assert differences(plain(one), plain(other))
    assert not differences(plain(one), plain(one))


def test_sets_have_no_order_and_objects_no_address() -> None:
    assert plain({"b", "a"}) == ["a", "b"]
    assert plain(object()) == plain(object())


def test_a_difference_says_where() -> None:
    found = differences({"a": [1, {"b": 2}], "c": 1}, {"a": [1, {"b": 3}, 4], "d": 1})
    assert found == [
        "state.a[1].b is 3; undisturbed it is 2",
        "state.a has 3 items; undisturbed it has 2",
        "state.c is missing; undisturbed it is 1",
        "state.d is 1; undisturbed there is none",
    ]


def test_each_call_has_one_tool_message() -> None:
    told = [ToolMessage("x", tool_call_id="c1"), ToolMessage("y", tool_call_id="c1")]
    assert call_faults([asking("c1"), told[0]], ended=True) == []
    assert call_faults([asking("c1", "c1"), *told], ended=True) == []
    assert call_faults([asking("c1"), *told], ended=True) == ["tool call 'c1' has 2 tool messages"]
    assert call_faults([asking("c1")], ended=False) == []
    assert call_faults([asking("c1")], ended=True) == ["tool call 'c1' has no tool message"]


def test_messages_are_found_wherever_they_are() -> None:
    values = {"a": [HumanMessage("1")], "b": {"c": (HumanMessage("2"), 3)}, "d": None}
    assert [message.content for message in messages_of(values)] == ["1", "2"]


# --- effects --------------------------------------------------------------------------------


def run(*effects: tuple[str, str | None]) -> _Run:
    log = [LoggedEffect(name=n, key=k, call=(), result=None, pid=1) for n, k in effects]
    return _Run(log=log, counts=Counter(name for name, _ in effects))


@pytest.mark.parametrize(
    ("calm", "found", "keys_hold", "repeated", "lost"),
    [
        ([("a", None)], [("a", None)], False, {}, {}),
        ([("a", None)], [("a", None)] * 2, False, {"a": 1}, {}),
        ([("a", None)], [], False, {}, {"a": 1}),
        ([("a", "1"), ("a", "2")], [("a", "8"), ("a", "9")], False, {}, {}),
        ([("a", "1"), ("a", "2")], [("a", "8"), ("a", "8")], False, {"a": 1}, {"a": 1}),
        ([("a", "1"), ("a", "1")], [("a", "8"), ("a", "8")], False, {}, {}),
        ([("a", "1"), ("a", "2")], [("a", "1"), ("a", "1")], True, {"a": 1}, {"a": 1}),
        ([("a", "1")], [("a", "1"), ("b", "1")], True, {"b": 1}, {}),
    ],
)
def test_effects_are_compared_by_name_and_key(
    calm: Any, found: Any, keys_hold: bool, repeated: Any, lost: Any
) -> None:
    assert compared(keys_hold, run(*calm), run(*found)) == (Counter(repeated), Counter(lost))


def test_a_log_keeps_what_it_was_told(tmp_path: Path) -> None:
    log = EffectLog(tmp_path / "effects")
    assert log.entries() == []
    log.record("mail", key="k1", result={"id": 1})
    log.record("mail", "k1")
    log.record("order")
    assert log.counts() == {"mail": 2, "order": 1}
    assert log.keys() == {("mail", "k1"): 2, ("order", None): 1}
    again = EffectLog(str(tmp_path / "effects"))
    assert again.entries()[0].result == {"id": 1}
    log.clear()
    log.clear()
    assert again.counts() == {}


def test_a_line_that_was_cut_did_not_happen(tmp_path: Path) -> None:
    log = EffectLog(tmp_path / "effects")
    log.record("mail")
    with log.path.open("ab") as file:
        file.write(b'{"name": "or')
    assert log.counts() == {"mail": 1}


# --- points ---------------------------------------------------------------------------------


def test_points_are_chosen_by_pattern_in_the_order_of_a_run() -> None:
    hits = {"tool.after": 1, "own": 2, "put.before": 2}
    every = [("put.before", 1), ("put.before", 2), ("tool.after", 1), ("own", 1), ("own", 2)]
    assert chosen(hits, None) == every
    assert chosen(hits, ["put*", "own"]) == [*every[:2], *every[3:]]
    assert chosen(hits, ["stream.chunk.after"]) == []
    with pytest.raises(ConfigurationError, match="fits no fault point"):
        chosen(hits, ["puts"])


def test_a_point_does_nothing_outside_a_sweep() -> None:
    fault_point("anything")


def test_moments_are_counted() -> None:
    faults = Faults("put.after", 2)
    assert not faults.due("put.after")
    assert not faults.due("put.before")
    assert faults.due("put.after")
    assert not faults.due("put.after")
    assert faults.hits == {"put.after": 3, "put.before": 1}


@pytest.mark.parametrize(
    ("table", "point"),
    [
        ("resilient_checkpoints", "put.commit"),
        ("checkpoints", "put.commit"),
        ("resilient_writes", "put_writes.commit"),
        ("resilient_calls", "ledger.commit"),
        ("resilient_leases", "lease.commit"),
        ("resilient_journal", "journal.commit"),
    ],
)
def test_a_commit_is_told_by_what_was_written(table: str, point: str) -> None:
    faults = Faults()
    trace = faults.trace()
    for statement in ("BEGIN IMMEDIATE", f"INSERT INTO {table} VALUES (1)", "COMMIT", "COMMIT"):
        trace(statement)
    for statement in ("BEGIN", f"UPDATE {table} SET a = 1", "ROLLBACK", "BEGIN", "COMMIT"):
        trace(statement)
    assert faults.hits == {point: 1}
    assert point in POINTS


# --- reports --------------------------------------------------------------------------------


def test_a_report_is_good_when_every_kill_is() -> None:
    good = Kill(point="put.after", hit=1, durability="sync", allowed={"search": 1})
    late = Kill(point="put.after", hit=9, durability="sync", outcome="not reached")
    bad = Kill(point="put.after", hit=2, durability="sync", lost={"mail": 1})
    assert SweepReport(kills=[good, late]).ok
    assert not SweepReport(kills=[late]).ok
    assert not SweepReport(kills=[]).ok
    report = SweepReport(kills=[good, bad])
    assert not report.ok
    assert report.failures == [bad]
    assert report.table().splitlines()[-1] == (
        "WRONG put.after * 2 (sync): resumed; mail was lost 1x"
    )
