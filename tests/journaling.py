"""Model calls for the journal's tests, without a graph and without a model."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage

from langgraph_resilient import ResilientSaver
from langgraph_resilient.journal import Request
from langgraph_resilient.journal.book import Spot
from langgraph_resilient.ledger import flights
from langgraph_resilient.records import ModelCallRecord
from langgraph_resilient.store import rows
from langgraph_resilient.stream import StreamBuffer
from langgraph_resilient.stream.buffer import chunks_of, stored

ROOT, TASK = "0001", "task"


def spot(thread: str = "t", **more: Any) -> Spot:
    """A place in a graph."""
    fields = {"parent": b"", "task": TASK, "root": ROOT, "place": "model:1", **more}
    return Spot(thread_id=thread, **fields)


def request(text: str = "pay", **sent: Any) -> Request:
    """What a model is asked."""
    return Request(messages=[HumanMessage(text, id="h")], sent=sent, provider="p", model="m")


def begun(
    saver: ResilientSaver, text: str = "pay", thread: str = "t", **sent: Any
) -> ModelCallRecord:
    """A call that was begun and forgotten: its row says so, and nobody here is making it."""
    record = saver.journal.book.begin(spot(thread), request(text, **sent))
    flights.land(saver._engine.scope, record.call.to_bytes(8, "big"))
    return record


def answered(
    saver: ResilientSaver,
    text: str = "pay",
    thread: str = "t",
    *,
    said: Any = None,
    where: dict[str, Any] | None = None,
    **sent: Any,
) -> ModelCallRecord:
    """A call that was made and has its answer."""
    book = saver.journal.book
    record = book.begin(spot(thread, **(where or {})), request(text, **sent))
    book.end(record, said or AIMessage(f"{text}, yes", id=record.message_id), streamed=False)
    return record


def streaming(
    saver: ResilientSaver, chunks: list[Any], text: str = "pay", thread: str = "t", **sent: Any
) -> ModelCallRecord:
    """A call whose answer was shown in part: texts, or message chunks."""
    record = begun(saver, text, thread, **sent)
    show(saver, record, chunks)
    return record


def show(saver: ResilientSaver, record: ModelCallRecord, chunks: list[Any], at: int = 0) -> None:
    book = saver.journal.book
    buffer = StreamBuffer(book.engine, record, book.reading(), at)
    for chunk in chunks:
        made = AIMessageChunk(chunk) if isinstance(chunk, str) else chunk
        buffer.chunk(made)


def shown(saver: ResilientSaver, record: ModelCallRecord) -> list[Any]:
    """What is stored of a call's stream: texts, or message chunks where they are more."""
    book = saver.journal.book
    with book.engine.reading() as session:
        items = [item for _, item in stored(book, session, record)]
    return [
        chunk if chunk.tool_call_chunks or not isinstance(chunk.content, str) else chunk.content
        for chunk in chunks_of(items, record.message_id)
    ]


def states(saver: ResilientSaver, thread: str = "t") -> list[str]:
    """The states of a thread's calls in their order."""
    return [entry.state for entry in saver.journal(thread)]


def new_run(saver: ResilientSaver, thread: str = "t") -> None:
    """As when LangGraph reads the newest checkpoint to begin a run."""
    saver._engine.runs.begin(thread)


def replayed(saver: ResilientSaver, text: str = "pay", thread: str = "t", **more: Any) -> Any:
    """The recorded answer that a call of a new run gets; None when the model would be called."""
    where = more.pop("where", {})
    book, place = saver.journal.book, spot(thread, **where)
    found = book.match(place, request(text, **more))
    if found.record is None or found.record.answerless:
        return None
    return book.answer(place, found.record)


def count(saver: ResilientSaver, table: str) -> int:
    """How many rows a table has."""
    with saver.cursor() as cursor:
        (found,) = cursor.execute(f"SELECT count(*) FROM resilient_{table}").fetchone()
        return int(found)


def call_numbers(saver: ResilientSaver, thread: str) -> list[int]:
    engine = saver._engine
    with engine.reading() as session:
        row = rows.find_thread(session, engine.sealer, thread)
        assert row is not None
        return [r[0] for r in session.all("journal_in", *rows.call_bounds(row.number))]
