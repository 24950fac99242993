"""The command line: what it prints, its exit codes, and that Ctrl-C leaves the file sound."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from typer.testing import CliRunner

from langgraph_resilient import Cipher, ResilientSaver
from langgraph_resilient.cli.app import app
from langgraph_resilient.cli.output import size

ROOT = Path(__file__).resolve().parents[2]
SECRET = "the harbour opens at nine"

Arguments = tuple["str | Path", ...]


class Outcome:
    """What one run of the command left: exit code and both streams."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run(*arguments: str | Path, env: dict[str, str] | None = None) -> Outcome:
    """The command in this process."""
    result = CliRunner().invoke(app, [str(item) for item in arguments], env=env)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


def spawn(arguments: Sequence[str], **more: Any) -> subprocess.Popen[bytes]:
    """The command as a process of its own, with this tree's package."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    command = [sys.executable, "-m", "langgraph_resilient.cli", *arguments]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, **more)


def build_graph(saver: Any) -> Any:
    """Two nodes; the second stops with an interrupt."""

    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(SECRET, id="answer")]}

    def confirm(state: MessagesState) -> dict[str, Any]:
        interrupt("go on?")
        return {}

    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_node("confirm", confirm)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", "confirm")
    return builder.compile(checkpointer=saver)


def fill(saver: Any, *threads: str) -> None:
    graph = build_graph(saver)
    for thread in threads:
        inputs = {"messages": [HumanMessage("When does it open?", id="question")]}
        graph.invoke(inputs, {"configurable": {"thread_id": thread}})


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Two threads that wait at an interrupt."""
    path = tmp_path / "agent.db"
    with ResilientSaver.from_conn_string(path) as saver:
        fill(saver, "alpha", "beta")
    return path


@pytest.fixture
def old_database(tmp_path: Path) -> Path:
    """A file that SqliteSaver wrote."""
    path = tmp_path / "old.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        fill(saver, "alpha", "beta")
    return path


# --- reading --------------------------------------------------------------------------------


def test_threads_lists_every_thread(database: Path) -> None:
    listed = run("threads", "--db", database, "--json").json["threads"]
    assert {item["thread_id"]: item["checkpoints"] for item in listed} == {"alpha": 3, "beta": 3}
    table = run("threads", "--db", database)
    assert table.code == 0
    assert "alpha" in table.out
    assert "beta" in table.out


def test_threads_of_a_sqlitesaver_file_are_listed_too(old_database: Path) -> None:
    listed = run("threads", "--db", old_database, "--json").json["threads"]
    assert {(item["thread_id"], item["source"]) for item in listed} == {
        ("alpha", "sqlite"),
        ("beta", "sqlite"),
    }


def test_show_lists_checkpoints_newest_first_with_what_is_due(database: Path) -> None:
    shown = run("show", "alpha", "--db", database, "--json").json
    assert [item["step"] for item in shown["checkpoints"]] == [1, 0, -1]
    newest = shown["checkpoints"][0]
    assert newest["next"] == ["confirm"]
    assert newest["waiting"] == ["interrupt"]
    assert newest["messages"] == 2
    assert newest["bytes"] > shown["checkpoints"][1]["bytes"] > 0
    assert newest["parent_checkpoint_id"] == shown["checkpoints"][1]["checkpoint_id"]
    assert shown["more"] is False


def test_show_limits_and_says_that_there_is_more(database: Path) -> None:
    shown = run("show", "alpha", "--db", database, "--limit", "1", "--json").json
    assert len(shown["checkpoints"]) == 1
    assert shown["more"] is True
    assert "--limit" in run("show", "alpha", "--db", database, "--limit", "1").err


