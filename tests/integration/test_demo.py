"""The demo: an agent that is killed ends like one that is not, and the numbers shown are true."""

from __future__ import annotations

import json
import smtplib
from email.message import EmailMessage
from pathlib import Path

import pytest
import zstandard
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from langgraph_resilient.demo.calls import CallLog, Event, count_calls, read_events, savings
from langgraph_resilient.demo.conversation import (
    ReplayOptions,
    first_difference,
    plan_kills,
    replay,
)
from langgraph_resilient.demo.process import run_child
from langgraph_resilient.demo.replay import build_graph
from langgraph_resilient.demo.runner import WORDS_SEEN, DemoOptions, DemoReport, run_demo
from langgraph_resilient.demo.screen import Shown, stream_case
from langgraph_resilient.demo.smtp import Mail, SmtpSink
from langgraph_resilient.demo.trajectory import read_conversations
from langgraph_resilient.errors import ConfigurationError, DemoFailed
from langgraph_resilient.saver import ResilientSaver

SAMPLE = Path(__file__).resolve().parents[3] / "shared" / "trajectories" / "sample.jsonl"


# --- counting -------------------------------------------------------------------------------


def event(kind: str, call: str, phase: str, attempt: int, amount: int = 0, conv: int = 0) -> Event:
    return Event(
        kind=kind, call=call, phase=phase, attempt=attempt, amount=amount, conversation=conv
    )


def test_a_call_that_runs_after_it_had_finished_counts_as_repeated() -> None:
    events = [
        event("model", "a", "started", 0),
        event("model", "a", "finished", 0),
        event("model", "a", "started", 1),
    ]
    (count,) = count_calls(events)
    assert (count.started, count.repeated) == (2, 1)


def test_a_call_that_was_cut_off_is_not_counted_as_repeated() -> None:
    events = [event("tool", "a", "started", 0), event("tool", "a", "started", 1)]
    (count,) = count_calls(events)
    assert (count.started, count.repeated) == (2, 0)


def test_the_same_call_in_another_conversation_is_another_call() -> None:
    events = [
        event("tool", "a", "started", 0, conv=0),
        event("tool", "a", "finished", 0, conv=0),
        event("tool", "a", "started", 0, conv=1),
    ]
    assert [count.repeated for count in count_calls(events)] == [0, 0]


def test_saved_tokens_are_those_of_finished_calls_that_did_not_run_again() -> None:
    events = [
        event("model", "a", "started", 0),
        event("model", "a", "finished", 0, amount=10),
        event("model", "b", "started", 0),
        event("model", "b", "finished", 0, amount=30),
        event("model", "b", "started", 1),
        event("model", "b", "finished", 1, amount=30),
    ]
    saved = savings(events, killed=[0])
    assert (saved.finished, saved.kept, saved.ratio) == (40, 10, 0.25)


def test_conversations_that_had_ended_before_a_kill_do_not_count_as_saved() -> None:
    events = [
        event("model", "a", "finished", 0, amount=1000, conv=0),
        event("model", "a", "finished", 0, amount=5, conv=1),
    ]
    assert savings(events, killed=[0]).finished == 5


def test_nothing_finished_before_a_kill_means_nothing_lost() -> None:
    assert savings([], killed=[0]).ratio == 1.0


def test_the_log_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = str(tmp_path / "calls.jsonl")
    log = CallLog.at_path(path, attempt=3)
    log.opening()
    log.step()
    log.step()
    log.write("model", "a", "finished", amount=7)
    log.close()
    first, second = read_events(path)
    assert (first.kind, first.attempt, first.opened_ns <= first.at_ns) == ("step", 3, True)
    assert (second.call, second.amount) == ("a", 7)


def test_a_log_that_was_never_made_has_no_events(tmp_path: Path) -> None:
    assert read_events(str(tmp_path / "none")) == []


# --- the agent ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the files of `report` are."""
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def report(folder: Path) -> DemoReport:
    """One run with durability sync, where LangGraph waits for the saver and counts are exact."""
    return run_demo(DemoOptions(durability="sync", latency=0.0, directory=folder))


def test_the_resumed_run_ends_as_the_undisturbed_one(report: DemoReport) -> None:
    assert report.equal
    assert report.final_resumed == report.final_undisturbed
    assert report.final_resumed.startswith("Done: 4 findings")


def test_the_agent_makes_five_model_calls_and_three_tool_calls(report: DemoReport) -> None:
    assert (report.model_calls, report.tool_calls) == (5, 3)
    assert [row.call for row in report.calls if row.kind == "tool"] == [
        "search",
        "extract",
        "send_email",
    ]
    assert {row.undisturbed for row in report.calls} == {1}


def test_the_email_arrives_once_with_and_without_a_crash(report: DemoReport) -> None:
    assert (report.emails_undisturbed, report.emails_received) == (1, 1)


