"""Runs: a recorded call answers once in a run, and what a run makes answers nothing in it."""

from __future__ import annotations

import pytest

from langgraph_resilient import runs as runs_module
from langgraph_resilient.runs import Runs


def test_a_call_is_used_once_in_a_run() -> None:
    runs = Runs()
    assert not runs.is_used("t", 1)
    assert runs.use("t", 1, b"task")
    assert runs.is_used("t", 1)
    assert not runs.use("t", 1, b"task")


def test_a_new_run_may_use_it_again() -> None:
    runs = Runs()
    runs.use("t", 1, b"task")
    runs.begin("t")
    assert not runs.is_used("t", 1)
    assert runs.use("t", 1, b"other")
    assert runs.task_of("t", 1) == b"other"


def test_threads_do_not_know_of_one_another() -> None:
    runs = Runs()
    runs.use("a", 1, b"task")
    assert not runs.is_used("b", 1)
    assert runs.task_of("b", 1) is None
    runs.begin("b")
    assert runs.is_used("a", 1)


def test_the_task_of_a_call_outlives_the_beginning_of_a_run() -> None:
    # The checkpoint that retires a call may be written after the next run has begun.
    runs = Runs()
    runs.use("t", 1, b"task")
    runs.begin("t")
    assert runs.has("t")
    assert runs.task_of("t", 1) == b"task"


def test_retired_calls_are_forgotten() -> None:
    runs = Runs()
    runs.use("t", 1, b"one")
    runs.use("t", 2, b"two")
    runs.forget("t", [2])
    assert runs.task_of("t", 1) is None
    assert runs.task_of("t", 2) == b"two"
    runs.forget("unknown", [])
    assert not runs.has("unknown")


def test_threads_that_were_not_used_lately_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "_THREADS", 2)
    runs = Runs()
    for thread_id in ("a", "b"):
        runs.use(thread_id, 1, b"task")
    runs.use("a", 2, b"task")
    runs.use("c", 1, b"task")
    assert [runs.has(thread_id) for thread_id in "abc"] == [True, False, True]


def test_a_run_knows_where_it_began_and_under_what_it_asked() -> None:
    runs = Runs()
    assert runs.head_of("t") is None
    runs.begin("t", b"head")
    assert runs.head_of("t") == b"head"
    assert runs.root_of("t", 1) is None
    runs.use("t", 1, b"task", b"root")
    assert runs.root_of("t", 1) == b"root"
    runs.begin("t", b"later")
    assert (runs.head_of("t"), runs.root_of("t", 1)) == (b"later", None)
