"""What a user may say about a tool, as an agent that uses it shows."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import (
    KINDS,
    MODES,
    again,
    answers,
    asking,
    begin,
    built,
    call,
    entry,
    run,
    said,
    states,
    where,
)
from building import in_child
from langchain_core.tools import tool
from langgraph.types import Command

from langgraph_resilient import (
    ConfigurationError,
    Done,
    NotDone,
    PreconditionFailed,
    ResilienceMiddleware,
    ResilientSaver,
    ToolPolicy,
    UnknownOutcome,
    effect,
)

ran: list[Any] = []


@pytest.fixture
def saver(db_path: str) -> Iterator[ResilientSaver]:
    ran.clear()
    with ResilientSaver.from_conn_string(db_path) as opened:
        yield opened


def lost(fails: int = 1, kind: str = "external", **policy: Any) -> Any:
    """A tool whose first answers are lost."""

    @tool
    @effect(kind, **policy)
    def pay(x: int) -> str:
        """Pay."""
        ran.append(x)
        if len(ran) <= fails:
            raise TimeoutError("no answer")
        return f"paid {x} in {len(ran)}"

    return pay


async def _aprobe(_: Any) -> Any:
    return Done("found")


PROBES = {
    "done": (lambda e: Done(f"found {e.arguments['x']}"), ["found 1"], 1),
    "true": (lambda e: True, ["The call took effect; its answer was lost."], 1),
    "not_done": (lambda e: NotDone("no such payment"), ["paid 1 in 2"], 2),
    "false": (lambda e: False, ["paid 1 in 2"], 2),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("probe", PROBES)
def test_a_probe_finds_out_at_once(mode: str, kind: str, probe: str, saver: Any) -> None:
    verify, expected, attempts = PROBES[probe]
    state = begin(mode, built(kind, asking(call("pay", x=1)), [lost(verify=verify)], saver))
    assert said(state) == expected
    assert answers(state)[0].status == "success"
    assert len(ran) == attempts


@pytest.mark.parametrize("kind", KINDS)
def test_a_probe_may_be_a_coroutine(kind: str, saver: Any) -> None:
    made = built(kind, asking(call("pay", x=1)), [lost(verify=_aprobe)], saver)
    assert said(begin("ainvoke", made)) == ["found"]
    assert entry(saver, "pay").history[-1].by == "verify"


@pytest.mark.parametrize("mode", MODES)
def test_a_probe_that_cannot_tell_leaves_the_question(mode: str, saver: Any) -> None:
    made = built("agent", asking(call("pay", x=1)), [lost(verify=lambda e: None)], saver)
    assert begin(mode, made)["__interrupt__"][0].value["kind"] == "unknown_outcome"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_on_unknown(mode: str, kind: str, saver: Any) -> None:
    def state_with(policy: str, thread: str) -> Any:
        ran.clear()
        made = built(kind, asking(call("pay", x=1)), [lost(on_unknown=policy)], saver)
        return begin(mode, made, where(thread))

    with pytest.raises(UnknownOutcome, match="ledger resolve") as caught:
        state_with("raise", "r")
    assert isinstance(caught.value.__context__, TimeoutError)
    told = answers(state_with("message", "m"))[0]
    assert (told.status, told.name) == ("error", "pay")
    assert "whether it took effect is unknown" in told.content
    assert states(saver, "m") == [("pay", "unknown")]
    assert said(state_with("retry", "t")) == ["paid 1 in 2"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_precondition_is_asked_before_another_attempt_only(
    mode: str, kind: str, saver: Any
) -> None:
    holds, looked = [False], []

    def check(found: Any) -> bool:
        looked.append(found.attempt)
        return holds[0]

    made = built(kind, asking(call("pay", x=1)), [lost(precondition=check)], saver)
    assert begin(mode, made)["__interrupt__"]
    assert looked == []
    with pytest.raises(PreconditionFailed):
        run(mode, made, Command(resume="retry"))
    assert ran == [1]
    holds[0] = True
    assert said(run(mode, made)) == ["paid 1 in 2"]
    again(mode, made)
    assert looked == [1, 1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_stale_result_of_a_pure_tool_is_made_anew(mode: str, kind: str, saver: Any) -> None:
    fresh = [True]
    policy = {"kind": "pure", "still_valid": lambda result: fresh[0]}
    made = built(kind, asking(call("pay", x=1)), [lost(0, **policy)], saver)
    begin(mode, made)
    assert said(again(mode, made)) == ["paid 1 in 1"]
    fresh[0] = False
    assert said(again(mode, made)) == ["paid 1 in 2"]


@pytest.mark.parametrize("mode", MODES)
def test_files_that_are_gone_or_changed_are_reported(
    mode: str, saver: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [tmp_path / name for name in ("kept", "changed", "gone")]

    @tool
    @effect("external", artifacts=lambda result: paths)
    def write() -> str:
        """Write."""
        for path in paths:
            path.write_text("made")
        return "written"

    made = built("agent", asking(call("write")), [write], saver)
    begin(mode, made)
    paths[1].write_text("other")
    paths[2].unlink()
    with caplog.at_level(logging.WARNING):
        assert said(again(mode, made)) == ["written"]
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert f"changed: {paths[1]}" in text
    assert f"gone: {paths[2]}" in text
    assert str(paths[0]) not in text


# --- what is definite -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_policy_may_call_an_error_definite_or_ambiguous(mode: str, saver: Any) -> None:
    definite = built("node", asking(call("pay", x=1)), [lost(definite=(TimeoutError,))], saver)
    with pytest.raises(TimeoutError):
        begin(mode, definite)
    assert said(run(mode, definite)) == ["paid 1 in 2"]

    @tool
    @effect("external", ambiguous=(KeyError,))
    def odd() -> str:
        """Odd."""
        raise KeyError("lost")

    assert begin(mode, built("node", asking(call("odd")), [odd], saver), where("o"))[
        "__interrupt__"
    ]


@pytest.mark.parametrize("said_by", ["metadata", "middleware", "effect"])
def test_every_way_to_say_idempotent(said_by: str, db_path: str, tmp_path: Path) -> None:
    path = tmp_path / "effects"

    def session(deadly: bool) -> Any:
        @tool
        def pay() -> str:
            """Pay."""
            with path.open("a") as file:
                file.write("paid\n")
            if deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            return "paid"

        if said_by == "metadata":
            pay.metadata = {"retry_safe": True}
        elif said_by == "effect":
            effect("idempotent")(pay)
        options = {"idempotent": ["pay"]} if said_by == "middleware" else {}
        with ResilientSaver.from_conn_string(db_path) as saver:
            made = built("agent", asking(call("pay")), [pay], saver, **options)
            state = begin("invoke", made) if deadly else run("invoke", made)
            assert entry(saver, "pay").effect == "idempotent"
            return said(state)

    assert in_child(lambda: session(True)) == -signal.SIGKILL
    assert session(False) == ["paid"]
    assert path.read_text() == "paid\npaid\n"


@pytest.mark.parametrize("mode", MODES)
def test_an_undeclared_tool_is_announced_once(
    mode: str, saver: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @tool("undeclared_" + mode)
    def undeclared(x: int) -> str:
        """Undeclared."""
        return "ok"

    calls = [call(undeclared.name, str(x), x=x) for x in range(3)]
    with caplog.at_level(logging.WARNING):
        begin(mode, built("agent", asking(*calls), [undeclared], saver))
    assert sum("treated as external" in r.getMessage() for r in caplog.records) == 1


def test_contradictions_are_refused() -> None:
    with pytest.raises(ConfigurationError):
        ResilienceMiddleware(pure=["a"], idempotent=["a"])
    with pytest.raises(ConfigurationError):
        ToolPolicy(effect="harmless")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError):
        ToolPolicy(on_unknown="guess")  # type: ignore[arg-type]