def test_no_finished_call_runs_again(report: DemoReport) -> None:
    assert [row.call for row in report.calls if row.with_crash > 1] == []
    assert (report.repeated_model_calls, report.repeated_tool_calls) == (0, 0)
    assert 0 < report.tokens_saved == report.tokens_finished
    assert report.tokens_saved_ratio == 1.0


def test_an_answer_that_is_cut_goes_on_where_the_user_had_read_to(report: DemoReport) -> None:
    stream = report.stream
    assert stream.kills == 1
    assert len(stream.seen_before.split()) == WORDS_SEEN
    assert stream.replayed.startswith(stream.seen_before)
    assert stream.continued
    assert stream.replayed + stream.continued == stream.final
    assert stream.final.count("\n- ") == 4
    assert (stream.prefix_kept, stream.message_ids, stream.equal) == (True, 1, True)


def shown(text: str, attempt: int, *, replayed: bool = False, reset: bool = False) -> Shown:
    return Shown(step=5, message_id="m", text=text, attempt=attempt, replayed=replayed, reset=reset)


@pytest.mark.parametrize(
    ("pieces", "kept"),
    [
        ([shown("ab", 0), shown("abc", 1, replayed=True), shown("d", 1)], True),
        ([shown("ab", 0), shown("a", 1, replayed=True), shown("bcd", 1)], False),
        ([shown("ab", 0), shown("ab", 1, replayed=True), shown("bcd", 1)], False),
        ([shown("ab", 0), shown("ab", 1, replayed=True), shown("", 1, reset=True)], False),
    ],
    ids=["kept", "less is replayed", "something twice", "reset"],
)
def test_a_prefix_counts_as_kept_only_when_nothing_is_lost_or_twice(
    pieces: list[Shown], kept: bool
) -> None:
    found = stream_case(pieces, final="abcd", kill_instant="", kills=1, equal=True)
    assert (found.seen_before, found.prefix_kept) == ("ab", kept)


def test_a_kill_inside_the_email_tool_is_asked_about_and_one_mail_arrives(
    report: DemoReport,
) -> None:
    sent, unsent, plain = report.mail_cases
    for case in (sent, unsent):
        assert case.question is not None
        assert (case.question["kind"], case.question["tool"]) == ("unknown_outcome", "send_email")
        assert (case.saver, case.kills, case.emails, case.equal) == ("resilient", 1, 1, True)
    assert (sent.answer or {})["action"] == "succeeded"
    assert (unsent.answer or {})["action"] == "retry"
    assert (plain.saver, plain.kills, plain.question, plain.emails) == ("sqlite", 1, None, 2)
    assert (report.emails, report.emails_sqlitesaver) == (sent.emails, plain.emails)
    assert (report.question, report.answer) == (sent.question, sent.answer)


def test_the_kills_of_all_runs_are_counted(report: DemoReport) -> None:
    assert report.kills == 2 + sum(case.kills for case in report.mail_cases) == 5


def test_times_run_from_process_start_over_opening_to_the_first_new_call(
    report: DemoReport,
) -> None:
    assert 0 < report.resume_ms < report.start_ms


def test_sizes_are_those_of_the_files(report: DemoReport, folder: Path) -> None:
    assert report.directory == str(folder)
    assert report.bytes == _on_disk(folder / "undisturbed.db")
    assert report.bytes_resumed == _on_disk(folder / "crash.db")
    assert report.bytes_sqlitesaver == _on_disk(folder / "sqlitesaver.db")


def _on_disk(path: Path) -> int:
    parts = [path, path.with_name(path.name + "-wal")]
    return sum(part.stat().st_size for part in parts if part.exists())


def test_with_nothing_stored_before_the_end_no_call_is_repeated_either() -> None:
    report = run_demo(DemoOptions(durability="exit", kill_after=5, latency=0.0))
    assert report.equal
    assert (report.repeated_model_calls, report.repeated_tool_calls) == (0, 0)
    assert report.tokens_saved_ratio == 1.0
    assert report.emails_received == 1
    assert [case.emails for case in report.mail_cases] == [1, 1, 2]
    assert (report.stream.prefix_kept, report.stream.message_ids) == (True, 1)


# --- processes and mail ---------------------------------------------------------------------


def test_a_child_that_fails_by_itself_is_reported_with_its_words() -> None:
    with pytest.raises(DemoFailed, match=r"exit code 2(.|\n)*--db"):
        run_child("langgraph_resilient.demo.agent", [], timeout=60)


def test_a_child_that_asks_where_nobody_answers_is_reported_and_left_nowhere() -> None:
    with pytest.raises(DemoFailed, match="asked"):
        run_child("this", [], timeout=60)  # it prints; none of its lines is a question


