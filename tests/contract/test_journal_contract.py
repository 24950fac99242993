"""The journal on every backend and with every protection: rows, retiring, streams, retention."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from building import Thread, checkpoint_id_of, config
from calling import answer, call, run
from conftest import SEALED, SaverFactory
from golden.make import GUARDS as GOLDEN
from golden.make import HERE
from journaling import (
    ROOT,
    TASK,
    answered,
    begun,
    count,
    new_run,
    replayed,
    request,
    show,
    shown,
    spot,
    states,
    streaming,
)
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from serving import in_words_of

from langgraph_resilient import ResilientSaver
from langgraph_resilient.errors import CallNotFound, DataCorrupt, LostOwnership, ResilientError
from langgraph_resilient.journal.matching import Match
from langgraph_resilient.maintenance import verify

MORE_GUARDS = [SEALED]
LONG = "a long line of words that are stored once " * 300
CALL: Any = {"name": "pay", "args": '{"euros": 5}', "id": "c", "index": 0}
CHUNK = AIMessageChunk("", tool_call_chunks=[CALL])


# --- recording ------------------------------------------------------------------------------


def test_a_finished_call_is_given_back_after_a_crash(saver_factory: SaverFactory) -> None:
    said = AIMessage(LONG, id="a", tool_calls=[{"name": "pay", "args": {"n": 1}, "id": "c"}])
    with saver_factory() as saver:
        answered(saver, said=said)
        assert replayed(saver) is None  # what a run has made answers nothing in it
        new_run(saver)
        assert replayed(saver) == said
        assert replayed(saver) is None
        if not saver_factory.persistent:
            return
    with saver_factory() as saver:
        found = replayed(saver)
        assert (found, found.id, found.tool_calls) == (said, "a", said.tool_calls)
        assert type(found) is AIMessage


def test_an_entry_says_what_was_sent_and_what_came_back(saver: Any) -> None:
    told = {
        "model_name": "m-2024",
        "system_fingerprint": "fp",
        "finish_reason": "stop",
        "id": "req_1",
    }
    usage: Any = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    said = AIMessage("yes", id="a", response_metadata=told, usage_metadata=usage)
    answered(saver, said=said, temperature=0.5, seed=7, tools=[{"name": "pay"}])
    (entry,) = saver.journal.entries("t")
    assert (entry.state, entry.provider, entry.model) == ("ended", "p", "m")
    assert entry.parameters == {"temperature": 0.5, "seed": 7}
    assert entry.sent["tools"] == [{"name": "pay"}]
    assert entry.answer == said
    assert (entry.model_version, entry.system_fingerprint) == ("m-2024", "fp")
    assert (entry.finish_reason, entry.request_id, entry.usage) == ("stop", "req_1", usage)
    assert 0 < entry.started_at <= entry.ended_at
    assert (entry.error, entry.drift, entry.flags) == ("", {}, ())
    assert saver.journal.get("t", entry.number) == entry
    with pytest.raises(CallNotFound):
        saver.journal.get("t", entry.number + 1)
    assert saver.journal.entries("nobody") == []


def test_the_conversation_is_kept_unless_it_would_be_stored_whole_each_time(
    saver: Any, saver_factory: SaverFactory
) -> None:
    answered(saver, LONG)
    (entry,) = saver.journal("t")
    if saver_factory.guard == "serde":
        assert entry.messages is None
    else:
        assert entry.messages == [HumanMessage(LONG, id="h")]


def test_a_call_that_was_begun_is_open_and_one_that_failed_is_not(saver: Any) -> None:
    book = saver.journal.book
    record = book.begin(spot(), request())
    assert states(saver) == ["started"]
    book.fail(record, ValueError("no"))
    (entry,) = saver.journal("t")
    assert (entry.state, entry.error, entry.answer) == ("failed", "ValueError: no", None)
    assert entry.ended_at is not None
    new_run(saver)
    assert book.match(spot(), request()).match is Match.NEW


def test_an_interrupted_call_goes_on_under_its_number_and_with_its_message_id(saver: Any) -> None:
    book = saver.journal.book
    record = begun(saver, temperature=0.5)
    new_run(saver)
    found = book.match(spot(), request(temperature=0.9))
    assert (found.match, found.drifted) == (Match.INTERRUPTED, True)
    again = book.reopen(spot(task="other", root="0002"), found.record, {"temperature": [0.5, 0.9]})
    assert (again.call, again.message_id, again.attempt) == (record.call, record.message_id, 2)
    assert states(saver) == ["started"]
    book.end(again, AIMessage("yes", id=again.message_id), streamed=True)
    (entry,) = saver.journal("t")
    assert (entry.state, entry.drift) == ("ended", {"temperature": [0.5, 0.9]})
    assert entry.sent == {"temperature": 0.5}
    assert entry.flags == ("streamed",)


def test_of_two_who_reopen_a_call_one_goes_on(saver: Any) -> None:
    book = saver.journal.book
    record = begun(saver)
    new_run(saver)
    one = book.reopen(spot(task="one"), record)
    assert book.reopen(spot(task="two"), record) is None
    new_run(saver)  # as in another process
    with pytest.raises(LostOwnership):
        book.reopen(spot(task="two"), record)
    book.end(one, AIMessage("yes"), streamed=False)


def test_an_end_that_comes_after_the_call_was_retired_changes_nothing(saver: Any) -> None:
    book = saver.journal.book
    record = book.begin(spot(), request())
    Thread(saver).put({"x": 1}, id="0002")
    assert states(saver) == ["retired"]
    book.end(record, AIMessage("late"), streamed=False)
    assert states(saver) == ["retired"]


def test_calls_have_the_order_of_their_beginning(saver: Any) -> None:
    for n in range(5):
        answered(saver, f"q{n}")
        answered(saver, f"q{n}", "other")
    for thread in ("t", "other"):
        entries = saver.journal(thread)
        assert [entry.answer.content for entry in entries] == [f"q{n}, yes" for n in range(5)]
        assert [entry.number for entry in entries] == sorted({entry.number for entry in entries})


def test_equal_answers_are_given_back_in_their_order(saver: Any) -> None:
    for n in range(3):
        answered(saver, said=AIMessage(f"{n}", id=f"{n}"))
    new_run(saver)
    assert [replayed(saver).content for _ in range(3)] == ["0", "1", "2"]
    assert replayed(saver) is None


def test_a_conversation_costs_little_more_than_its_last_message(tmp_path: Path) -> None:
    with SaverFactory("file", "plain", tmp_path)() as saver:
        messages = [HumanMessage(f"{n} " + LONG[:2000], id=f"{n}") for n in range(40)]
        Thread(saver).put({"messages": messages}, id=ROOT)
        book = saver.journal.book
        for n in range(1, 41):
            asked = request()
            asked = type(asked)(messages=messages[:n], sent={}, provider="p", model="m")
            book.end(book.begin(spot(), asked), AIMessage(f"{n}"), streamed=False)
        with saver.cursor() as cursor:
            (size,) = cursor.execute("SELECT sum(length(frame)) FROM resilient_journal").fetchone()
        assert size < 40 * 600


# --- retiring -------------------------------------------------------------------------------


def test_the_writes_of_its_task_retire_a_call(saver: Any) -> None:
    where = Thread(saver).put({"x": 1}, id=ROOT)
    answered(saver)
    answered(saver, "other", where={"task": "another"})
    saver.put_writes(where, [("x", 2)], TASK)
    assert states(saver) == ["retired", "ended"]
    new_run(saver)
    assert replayed(saver) is None
    assert replayed(saver, "other", where={"task": "another"}) is not None


@pytest.mark.parametrize("channel", ["__interrupt__", "__resume__"])
def test_a_task_that_only_waits_retires_nothing(saver: Any, channel: str) -> None:
    where = Thread(saver).put({"x": 1}, id=ROOT)
    answered(saver)
    saver.put_writes(where, [(channel, "x")], TASK)
    assert states(saver) == ["ended"]


def test_the_writes_of_an_inner_graph_retire_nothing(saver: Any) -> None:
    Thread(saver).put({"x": 1}, id=ROOT)
    answered(saver)
    inner = Thread(saver, ns="node:1").put({"y": 1}, id="0002")
    saver.put_writes(inner, [("y", 2)], TASK)
    assert states(saver) == ["ended"]


def test_what_a_task_choked_on_is_not_given_back(saver: Any) -> None:
    where = Thread(saver).put({"x": 1}, id=ROOT)
    answered(saver, "one")
    answered(saver, "two")
    answered(saver, "other", where={"task": "another"})
    saver.put_writes(where, [("__error__", ValueError("cannot be parsed"))], TASK)
    assert states(saver) == ["ended", "discarded", "ended"]


def test_after_a_transient_error_everything_is_given_back(saver: Any) -> None:
    where = Thread(saver).put({"x": 1}, id=ROOT)
    answered(saver, "one")
    answered(saver, "two")
    saver.put_writes(where, [("__error__", TimeoutError("slow"))], TASK)
    assert states(saver) == ["ended", "ended"]


def test_a_later_root_checkpoint_retires_what_was_made_before_it(saver: Any) -> None:
    thread = Thread(saver)
    thread.put({"x": 1}, id=ROOT)
    answered(saver)
    answered(saver, "later", where={"root": "0009"})
    thread.put({"x": 2}, id="0002")
    assert states(saver) == ["retired", "ended"]


def test_an_input_alone_retires_nothing(saver: Any) -> None:
    answered(saver, where={"root": ""})
    Thread(saver).put({"x": 1}, id="0002", metadata={"source": "input"})
    assert states(saver) == ["ended"]


def test_a_checkpoint_of_an_inner_graph_retires_nothing(saver: Any) -> None:
    answered(saver)
    Thread(saver, ns="node:1").put({"x": 1}, id="0002")
    assert states(saver) == ["ended"]


def test_a_call_that_was_given_back_retires_with_the_task_it_was_given_to(saver: Any) -> None:
    thread = Thread(saver)
    where = thread.put({"x": 1}, id=ROOT)
    answered(saver)
    new_run(saver)
    assert replayed(saver, where={"task": "again"}) is not None
    saver.put_writes(where, [("x", 2)], "again")
    assert states(saver) == ["retired"]


def test_another_process_retires_what_it_finds_open(saver_factory: SaverFactory) -> None:
    if not saver_factory.persistent:
        pytest.skip("nothing is left to find")
    with saver_factory() as saver:
        where = Thread(saver).put({"x": 1}, id=ROOT)
        answered(saver)
    with saver_factory() as saver:
        saver.put_writes(where, [("x", 2)], TASK)
        assert states(saver) == ["retired"]


def test_the_success_of_a_tool_retires_what_was_asked_inside_it(saver: Any) -> None:
    def body(current: Any) -> Any:
        answered(saver, "inside", where={"parent": bytes.fromhex(current.key)})
        return answer("done")

    answered(saver, "outside")
    run(saver, call(body=body))
    assert states(saver) == ["ended", "retired"]


def test_a_tool_that_fails_keeps_what_was_asked_inside_it(saver: Any) -> None:
    def body(current: Any) -> Any:
        answered(saver, "inside", where={"parent": bytes.fromhex(current.key)})
        raise ValueError("no")

    with pytest.raises(ValueError):
        run(saver, call(body=body))
    assert states(saver) == ["ended"]


# --- streams --------------------------------------------------------------------------------


def test_what_was_shown_comes_back_in_its_order(saver_factory: SaverFactory) -> None:
    said = [f"w{n} " for n in range(150)]
    with saver_factory() as saver:
        record = streaming(saver, [*said, CHUNK])
        whole = shown(saver, record)
        assert whole[:-1] == said
        assert whole[-1].tool_call_chunks == CHUNK.tool_call_chunks
        assert count(saver, "chunks") == 2 + 151 % 64
        if not saver_factory.persistent:
            return
    with saver_factory() as saver:
        found = saver.journal.book.match(spot(), request())
        assert found.match is Match.INTERRUPTED
        show(saver, found.record, ["more"], at=151)
        assert shown(saver, found.record)[:150] == said
        assert [piece.text for piece in saver.stream("t")][-1] == "more"


def test_a_stream_is_read_from_any_offset_and_nothing_twice(saver: Any) -> None:
    streaming(saver, [f"w{n} " for n in range(70)])
    streaming(saver, ["x", "y"], "other")
    pieces = list(saver.stream("t"))
    assert [piece.text for piece in pieces] == [*(f"w{n} " for n in range(70)), "x", "y"]
    assert len({piece.message_id for piece in pieces}) == 2
    for at in (0, 1, 63, 64, 65, 69, 70, 71):
        behind = list(saver.stream("t", after=pieces[at].offset))
        assert behind == pieces[at + 1 :]


def test_an_ended_stream_tells_the_whole_message(saver: Any) -> None:
    record = streaming(saver, ["a", "b"])
    said = AIMessage("ab", id=record.message_id)
    saver.journal.book.end(record, said, streamed=True)
    pieces = list(saver.stream("t"))
    assert [piece.kind for piece in pieces] == ["text", "text", "end"]
    assert pieces[-1].message == said
    assert list(saver.stream("t", after=pieces[-1].offset)) == []


def test_the_stream_of_a_retired_call_is_gone_and_its_message_stays(saver: Any) -> None:
    where = Thread(saver).put({"x": 1}, id=ROOT)
    record = streaming(saver, ["a", "b"])
    seen = next(iter(saver.stream("t"))).offset
    saver.journal.book.end(record, AIMessage("ab", id=record.message_id), streamed=True)
    saver.put_writes(where, [("x", 2)], TASK)
    assert count(saver, "chunks") == 0
    assert [piece.kind for piece in saver.stream("t", after=seen)] == ["end"]


def test_the_stream_of_a_failed_call_is_gone_and_clients_are_told(saver: Any) -> None:
    record = streaming(saver, ["a", "b"])
    seen = [piece.offset for piece in saver.stream("t")]
    saver.journal.book.fail(record, ValueError("no"))
    assert count(saver, "chunks") == 0
    assert list(saver.stream("t")) == []
    (told,) = saver.stream("t", after=seen[0])
    assert (told.kind, told.message_id) == ("reset", record.message_id)
    assert list(saver.stream("t", after=told.offset)) == []


# --- protection -----------------------------------------------------------------------------


@pytest.mark.parametrize("guard", ["cipher", "serde"])
def test_nothing_of_a_stream_or_an_answer_can_be_read_in_the_file(
    tmp_path: Path, guard: str
) -> None:
    factory = SaverFactory("file", guard, tmp_path)
    secret = "the harbour opens at nine"
    with factory() as saver:
        streaming(saver, [secret, CHUNK])
        answered(saver, said=AIMessage(secret), note=secret)
        names = [p for p in tmp_path.iterdir() if p.name.startswith("agent.db")]
        data = b"".join(path.read_bytes() for path in names)
        assert data
        assert secret.encode() not in data
        assert b"harbour" not in data
        assert b"euros" not in data


def damaged(saver: Any, table: str, change: str) -> None:
    with saver.cursor() as cursor:
        cursor.execute(in_words_of(saver, f"UPDATE resilient_{table} SET {change}"))


@pytest.mark.parametrize(
    "change", ["frame = x''", "frame = cast(x'0102' || frame AS BLOB)", "frame = 'text'"]
)
def test_damage_of_a_call_is_never_taken_for_a_call_that_was_not_made(
    saver: Any, change: str
) -> None:
    answered(saver)
    new_run(saver)
    damaged(saver, "journal", change)
    with pytest.raises(DataCorrupt, match="model call"):
        replayed(saver)
    with pytest.raises(DataCorrupt):
        saver.journal("t")


@pytest.mark.parametrize("column", ["request", "parent", "task", "root"])
def test_an_edit_of_a_column_is_noticed(saver: Any, column: str) -> None:
    answered(saver)
    new_run(saver)
    damaged(saver, "journal", f"{column} = x'00'")
    with pytest.raises(DataCorrupt):
        replayed(saver)


@pytest.mark.parametrize(
    "change", ["frame = x''", "frame = cast(x'0102' || frame AS BLOB)", "frame = 'text'"]
)
def test_damage_of_a_stream_is_said_so(saver: Any, change: str) -> None:
    record = streaming(saver, ["a"] * 70)
    damaged(saver, "chunks", change)
    with pytest.raises(DataCorrupt):
        shown(saver, record)
    with pytest.raises(DataCorrupt):
        list(saver.stream("t"))


# --- retention ------------------------------------------------------------------------------


def test_deleting_a_thread_deletes_its_calls_and_streams(saver: Any) -> None:
    for thread in ("t", "other"):
        Thread(saver, thread).put({"x": 1}, id=ROOT)
        answered(saver, LONG, thread)
        streaming(saver, ["a", CHUNK], LONG, thread)
    saver.delete_thread("t")
    assert (count(saver, "journal"), count(saver, "chunks")) == (2, 2)
    assert saver.journal("t") == []
    assert list(saver.stream("t")) == []
    assert len(list(saver.stream("other"))) >= 2
    assert saver.journal("other")[0].answer.content == f"{LONG}, yes"
    assert verify(saver).ok


def test_a_late_end_does_not_bring_a_deleted_thread_back(saver: Any) -> None:
    Thread(saver).put({"x": 1}, id=ROOT)
    record = streaming(saver, ["a"])
    saver.delete_thread("t")
    show(saver, record, ["b"], at=1)
    saver.journal.book.end(record, AIMessage(LONG), streamed=True)
    assert (count(saver, "journal"), count(saver, "chunks")) == (0, 0)
    assert saver.get_tuple(config()) is None
    report = verify(saver)
    assert report.ok, report.findings


def test_pruning_keeps_every_answer_readable(saver: Any) -> None:
    thread = Thread(saver)
    thread.put({"x": 1, "text": LONG}, id=ROOT)
    answered(saver, LONG)
    thread.put({"x": 2, "text": ""}, id="0002")
    answered(saver, f"{LONG} open", where={"root": "0002"})
    record = streaming(saver, ["a"])
    assert states(saver) == ["retired", "ended", "started"]
    saver.prune(["t"])
    assert [entry.answer and entry.answer.content for entry in saver.journal("t")] == [
        f"{LONG}, yes",
        f"{LONG} open, yes",
        None,
    ]
    assert shown(saver, record) == ["a"]
    assert verify(saver).ok


def test_pruning_drops_what_came_for_a_retired_call(saver: Any) -> None:
    thread = Thread(saver)
    thread.put({"x": 1}, id=ROOT)
    record = streaming(saver, ["a"])
    thread.put({"x": 2}, id="0002")
    show(saver, record, ["late"], at=1)
    assert count(saver, "chunks") == 1
    saver.prune(["t"])
    assert count(saver, "chunks") == 0


# --- copies ---------------------------------------------------------------------------------


def test_a_copy_does_not_pay_again_for_open_calls(saver: Any) -> None:
    where = Thread(saver).put({"x": 1}, id=ROOT)
    answered(saver, LONG)
    saver.copy_thread("t", "copy")
    assert replayed(saver, LONG, "copy").content == f"{LONG}, yes"
    saver.put_writes(config("copy", checkpoint_id_of(where)), [("x", 2)], TASK)
    assert (states(saver), states(saver, "copy")) == (["ended"], ["retired"])
    saver.delete_thread("t")
    assert saver.journal("copy")[0].answer.content == f"{LONG}, yes"
    report = verify(saver)
    assert report.ok, report.findings


def test_a_copy_goes_on_with_an_interrupted_stream(saver: Any) -> None:
    Thread(saver).put({"x": 1}, id=ROOT)
    said = [f"w{n} " for n in range(70)]
    record = streaming(saver, [*said, CHUNK])
    saver.copy_thread("t", "copy")
    found = saver.journal.book.match(spot("copy"), request())
    assert found.match is Match.INTERRUPTED
    assert found.record.message_id == record.message_id
    assert states(saver, "copy") == ["interrupted"]
    saver.delete_thread("t")
    assert shown(saver, found.record)[:-1] == said
    assert shown(saver, found.record)[-1].tool_call_chunks == CHUNK.tool_call_chunks
    new_run(saver, "copy")
    again = saver.journal.book.reopen(spot("copy"), found.record)
    saver.journal.book.end(again, AIMessage("x"), streamed=True)
    assert states(saver, "copy") == ["ended"]


def test_retired_and_failed_calls_stay_with_their_thread(saver: Any) -> None:
    thread = Thread(saver)
    thread.put({"x": 1}, id=ROOT)
    answered(saver)
    thread.put({"x": 2}, id="0002")
    saver.journal.book.fail(saver.journal.book.begin(spot(), request("f")), ValueError())
    answered(saver, "open", where={"root": "0002"})
    saver.copy_thread("t", "copy")
    assert states(saver) == ["retired", "failed", "ended"]
    assert states(saver, "copy") == ["ended"]


def test_calls_inside_a_tool_follow_it_into_the_copy(saver: Any) -> None:
    Thread(saver).put({"x": 1}, id=ROOT)

    def body(current: Any) -> Any:
        answered(saver, "inside", where={"parent": bytes.fromhex(current.key)})
        raise ValueError("no")

    with pytest.raises(ValueError):
        run(saver, call(body=body))
    saver.copy_thread("t", "copy")
    (copied,) = saver.ledger.entries("copy")
    assert saver.journal("copy")[0].tool_call == copied.key
    inside = {"parent": bytes.fromhex(copied.key)}
    assert replayed(saver, "inside", "copy", where=inside).content == "inside, yes"


def test_a_copy_is_all_or_nothing_for_damage(saver: Any) -> None:
    Thread(saver).put({"x": 1}, id=ROOT)
    streaming(saver, ["a"])
    damaged(saver, "chunks", "frame = x''")
    with pytest.raises(DataCorrupt):
        saver.copy_thread("t", "copy")
    assert saver.get_tuple(config("copy")) is None


# --- older files ----------------------------------------------------------------------------


@pytest.mark.parametrize("guard", GOLDEN)
def test_a_file_from_before_the_journal_opens(tmp_path: Path, guard: str) -> None:
    path = tmp_path / "agent.db"
    path.write_bytes((HERE / "v1" / f"{guard}.bin").read_bytes())
    with ResilientSaver.from_conn_string(path, **GOLDEN[guard]) as saver:
        assert saver.journal("chat") == []
        streaming(saver, ["a"], thread="chat")
        answered(saver, "x", "chat")
        assert states(saver, "chat") == ["started", "ended"]
        assert verify(saver).ok


def test_a_file_of_schema_2_opens(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with ResilientSaver.from_conn_string(path) as saver:
        where = Thread(saver).put({"x": 1}, id=ROOT)
        run(saver, call())
    conn = sqlite3.connect(path)
    conn.executescript(
        "DROP TABLE resilient_journal; DROP TABLE resilient_chunks;"
        "DROP TABLE resilient_snapshots;"
        "UPDATE resilient_meta SET number = 2 WHERE name = 'schema'"
    )
    conn.close()
    with ResilientSaver.from_conn_string(path) as saver:
        answered(saver)
        saver.put_writes(where, [("x", 2)], TASK)
        assert states(saver) == ["retired"]
        assert [entry.state for entry in saver.ledger.entries("t")] == ["succeeded"]
        assert verify(saver).ok


def test_a_call_whose_answer_cannot_be_stored_says_so(file_saver: Any) -> None:
    record = file_saver.journal.book.begin(spot(), request())
    with pytest.raises(ResilientError, match="answer"):
        file_saver.journal.book.end(record, object(), streamed=False)
    assert states(file_saver) == ["started"]


def test_what_was_sent_and_cannot_be_stored_does_not_keep_a_call_from_being_made(
    file_saver: Any, caplog: pytest.LogCaptureFixture
) -> None:
    asked = type(request())(messages=[HumanMessage("x", additional_kwargs={"o": object()})])
    record = file_saver.journal.book.begin(spot(), asked)
    assert "without its messages" in caplog.text
    file_saver.journal.book.end(record, AIMessage("yes"), streamed=False)
    (entry,) = file_saver.journal("t")
    assert (entry.messages, entry.answer.content) == (None, "yes")
