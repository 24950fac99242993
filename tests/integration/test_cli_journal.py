"""``langgraph-resilient journal``: what it lists and shows, and its exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from building import Thread
from journaling import ROOT, answered, begun, new_run, request, spot
from langchain_core.messages import AIMessage
from test_cli import Outcome
from test_cli import run as command

from langgraph_resilient import ResilientSaver

SECRET = "the harbour opens at nine"
SENT: dict[str, Any] = {
    "model": "m-mini",
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "seed": 7,
    "max_tokens": 99,
    "stop": ["END"],
    "tool_choice": "auto",
    "tools": [{"type": "function", "function": {"name": "pay", "parameters": {}}}],
    "response_format": {"type": "json_object"},
    "reasoning": {"effort": "low"},
}
TOLD = {"model_name": "m-mini-2024", "system_fingerprint": "fp_1", "finish_reason": "tool_calls"}
USAGE: Any = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "agent.db"
    with ResilientSaver.from_conn_string(path) as saver:
        Thread(saver, "other").put({"x": 1})
        Thread(saver, "alpha").put({"x": 1}, id=ROOT)
        said = AIMessage(
            SECRET,
            id="a",
            response_metadata={**TOLD, "id": "req_1"},
            usage_metadata=USAGE,
            tool_calls=[{"name": "pay", "args": {"euros": 5}, "id": "c"}],
        )
        answered(saver, SECRET, "alpha", said=said, **SENT)
        book, lost = saver.journal.book, begun(saver, "more", "alpha", temperature=0.5)
        new_run(saver, "alpha")
        again = book.reopen(spot("alpha"), lost, {"temperature": [0.5, 0.9]})
        assert again is not None
        book.end(again, AIMessage("went on", id="b"), streamed=True)
        book.fail(book.begin(spot("alpha"), request("fails")), ValueError(SECRET))
    return path


def journal(database: Path, *arguments: str | Path) -> Outcome:
    return command("journal", *arguments, "--db", database)


def test_list_shows_the_calls_of_a_thread(database: Path) -> None:
    found = journal(database, "list", "alpha", "--json")
    assert found.code == 0
    first, second, third = found.json["model_calls"]
    assert [call["number"] for call in (first, second, third)] == [1, 2, 3]
    assert [call["state"] for call in (first, second, third)] == ["ended", "ended", "failed"]
    assert first["parameters"] == {
        name: value
        for name, value in SENT.items()
        if name not in ("tools", "tool_choice", "response_format")
    }
    assert (first["tools"], first["tool_choice"]) == (["pay"], "auto")
    assert first["response_format"] == {"type": "json_object"}
    assert (first["model_version"], first["usage"]) == ("m-mini-2024", USAGE)
    assert (second["drift"], second["flags"]) == ({"temperature": [0.5, 0.9]}, ["streamed"])
    table = journal(database, "list", "alpha")
    assert table.code == 0
    for word in ("m-mini-2024", "temperature=0.5", "seed=7", "tool_calls", "drift", "failed"):
        assert word in table.out
    assert journal(database, "list", "other", "--json").json == {"model_calls": []}
    assert journal(database, "list", "nobody", "--json").json == {"model_calls": []}


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_what_was_said_is_shown_by_show_only(database: Path, form: tuple[str, ...]) -> None:
    assert SECRET not in journal(database, "list", "alpha", *form).out
    for number in ("1", "3"):
        assert SECRET in journal(database, "show", "alpha", number, *form).out


def test_show_tells_everything_of_a_call(database: Path) -> None:
    found = journal(database, "show", "alpha", "1", "--json").json["model_call"]
    assert found["sent"] == SENT
    assert [message["content"] for message in found["messages"]] == [SECRET]
    assert (found["answer"]["content"], found["answer"]["id"]) == (SECRET, "a")
    assert (found["request_id"], found["system_fingerprint"]) == ("req_1", "fp_1")
    text = journal(database, "show", "alpha", "1").out
    lines = {line.partition("  ")[0]: line.partition("  ")[2].strip() for line in text.splitlines()}
    wanted = {
        "temperature": "0.5",
        "top_p": "0.9",
        "top_k": "40",
        "seed": "7",
        "max_tokens": "99",
        "stop": '["END"]',
        "tool_choice": "auto",
        "tools": "pay",
        "reasoning": '{"effort": "low"}',
        "model version": "m-mini-2024",
        "fingerprint": "fp_1",
        "finish reason": "tool_calls",
        "request id": "req_1",
    }
    assert {name: lines[name] for name in wanted} == wanted
    assert 'pay({"euros": 5})' in text
    drifted = journal(database, "show", "alpha", "2").out
    assert "drift: temperature was 0.5, the code has 0.9 since" in drifted
    assert "ValueError" in journal(database, "show", "alpha", "3").out


@pytest.mark.parametrize(("thread", "number"), [("alpha", "9"), ("nobody", "1")])
def test_a_call_that_is_not_there_is_said_so(database: Path, thread: str, number: str) -> None:
    found = journal(database, "show", thread, number)
    assert found.code == 1
    assert "journal list" in found.err