def test_a_child_that_hangs_is_killed_and_reported() -> None:
    with pytest.raises(DemoFailed, match="did not end within"):
        run_child("json.tool", [], timeout=0.5)  # it reads until somebody ends its input


def test_the_sink_counts_each_mail_once() -> None:
    with SmtpSink() as sink:
        assert sink.received == 0
        message = EmailMessage()
        message["From"], message["To"], message["Subject"] = "a@example.org", "b@example.org", "s"
        message["Message-ID"] = "<1@example.org>"
        message.set_content("text")
        with smtplib.SMTP("127.0.0.1", sink.port, local_hostname="localhost") as server:
            server.send_message(message)
        assert sink.mails == [Mail(to="b@example.org", subject="s", message_id="<1@example.org>")]


# --- recorded conversations -----------------------------------------------------------------


def call(name: str, arguments: str, call_id: str) -> dict[str, object]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def said(role: str, content: object, **more: object) -> dict[str, object]:
    return {"role": role, "content": content, **more}


ODD = [
    # an assistant speaks first, twice; parallel results come back in another order; ids repeat
    [
        said("assistant", "Hello", id="m1"),
        said("assistant", None, tool_calls=[call("f", '{"a": 2.0}', "1"), call("g", "", "2")]),
        said("tool", "second\0", tool_call_id="2", name="g"),
        said("tool", [{"type": "text", "text": "first"}], tool_call_id="1", status="error"),
        said("user", "and now?", id="m1"),
    ],
    # a question without an answer, a system message in between, a call that nobody answers
    [
        said("system", "You help."),
        said("user", "One"),
        said("user", "Two"),
        said("assistant", "Yes", usage={"prompt_tokens": 11, "completion_tokens": 3}, model="m"),
        said("system", "New rules."),
        said("assistant", None, tool_calls=[call("f", "not json", "")], reasoning="hm"),
        said("user", "Stop"),
        said("assistant", None, tool_calls=[call("f", "{}", "x")]),
    ],
]