def test_show_of_a_checkpoint_lists_values_and_messages(database: Path) -> None:
    newest = run("show", "alpha", "--db", database, "--json").json["checkpoints"][0]
    arguments: Arguments = ("show", "alpha", "--db", database, "--checkpoint")
    arguments = (*arguments, newest["checkpoint_id"])
    shown = run(*arguments, "--json").json
    assert shown["checkpoint"] == newest
    assert [(item["type"], item["id"]) for item in shown["messages"]] == [
        ("human", "question"),
        ("ai", "answer"),
    ]
    assert run(*arguments).code == 0


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_content_is_shown_only_on_request(database: Path, form: tuple[str, ...]) -> None:
    arguments: Arguments = ("show", "alpha", "--db", database, "--checkpoint", "latest", *form)
    assert SECRET not in run(*arguments).out
    assert SECRET not in run("show", "alpha", "--db", database, *form).out
    assert SECRET in run(*arguments, "--content").out


def test_unknown_threads_and_checkpoints_are_findings(database: Path) -> None:
    for arguments in (["show", "gamma"], ["show", "alpha", "--checkpoint", "nope"]):
        outcome = run(*arguments, "--db", database)
        assert (outcome.code, outcome.out) == (1, "")
        assert "there is no checkpoint" in outcome.err


def test_stats_counts_what_is_there(database: Path) -> None:
    counted = run("stats", "--db", database, "--json").json
    assert (counted["threads"], counted["checkpoints"]) == (2, 6)
    assert run("stats", "--db", database).code == 0


# --- verifying ------------------------------------------------------------------------------


def test_verify_of_a_sound_file_is_ok(database: Path) -> None:
    outcome = run("verify", "--db", database, "--json")
    assert (outcome.code, outcome.json["ok"], outcome.json["findings"]) == (0, True, [])
    assert "all is well" in run("verify", "--db", database).out


