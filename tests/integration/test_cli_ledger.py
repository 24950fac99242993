"""``langgraph-resilient ledger``: what it lists, shows and decides, and its exit codes."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Any

import pytest
from building import Thread
from calling import answer, call, make_unknown, run
from conftest import KEY
from test_cli import Outcome
from test_cli import run as command

from langgraph_resilient import ResilientSaver
from langgraph_resilient.ledger import Entry

SECRET = "the harbour opens at nine"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Two threads; one has a call whose outcome nobody knows."""
    path = tmp_path / "agent.db"
    with ResilientSaver.from_conn_string(path) as saver:
        for name in ("alpha", "beta"):
            Thread(saver, name).put({"x": 1})
            run(
                saver,
                call(name, "done", arguments={"note": SECRET}, body=lambda now: answer(SECRET)),
            )
        make_unknown(saver, call("alpha", "lost", tool="pay", arguments={"note": SECRET}))
    return path


def ledger(database: Path, *arguments: str | Path) -> Outcome:
    return command("ledger", *arguments, "--db", database)


def entries(database: Path, thread: str | None = None) -> list[Entry]:
    with ResilientSaver.from_conn_string(database) as saver:
        return saver.ledger.entries(thread)


def lost(database: Path) -> Entry:
    return next(entry for entry in entries(database, "alpha") if entry.tool == "pay")


# --- list -----------------------------------------------------------------------------------


def test_list_shows_the_calls_of_all_threads_or_of_one(database: Path) -> None:
    every = ledger(database, "list", "--json")
    assert every.code == 0
    assert [(item["thread_id"], item["tool"], item["state"]) for item in every.json["calls"]] == [
        ("alpha", "send", "succeeded"),
        ("beta", "send", "succeeded"),
        ("alpha", "pay", "unknown"),
    ]
    one = ledger(database, "list", "beta", "--json").json["calls"]
    assert [item["thread_id"] for item in one] == ["beta"]
    assert ledger(database, "list", "nobody", "--json").json == {"calls": []}
    table = ledger(database, "list")
    assert table.code == 0
    for word in ("alpha", "beta", "pay", "unknown", lost(database).key[:16]):
        assert word in table.out
    assert "ledger resolve" in table.err
    assert "ledger resolve" not in ledger(database, "list", "beta").err


def test_list_of_unknown_outcomes_only(database: Path) -> None:
    for thread in ((), ("alpha",)):
        found = ledger(database, "list", *thread, "--unknown", "--json").json["calls"]
        assert [item["key"] for item in found] == [lost(database).key]
    assert ledger(database, "list", "beta", "--unknown", "--json").json == {"calls": []}
    assert "beta" not in ledger(database, "list", "--unknown").out


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_arguments_and_results_are_shown_by_show_only(
    database: Path, form: tuple[str, ...]
) -> None:
    assert SECRET not in ledger(database, "list", *form).out
    for entry in entries(database):
        assert SECRET in ledger(database, "show", entry.key, *form).out


# --- show -----------------------------------------------------------------------------------


def test_show_tells_everything_of_a_call(database: Path) -> None:
    entry = lost(database)
    shown = ledger(database, "show", entry.key, "--json")
    assert shown.code == 0
    found = shown.json["call"]
    assert set(found) == set(Entry.__dataclass_fields__)
    assert (found["key"], found["state"], found["version"]) == (entry.key, "unknown", 2)
    assert (found["arguments"], found["error"]) == ({"note": SECRET}, "TimeoutError: slow")
    text = ledger(database, "show", entry.key)
    for word in ("pay", "unknown", "TimeoutError: slow", SECRET, "version", "process"):
        assert word in text.out
    assert "ledger resolve" in text.err


def test_show_of_a_message_says_what_it_says(database: Path) -> None:
    done = entries(database, "beta")[0]
    found = ledger(database, "show", done.key, "--json").json["call"]
    assert (found["result"]["content"], found["result"]["type"]) == (SECRET, "tool")
    assert f"result        {SECRET}" in ledger(database, "show", done.key).out


def test_a_unique_prefix_of_a_key_is_enough(database: Path) -> None:
    key = lost(database).key
    others = [entry.key for entry in entries(database) if entry.key != key]
    length = next(n for n in range(1, 33) if not any(o.startswith(key[:n]) for o in others))
    for prefix in (key[:length], key[: length + 1].upper(), f" {key} "):
        assert ledger(database, "show", prefix, "--json").json["call"]["key"] == key


@pytest.mark.parametrize("key", ["", "zz", "*", "%", "0" * 32, "f" * 33])
def test_a_call_that_is_not_there_is_a_finding(database: Path, key: str) -> None:
    for arguments in (("show", key), ("resolve", key, "retry")):
        outcome = ledger(database, *arguments)
        assert (outcome.code, outcome.out) == (1, "")
        assert "no tool call" in outcome.err
        assert "ledger list" in outcome.err


def test_a_prefix_of_several_keys_is_a_finding(database: Path) -> None:
    with ResilientSaver.from_conn_string(database) as saver:
        for n in range(20):
            run(saver, call("many", f"c{n}"))
        keys = [entry.key for entry in saver.ledger.entries()]
    digit = next(d for d in "0123456789abcdef" if sum(key.startswith(d) for key in keys) > 1)
    outcome = ledger(database, "show", digit)
    assert (outcome.code, outcome.out) == (1, "")
    assert "several tool calls" in outcome.err