@pytest.fixture
def odd_file(tmp_path: Path) -> Path:
    path = tmp_path / "odd.jsonl"
    lines = [json.dumps({"id": f"c{n}", "messages": ms}) for n, ms in enumerate(ODD)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_messages_keep_what_was_recorded(odd_file: Path) -> None:
    first, second = read_conversations([odd_file])
    asked = first.messages[1]
    assert isinstance(asked, AIMessage)
    assert asked.content == ""
    assert [item["args"] for item in asked.tool_calls] == [{"a": 2.0}, {}]
    result = first.messages[3]
    assert isinstance(result, ToolMessage)
    assert (result.status, result.tool_call_id) == ("error", "1")
    answer, broken = second.messages[3], second.messages[5]
    assert isinstance(answer, AIMessage)
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["total_tokens"] == 14
    assert isinstance(broken, AIMessage)
    assert [item["args"] for item in broken.invalid_tool_calls] == ["not json"]
    assert broken.additional_kwargs == {"reasoning_content": "hm"}


def test_every_message_of_a_conversation_has_an_id_of_its_own(odd_file: Path) -> None:
    for conversation in read_conversations([odd_file]):
        ids = [message.id for message in conversation.messages]
        assert all(ids)
        assert len(set(ids)) == len(ids)


def test_a_compressed_file_gives_the_same_messages(odd_file: Path) -> None:
    packed = odd_file.with_suffix(".jsonl.zst")
    packed.write_bytes(zstandard.compress(odd_file.read_bytes()))
    assert list(read_conversations([packed])) == list(read_conversations([odd_file]))


def test_skip_and_limit_count_over_all_files(odd_file: Path) -> None:
    found = read_conversations([odd_file, odd_file], skip=1, limit=3)
    assert [conversation.thread_id for conversation in found] == ["1-c1", "2-c0"]


@pytest.mark.parametrize("line", ["{", "[]", '{"id": 1}', '{"id": 1, "messages": [{}]}'])
def test_a_line_of_another_format_is_refused_with_its_place(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(line)
    with pytest.raises(ConfigurationError, match="line 1"):
        list(read_conversations([path]))


def test_a_missing_or_broken_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="none"):
        list(read_conversations([tmp_path / "none.jsonl"]))
    broken = tmp_path / "broken.jsonl.zst"
    broken.write_bytes(b"no frame")
    with pytest.raises(ConfigurationError, match="broken"):
        list(read_conversations([broken]))


def test_the_kills_are_the_same_for_the_same_seed(odd_file: Path) -> None:
    conversations = list(read_conversations([odd_file]))
    assert plan_kills(conversations, 4, 1) == plan_kills(conversations, 4, 1)
    assert plan_kills(conversations, 4, 1) != plan_kills(conversations, 4, 2)


def test_odd_conversations_survive_kills_at_random_moments(odd_file: Path, tmp_path: Path) -> None:
    report = replay(ReplayOptions(files=[odd_file], kills=2, seed=1, directory=tmp_path / "kept"))
    assert report.differences == []
    assert report.equal
    assert report.kills > 0
    assert (report.repeated_model_calls, report.repeated_tool_calls) == (0, 0)
    assert report.tokens_saved_ratio == 1.0
    assert (report.conversations, report.messages) == (2, 13)
    assert (report.model_calls, report.tool_calls) == (5, 2)
    assert report.bytes == _on_disk(tmp_path / "kept" / "conversations.db")
    assert report.bytes_sqlitesaver


def test_a_tool_call_that_was_recorded_is_answered_from_the_ledger_when_its_node_runs_again(
    odd_file: Path, tmp_path: Path
) -> None:
    conversation = next(iter(read_conversations([odd_file])))
    path, config = str(tmp_path / "calls.jsonl"), {"configurable": {"thread_id": "t"}}
    log = CallLog.at_path(path, attempt=0)
    with ResilientSaver.from_conn_string(tmp_path / "agent.db") as saver:
        graph = build_graph(conversation, log, 0.0).compile(checkpointer=saver)
        first = graph.invoke({"messages": []}, config)
        before = next(
            state for state in graph.get_state_history(config) if state.next == ("tools",)
        )
        second = graph.invoke(None, before.config)
    log.close()
    assert second["messages"] == first["messages"] == conversation.messages[:4]
    assert [count.started for count in count_calls(read_events(path)) if count.kind == "tool"] == [
        1,
        1,
    ]


def test_two_answers_to_one_call_and_answers_to_none_stay_as_recorded(tmp_path: Path) -> None:
    twin, other = call("f", "{}", ""), call("g", "{}", "2")
    messages = [
        said("user", "go"),
        said("assistant", None, tool_calls=[twin, twin, other]),
        *(said("tool", text, tool_call_id="") for text in ("first", "second", "third")),
        said("tool", "of nobody", tool_call_id="9", name="h"),
        said("tool", "of g", tool_call_id="2", name="g"),
        said("tool", "of g, again", tool_call_id="2", name="g"),
    ]
    path = tmp_path / "twins.jsonl"
    path.write_text(json.dumps({"id": "c", "messages": messages}) + "\n")
    report = replay(ReplayOptions(files=[path], kills=1, latency=0.0, compare=False))
    assert report.differences == []
    assert (report.equal, report.tool_calls) == (True, 6)


def test_without_kills_nothing_is_repeated(odd_file: Path) -> None:
    report = replay(ReplayOptions(files=[odd_file], kills=0, latency=0.0, compare=False))
    assert report.equal
    assert (report.kills, report.repeated_model_calls, report.repeated_tool_calls) == (0, 0, 0)
    assert report.resume_ms is None
    assert report.bytes_sqlitesaver is None


def test_progress_reaches_the_end(odd_file: Path) -> None:
    seen: list[tuple[int, int]] = []
    replay(
        ReplayOptions(files=[odd_file], kills=0, latency=0.0, compare=False),
        lambda _what, done, total: seen.append((done, total)),
    )
    assert seen == [(1, 2), (2, 2), (1, 2), (2, 2)]


def test_a_file_without_conversations_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("\n")
    with pytest.raises(ConfigurationError, match="no conversation"):
        replay(ReplayOptions(files=[path]))


@pytest.mark.skipif(not SAMPLE.exists(), reason="the recorded conversations are not here")
def test_real_conversations_survive_kills_at_random_moments() -> None:
    report = replay(ReplayOptions(files=[SAMPLE], kills=2, seed=3, compare=False))
    assert report.differences == []
    assert report.equal
    assert report.kills > 0
    assert (report.repeated_model_calls, report.repeated_tool_calls) == (0, 0)
    assert report.tokens_saved_ratio == 1.0


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ([HumanMessage("a", id="1"), AIMessage("b", id="2")], ""),
        ([HumanMessage("a", id="1")], "1 messages are stored, 2 were recorded"),
        ([HumanMessage("a", id="1"), AIMessage("c", id="2")], "message 1 differs in content"),
        ([HumanMessage("a", id="1"), HumanMessage("b", id="2")], "message 1 is HumanMessage"),
        ([HumanMessage("a", id="1"), AIMessage("b", id="3")], "message 1 differs in id"),
    ],
)
def test_the_first_difference_is_named_without_content(stored: list, expected: str) -> None:  # type: ignore[type-arg]
    recorded = [HumanMessage("a", id="1"), AIMessage("b", id="2")]
    difference = first_difference(stored, recorded)
    assert difference.startswith(expected)
    assert bool(difference) == bool(expected)
