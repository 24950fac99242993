"""`saver.journal`: which models were called with what, and what came back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from langchain_core.messages import BaseMessage

from langgraph_resilient.errors import CallNotFound
from langgraph_resilient.journal.book import JournalBook
from langgraph_resilient.records import ModelCallRecord, ordinal
from langgraph_resilient.store.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A recorded model call.

    Attributes:
        number: tells it from the other calls of the database.
        state: ``started`` (no answer yet, or interrupted), ``ended`` (its answer is given back
            after a crash), ``retired`` (what it was made for is durable), ``failed``, ``discarded``
            (its run failed on its answer).
        provider: for example ``openai``.
        model: the model that was asked.
        sent: parameters, tools, tool choice and response format, by the provider's names.
        messages: the conversation that was sent; None where that is not kept.
        answer: what came back.
        model_version: the model that answered, as the provider names it.
        system_fingerprint: of the provider's configuration, where it gives one.
        finish_reason: why the answer ended.
        usage: tokens: ``input_tokens``, ``output_tokens``, …
        request_id: the provider's id of the call.
        started_at: seconds since 1970.
        ended_at: seconds since 1970, or None.
        error: why there is no answer.
        drift: parameters that the code gave and that were not used, because the call went on after
            a crash: by name, the recorded and the current value.
        place: where in the graph it was made.
        tool_call: key of the recorded tool call inside which it was made, or empty.
        flags: ``streamed``.
    """

    number: int
    thread_id: str
    state: str
    provider: str
    model: str
    sent: Mapping[str, Any]
    messages: list[BaseMessage] | None
    answer: BaseMessage | None
    model_version: str
    system_fingerprint: str
    finish_reason: str
    usage: Mapping[str, Any]
    request_id: str
    started_at: float
    ended_at: float | None
    error: str
    drift: Mapping[str, Any]
    place: str
    tool_call: str
    flags: tuple[str, ...]

    @property
    def ordinal(self) -> int:
        """Which call of its thread it is, from 1."""
        return ordinal(self.number)

    @property
    def shape(self) -> dict[str, Any]:
        """What was sent besides tools and parameters: tool choice, response format."""
        return {
            name: value
            for name, value in self.sent.items()
            if name not in self.parameters and name not in ("tools", "functions")
        }

    @property
    def parameters(self) -> dict[str, Any]:
        """What was sent besides tools and formats: temperature, seed, and so on."""
        from langgraph_resilient.journal.request import Request

        return Request(messages=(), sent=self.sent).parameters


class Journal:
    """The model calls of a database.

    Args:
        book: its rows.
    """

    def __init__(self, book: JournalBook):
        self.book = book

    def entries(self, thread_id: str) -> list[ModelCall]:
        """The model calls of a thread in the order of their beginning."""
        with self.book.engine.reading() as session:
            return [
                self._entry(session, record)
                for record in self.book.records(session, str(thread_id), "journal_in")
            ]

    def __call__(self, thread_id: str) -> list[ModelCall]:
        """`entries`."""
        return self.entries(thread_id)

    def get(self, thread_id: str, number: int) -> ModelCall:
        """One call of a thread, by its number or by which one of its thread it is.

        Raises:
            CallNotFound: there is none with this number.
        """
        for entry in self.entries(thread_id):
            if number in (entry.number, entry.ordinal):
                return entry
        raise CallNotFound(
            f"thread {thread_id!r} has no model call {number}; "
            "`langgraph-resilient journal list THREAD` shows what it has"
        )

    async def aentries(self, thread_id: str) -> list[ModelCall]:
        """`entries`, for coroutines."""
        return await self.book.engine.offload.run(partial(self.entries, thread_id))

    async def aget(self, thread_id: str, number: int) -> ModelCall:
        """`get`, for coroutines."""
        return await self.book.engine.offload.run(partial(self.get, thread_id, number))

    def _entry(self, session: Session, record: ModelCallRecord) -> ModelCall:
        values = self.book.values(session, record)
        answer = values.get("answer")
        said: Mapping[str, Any] = getattr(answer, "response_metadata", None) or {}
        return ModelCall(
            number=record.call,
            thread_id=record.thread_id,
            state=record.state.name.lower(),
            provider=record.provider,
            model=record.model,
            sent=values.get("sent") or {},
            messages=values.get("messages"),
            answer=answer,
            model_version=_first(said, "model_name", "model", "model_version"),
            system_fingerprint=_first(said, "system_fingerprint"),
            finish_reason=_first(said, "finish_reason", "stop_reason", "done_reason", "status"),
            usage=getattr(answer, "usage_metadata", None) or {},
            request_id=_first(said, "request_id", "x-request-id", "id"),
            started_at=record.started_at,
            ended_at=record.ended_at,
            error=values.get("error") or "",
            drift=values.get("drift") or {},
            place=record.place,
            tool_call=record.parent.hex(),
            flags=tuple(sorted(record.flags)),
        )


def _first(said: Mapping[str, Any], *names: str) -> str:
    return next((str(said[name]) for name in names if said.get(name)), "")