# --- resolve --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "state", "result"),
    [
        (("succeeded", "--result", "order 7"), "succeeded", "order 7"),
        (("succeeded", "--result-json", '{"order": [7]}'), "succeeded", {"order": [7]}),
        (("succeeded",), "succeeded", "A human confirmed that the call took effect."),
        (("failed", "--result", "closed"), "failed", "closed"),
        (("failed",), "failed", "The call to pay failed. looked"),
        (("retry",), "failed", None),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_resolve_decides(
    database: Path, arguments: tuple[str, ...], state: str, result: Any, form: tuple[str, ...]
) -> None:
    key = lost(database).key
    outcome = ledger(database, "resolve", key[:20], *arguments, "--reason", "looked", *form)
    assert outcome.code == 0
    found = lost(database)
    assert (found.state, found.result, found.version) == (state, result, 3)
    event = found.history[-1]
    assert (event.what, event.by, event.reason) == (arguments[0], getpass.getuser(), "looked")
    if form:
        assert outcome.json["call"]["state"] == state
        assert outcome.json["call"]["history"][-1]["by"] == getpass.getuser()
    else:
        assert key in outcome.out
        assert ("cleared to run again" in outcome.out) is (arguments[0] == "retry")


def test_who_decides_can_be_named(database: Path) -> None:
    key = lost(database).key
    assert ledger(database, "resolve", key, "retry", "--by", "Ada").code == 0
    assert lost(database).history[-1].by == "Ada"
    shown = ledger(database, "show", key)
    assert "Ada" in shown.out


def test_a_run_goes_on_with_what_was_decided(database: Path) -> None:
    ledger(database, "resolve", lost(database).key, "succeeded", "--result", "order 7")
    with ResilientSaver.from_conn_string(database) as saver:
        found = run(saver, call("alpha", "lost", tool="pay", arguments={"note": SECRET}))
    assert found == "order 7"


def test_a_call_that_has_changed_since_is_left(database: Path) -> None:
    key = lost(database).key
    outcome = ledger(database, "resolve", key, "retry", "--version", "1")
    assert (outcome.code, outcome.out) == (1, "")
    assert "look again" in outcome.err
    assert lost(database).state == "unknown"
    assert ledger(database, "resolve", key, "retry", "--version", "2").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("perhaps",), "succeeded, retry or failed"),
        (("succeeded", "--result", "x", "--result-json", "1"), "not both"),
        (("succeeded", "--result-json", "{"), "no JSON"),
    ],
)
def test_a_command_line_that_cannot_work(
    database: Path, arguments: tuple[str, ...], words: str
) -> None:
    outcome = ledger(database, "resolve", lost(database).key, *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert words in outcome.err
    assert lost(database).version == 2


def test_a_call_whose_outcome_is_known_cannot_be_decided_about(database: Path) -> None:
    done = entries(database, "beta")[0]
    outcome = ledger(database, "resolve", done.key, "retry")
    assert (outcome.code, outcome.out) == (2, "")
    assert "is succeeded" in outcome.err
    assert entries(database, "beta") == [done]


# --- beside the other commands --------------------------------------------------------------


def test_threads_and_show_mention_unknown_outcomes(database: Path) -> None:
    listed = command("threads", "--db", database, "--json").json["threads"]
    assert {item["thread_id"]: (item["calls"], item["unknown_calls"]) for item in listed} == {
        "alpha": (2, 1),
        "beta": (1, 0),
    }
    assert "unknown" in command("threads", "--db", database).out
    assert command("show", "alpha", "--db", database, "--json").json["unknown_calls"] == 1
    assert "ledger list alpha --unknown" in command("show", "alpha", "--db", database).err
    assert "ledger" not in command("show", "beta", "--db", database).err


def test_stats_counts_calls_by_state(database: Path) -> None:
    found = command("stats", "--db", database, "--json").json
    assert (found["calls"]["succeeded"], found["calls"]["unknown"]) == (2, 1)
    table = command("stats", "--db", database).out
    assert "calls unknown" in table
    assert "call bytes" in table


def test_a_protected_file_needs_its_key(tmp_path: Path) -> None:
    path, key = tmp_path / "agent.db", tmp_path / "key"
    key.write_bytes(KEY)
    with ResilientSaver.from_conn_string(path, integrity_key=KEY) as saver:
        make_unknown(saver, call())
    assert ledger(path, "list").code == 2
    found = ledger(path, "list", "--integrity-key-file", key, "--json").json["calls"]
    assert [item["state"] for item in found] == ["unknown"]
    before = command("--integrity-key-file", key, "--db", path, "ledger", "list", "--json")
    assert before.json["calls"] == found


def test_a_damaged_call_is_no_empty_list(database: Path) -> None:
    import sqlite3

    conn = sqlite3.connect(database)
    conn.execute("UPDATE resilient_calls SET state = 5 WHERE state = 2")
    conn.commit()
    conn.close()
    for arguments in (("list",), ("list", "--unknown"), ("list", "alpha")):
        outcome = ledger(database, *arguments)
        assert (outcome.code, outcome.out) == (3, "")
        assert "damaged" in outcome.err