def test_verify_of_a_damaged_file_lists_the_findings(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("DELETE FROM resilient_blobs")
    connection.close()
    outcome = run("verify", "--db", database, "--json")
    assert (outcome.code, outcome.json["ok"]) == (1, False)
    assert outcome.json["findings"]
    table = run("verify", "--db", database)
    assert table.code == 1
    assert "findings" in table.out


def test_verify_of_a_file_too_damaged_to_open_is_a_finding(database: Path) -> None:
    os.truncate(database, database.stat().st_size // 2)
    outcome = run("verify", "--db", database, "--json")
    assert (outcome.code, outcome.json["ok"]) == (1, False)
    assert outcome.json["findings"]
    assert run("threads", "--db", database).code == 3


# --- moving ---------------------------------------------------------------------------------


def test_migrate_moves_and_drops_on_request(old_database: Path) -> None:
    moved = run("migrate", "--db", old_database, "--json").json
    assert (moved["threads"], moved["checkpoints"]) == (2, 6)
    dropped = run("migrate", "--db", old_database, "--drop", "--json").json
    assert (dropped["threads"], dropped["verified"], dropped["dropped"]) == (0, 2, 2)
    listed = run("threads", "--db", old_database, "--json").json["threads"]
    assert {item["source"] for item in listed} == {"resilient"}


def test_migrate_of_one_thread_leaves_the_others(old_database: Path) -> None:
    assert run("migrate", "--thread", "beta", "--db", old_database, "--json").json["threads"] == 1
    listed = run("threads", "--db", old_database, "--json").json["threads"]
    assert {item["thread_id"]: item["source"] for item in listed} == {
        "alpha": "sqlite",
        "beta": "resilient",
    }


def test_export_writes_a_file_that_sqlitesaver_reads(database: Path, tmp_path: Path) -> None:
    target = tmp_path / "plain.db"
    assert run("export", target, "--db", database, "--json").json["threads"] == 2
    with SqliteSaver.from_conn_string(str(target)) as saver:
        state = build_graph(saver).get_state({"configurable": {"thread_id": "beta"}})
    assert state.values["messages"][-1].content == SECRET
    assert state.next == ("confirm",)


# --- which database -------------------------------------------------------------------------


def test_the_database_is_named_before_after_or_in_the_environment(database: Path) -> None:
    elsewhere = {"LANGGRAPH_RESILIENT_DB": str(database.with_name("none.db"))}
    here = {"LANGGRAPH_RESILIENT_DB": str(database)}
    assert run("threads", env=here).code == 0
    assert run("--db", database, "threads", env=elsewhere).code == 0
    assert run("threads", "--db", database, env=elsewhere).code == 0
    assert run("--db", database.with_name("none.db"), "threads", "--db", database).code == 0


def test_a_missing_file_is_an_error_and_is_not_created(tmp_path: Path) -> None:
    path = tmp_path / "none.db"
    outcome = run("threads", "--db", path)
    assert (outcome.code, outcome.out) == (3, "")
    assert str(path) in outcome.err
    assert not path.exists()


def test_a_file_that_is_no_database_is_an_error_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_bytes(b"this is no database, only some text that is long enough" * 100)
    outcome = run("stats", "--db", path)
    assert outcome.code == 3
    assert outcome.err.startswith("langgraph-resilient: ")


@pytest.mark.parametrize("text", [b"raw", b"hex"])
def test_an_encrypted_file_opens_with_its_key_only(tmp_path: Path, text: bytes) -> None:
    key = bytes(range(32))
    path, key_file = tmp_path / "secret.db", tmp_path / "key"
    key_file.write_bytes(key if text == b"raw" else key.hex().encode() + b"\n")
    with ResilientSaver.from_conn_string(path, cipher=Cipher(key)) as saver:
        fill(saver, "alpha")
    arguments: Arguments = ("show", "alpha", "--db", path, "--content")
    assert run(*arguments).code == 3
    assert SECRET in run(*arguments, "--cipher-key-file", key_file).out
    assert SECRET in run("--cipher-key-file", key_file, *arguments).out
    environment = {"LANGGRAPH_RESILIENT_CIPHER_KEY_FILE": str(key_file)}
    assert SECRET in run(*arguments, env=environment).out


def test_a_sealed_file_is_read_with_its_integrity_key(tmp_path: Path) -> None:
    path, key_file = tmp_path / "sealed.db", tmp_path / "key"
    key_file.write_text("11" * 32)
    with ResilientSaver.from_conn_string(path, integrity_key=b"\x11" * 32) as saver:
        fill(saver, "alpha")
    assert run("verify", "--db", path, "--integrity-key-file", key_file).code == 0
    key_file.write_text("22" * 32)
    assert run("show", "alpha", "--db", path, "--integrity-key-file", key_file).code == 3


def test_an_unusable_key_file_is_a_usage_error(database: Path, tmp_path: Path) -> None:
    outcome = run("threads", "--db", database, "--cipher-key-file", tmp_path / "none")
    assert outcome.code == 2
    (tmp_path / "short").write_text("0102")
    assert run("threads", "--db", database, "--cipher-key-file", tmp_path / "short").code == 2


# --- the program ----------------------------------------------------------------------------


def test_an_unknown_option_is_a_usage_error() -> None:
    assert run("threads", "--nonsense").code == 2
    assert run("nonsense").code == 2


def test_without_the_extra_the_command_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['typer'] = None; from langgraph_resilient.cli import main; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert 'pip install "langgraph-resilient[cli]"' in ended.stderr


def test_the_demo_prints_one_json_object() -> None:
    child = spawn(["demo", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, _ = child.communicate(timeout=120)
    report = json.loads(out)
    assert child.returncode == 0
    assert report["equal"] is True
    assert report["kills"] == 5
    assert (report["repeated_model_calls"], report["tokens_saved_ratio"]) == (0, 1.0)
    assert set(report["stream"]) >= {"seen_before", "replayed", "continued", "final"}
    assert (report["stream"]["prefix_kept"], report["stream"]["message_ids"]) == (True, 1)
    assert report["emails_received"] == 1
    assert (report["emails"], report["emails_sqlitesaver"]) == (1, 2)
    assert report["question"]["kind"] == "unknown_outcome"
    assert report["answer"]["action"] == "succeeded"
    assert {
        "repeated_tool_calls",
        "repeated_model_calls",
        "tokens_saved_ratio",
        "resume_ms",
        "start_ms",
        "bytes",
        "bytes_sqlitesaver",
    } <= set(report)


def test_the_demo_shows_the_run_to_people() -> None:
    outcome = run("demo", "--durability", "sync", "--latency", "0")
    assert outcome.code == 0
    assert re.search(r"summarise .* 1 .* 1 ", outcome.out)
    assert "ran again" not in outcome.out
    assert "nothing taken back, nothing twice" in outcome.out
    assert "equal (9 messages)" in outcome.out
    assert "unknown_outcome" in outcome.out
    assert re.search(r"retry: the mail server has no such mail .* 1 ", outcome.out)
    assert re.search(r"SqliteSaver .* no .* 2 ", outcome.out)


def test_the_demo_replays_a_file(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    path.write_text(json.dumps({"id": "one", "messages": messages}))
    outcome = run("demo", "--conversation", path, "--kills", "1")
    assert outcome.code == 0
    assert "1 conversations, 2 messages" in outcome.out
    assert run("demo", "--conversation", tmp_path / "none.jsonl").code == 2


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_500_000, "2.5 MB"), (10**13, "10.0 TB")],
)
def test_sizes_are_shown_in_powers_of_ten(count: int, text: str) -> None:
    assert size(count) == text


# --- Ctrl-C ---------------------------------------------------------------------------------

THREADS = 400


@pytest.fixture(scope="module")
def large_old_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SqliteSaver file whose move takes some seconds."""
    path = tmp_path_factory.mktemp("large") / "old.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        saver.setup()
        saver.conn.execute("PRAGMA synchronous = OFF")
        for number in range(THREADS):
            config: Any = {"configurable": {"thread_id": f"t{number}", "checkpoint_ns": ""}}
            for step in range(5):
                checkpoint = empty_checkpoint()
                text = f"thread {number} says {step} " * 50
                checkpoint["channel_values"] = {"text": text}
                checkpoint["channel_versions"] = {"text": step + 1}
                config = saver.put(
                    config,
                    checkpoint,
                    {"source": "loop", "step": step, "parents": {}},
                    {"text": step + 1},
                )
    return path


def interrupt_when_under_way(arguments: Sequence[str]) -> int:
    """Run the command on a terminal, press Ctrl-C when its bar has moved; its exit code."""
    parent, child_end = pty.openpty()
    child = spawn(arguments, stdout=subprocess.DEVNULL, stderr=child_end)
    os.close(child_end)
    seen = b""
    interrupted = False
    try:
        while chunk := _read(parent):
            seen += chunk
            if not interrupted and re.search(rb"[1-9]\d*/\d+", seen):
                child.send_signal(signal.SIGINT)
                interrupted = True
        code = child.wait(timeout=60)
    finally:
        os.close(parent)
        if child.poll() is None:
            child.kill()
            child.wait()
    assert interrupted, seen
    assert b"Traceback" not in seen, seen
    return code


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux's word for: the other end of the terminal is closed
        return b""


def copy_database(source: Path, target: Path) -> Path:
    target.write_bytes(source.read_bytes())
    return target


def test_ctrl_c_during_migrate_leaves_a_sound_file(
    large_old_database: Path, tmp_path: Path
) -> None:
    path = copy_database(large_old_database, tmp_path / "agent.db")
    assert interrupt_when_under_way(["migrate", "--db", str(path)]) == 130
    assert run("verify", "--db", path).code == 0
    listed = run("threads", "--db", path, "--json").json["threads"]
    assert len(listed) == THREADS
    assert {item["checkpoints"] for item in listed} == {5}
    assert run("migrate", "--db", path, "--drop").code == 0
    assert run("verify", "--db", path).code == 0
    listed = run("threads", "--db", path, "--json").json["threads"]
    assert {(item["checkpoints"], item["source"]) for item in listed} == {(5, "resilient")}


def test_ctrl_c_during_export_leaves_a_sound_file(large_old_database: Path, tmp_path: Path) -> None:
    path = copy_database(large_old_database, tmp_path / "agent.db")
    target = tmp_path / "plain.db"
    assert run("migrate", "--db", path, "--drop").code == 0
    assert interrupt_when_under_way(["export", str(target), "--db", str(path)]) == 130
    assert run("verify", "--db", path).code == 0
    again = tmp_path / "again.db"
    assert run("export", again, "--db", path, "--json").json["threads"] == THREADS
