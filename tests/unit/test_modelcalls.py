"""Model calls as rows: the packed layout, the places of seals, which errors are transient."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_resilient.codec.packed import pack
from langgraph_resilient.errors import DataCorrupt
from langgraph_resilient.modelcalls import (
    chunk_place,
    is_transient,
    journal_place,
    model_call_from,
    packed_model_call,
)
from langgraph_resilient.records import ModelCallRecord, ModelCallState

digests = st.binary(max_size=16)
records = st.builds(
    ModelCallRecord,
    call=st.integers(0, 1 << 40),
    thread_id=st.text(max_size=5),
    state=st.sampled_from(ModelCallState),
    request=digests,
    sampling=digests,
    parent=digests,
    task=digests,
    root=digests,
    place=st.text(max_size=9),
    provider=st.text(max_size=9),
    model=st.text(max_size=9),
    message_id=st.text(max_size=9),
    started_at=st.floats(0, 2e9),
    ended_at=st.none() | st.floats(0, 2e9),
    attempt=st.integers(1, 9),
    flags=st.frozensets(st.sampled_from(["streamed", "other"])),
    values=st.dictionaries(
        st.sampled_from(["sent", "messages", "answer"]), st.binary(max_size=9)
    ).map(lambda found: tuple(found.items())),
)


def row(record: ModelCallRecord) -> tuple[Any, ...]:
    columns = (record.state, record.request, record.parent, record.task, record.root)
    return (record.call, *columns, b"")


@given(records)
def test_a_record_comes_back_equal(record: ModelCallRecord) -> None:
    assert model_call_from(packed_model_call(record), row(record), record.thread_id) == record


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        pack([]),
        pack([[], [], [], []]),
        pack([[b"", "", "", "", "", 0.0, None, 1, 5], [], [], []]),
        pack([[b"", "", "", "", "", 0.0, None, 1, []], [], ["answer"], []]),
    ],
)
def test_what_is_no_model_call_is_damage(raw: bytes) -> None:
    with pytest.raises(DataCorrupt):
        model_call_from(raw, (1, 1, b"", b"", b"", b"", b""), "t")


def test_an_unknown_state_is_damage() -> None:
    record = ModelCallRecord(
        thread_id="t",
        state=ModelCallState.ENDED,
        request=b"",
        sampling=b"",
        parent=b"",
        task=b"",
        root=b"",
        place="",
        provider="",
        model="",
        message_id="",
        started_at=0.0,
    )
    with pytest.raises(DataCorrupt):
        model_call_from(packed_model_call(record), (1, 99, b"", b"", b"", b"", b""), "t")
    assert record.answerless is False
    assert replace(record, state=ModelCallState.STARTED).answerless is True
    assert record.value("answer") is None
    assert replace(record, values=(("answer", b"x"),)).value("answer") == b"x"


def test_a_seal_belongs_to_every_column() -> None:
    places = {
        journal_place(1, 2, b"r", b"p", b"t", b"o"),
        journal_place(2, 2, b"r", b"p", b"t", b"o"),
        journal_place(1, 4, b"r", b"p", b"t", b"o"),
        journal_place(1, 2, b"rp", b"", b"t", b"o"),
        journal_place(1, 2, b"r", b"p", b"to", b""),
        journal_place(1, 2, b"r", b"p", b"o", b"t"),
        chunk_place(1, 2),
        chunk_place(2, 1),
    }
    assert len(places) == 8


# --- transient errors -------------------------------------------------------------------------


def error(name: str, *bases: type[BaseException], **fields: Any) -> BaseException:
    made = type(name, bases or (Exception,), {})("it failed")
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def caused(outer: BaseException, inner: BaseException) -> BaseException:
    outer.__cause__ = inner
    return outer


@pytest.mark.parametrize(
    "problem",
    [
        TimeoutError("x"),
        ConnectionResetError("x"),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        SystemExit(1),
        error("RateLimitError"),
        error("APITimeoutError"),
        error("APIConnectionError"),
        error("ServiceUnavailable"),
        error("OverloadedError"),
        error("RemoteProtocolError"),
        error("Mine", type("RateLimitError", (Exception,), {})),
        error("HTTPError", status_code=429),
        error("HTTPError", status_code=529),
        error("ClientError", code=503),
        caused(ValueError("no answer"), error("RateLimitError")),
        caused(RuntimeError("a"), caused(RuntimeError("b"), TimeoutError("c"))),
        "RateLimitError('429 for ValueError')",
        "ReadTimeout()",
    ],
    ids=lambda problem: str(getattr(type(problem), "__name__", problem)),
)
def test_limits_and_lost_lines_are_transient(problem: Any) -> None:
    assert is_transient(problem)


@pytest.mark.parametrize(
    "problem",
    [
        ValueError("timeout in the text says nothing"),
        KeyError("RateLimitError"),
        error("OutputParserException"),
        error("BadRequestError", status_code=400),
        error("AuthenticationError", status_code=401),
        error("Coded", code="429"),
        error("Coded", code=["429"]),
        "ValueError('RateLimitError')",
        "OutputParserException('x')",
    ],
    ids=lambda problem: str(getattr(type(problem), "__name__", problem)),
)
def test_other_errors_are_not(problem: Any) -> None:
    assert not is_transient(problem)


def test_an_error_that_causes_itself_is_looked_at_once() -> None:
    problem = ValueError("x")
    assert not is_transient(caused(problem, problem))
