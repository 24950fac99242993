"""Equal calls at once are different calls: all run, and each keeps its own result."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import KINDS, MODES, again, asking, begin, built, call, calling, replays, run, said
from building import in_child
from langchain_core.messages import AIMessage
from langchain_core.tools import tool

from langgraph_resilient import ResilientSaver, effect

ran: list[int] = []


@pytest.fixture
def saver(db_path: str) -> Iterator[ResilientSaver]:
    ran.clear()
    with ResilientSaver.from_conn_string(db_path) as opened:
        yield opened


def twins(count: int = 2) -> AIMessage:
    return calling(*(call("pay", "same", x=1) for _ in range(count)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_equal_calls_at_once_all_run_and_each_keeps_its_result(
    mode: str, kind: str, saver: Any
) -> None:
    numbers = iter(range(10))

    @tool("pay")
    def numbered(x: int) -> str:
        """Pay."""
        ran.append(x)
        return f"receipt {next(numbers)}"

    made = built(kind, asking(*twins(3).tool_calls), [numbered], saver)
    first = said(begin(mode, made))
    assert sorted(first) == ["receipt 0", "receipt 1", "receipt 2"]
    assert said(again(mode, made)) == first
    assert len(ran) == 3
    assert replays(saver) == ["pay"] * 3


def dying(path: Path, db_path: str, kind: str, mode: str, kill: bool) -> Any:
    """An agent that makes two equal calls: the second to begin waits for the first, and dies."""
    lock = threading.Lock()
    saver = ResilientSaver.from_conn_string(db_path).__enter__()

    @tool("pay")
    @effect("idempotent")
    def counted(x: int) -> str:
        """Pay."""
        with lock, path.open("a+") as file:
            file.seek(0)
            number = len(file.readlines())
            if number == 1 and kill:
                while not any(e.state == "succeeded" for e in saver.ledger.entries("t")):
                    time.sleep(0.002)
                os.kill(os.getpid(), signal.SIGKILL)
            file.write("paid\n")
        return f"receipt {number}"

    return built(kind, asking(*twins().tool_calls), [counted], saver), saver


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_after_a_kill_between_equal_calls_only_the_missing_one_runs(
    mode: str, kind: str, db_path: str, tmp_path: Path
) -> None:
    path = tmp_path / "effects"
    path.touch()

    def body() -> None:
        made, _ = dying(path, db_path, kind, mode, kill=True)
        begin(mode, made)

    assert in_child(body) == -signal.SIGKILL
    assert path.read_text() == "paid\n"
    made, saver = dying(path, db_path, kind, mode, kill=False)
    with saver:
        receipts = said(run(mode, made))
    assert sorted(receipts) == ["receipt 0", "receipt 1"]
    assert path.read_text() == "paid\npaid\n"
