"""Histories that a crash has cut: every tool call gets its answer before a model sees them.

Providers refuse a history in which an AI message's tool calls are not followed by answers. Answers
come from the ledger where they are recorded; where not, they say truthfully what is known.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.config import get_config

from langgraph_resilient._aio import Do, drive
from langgraph_resilient.integrations import results
from langgraph_resilient.integrations.runtime import Place, place_of
from langgraph_resilient.ledger import Entry, unknown_text
from langgraph_resilient.saver import ResilientSaver


def repair_messages(
    messages: Sequence[BaseMessage],
    saver: ResilientSaver | None = None,
    thread_id: str | None = None,
) -> list[BaseMessage]:
    """The messages with an answer behind every tool call that had none.

    Args:
        messages: a conversation, about to be sent to a model.
        saver: where recorded results are; by default the running graph's.
        thread_id: the thread; by default the running graph's.

    Returns:
        A new list; the same messages where nothing was missing.
    """
    if not _unanswered(messages):
        return list(messages)
    if thread_id is None:
        place = place_of(get_config(), saver, passthrough=False)
        assert place is not None
    else:
        assert saver is not None
        place = Place({"configurable": {"thread_id": thread_id}}, saver)
    return drive(repair_flow(place, messages))


def repair_flow(
    place: Place, messages: Sequence[BaseMessage]
) -> Generator[Any, Any, list[BaseMessage]]:
    """`repair_messages`, as a flow; gives the very list when nothing is missing."""
    missing = _unanswered(messages)
    if not missing:
        return messages  # type: ignore[return-value]
    entries: list[Entry] = yield Do(partial(place.saver.ledger.entries, place.thread_id))
    known: dict[Any, list[Entry]] = {}
    for entry in entries:
        known.setdefault((entry.message_id, entry.tool_call_id, entry.tool), []).append(entry)
    found: list[BaseMessage] = []
    for index, message in enumerate(messages):
        found.append(message)
        if index + 1 in missing:
            found.extend(_answers(missing[index + 1], known))
    return found


def _unanswered(messages: Sequence[BaseMessage]) -> dict[int, list[tuple[AIMessage, Any]]]:
    """Calls without answers, by where the answers belong: behind those that are there."""
    missing: dict[int, list[tuple[AIMessage, Any]]] = {}
    for index, message in enumerate(messages):
        if not isinstance(message, AIMessage) or not message.tool_calls:
            continue
        end = index + 1
        answered: list[str] = []
        while end < len(messages) and isinstance(messages[end], ToolMessage):
            answered.append(messages[end].tool_call_id)  # type: ignore[attr-defined]
            end += 1
        for call in message.tool_calls:
            if (call["id"] or "") in answered:
                answered.remove(call["id"] or "")
            else:
                missing.setdefault(end, []).append((message, call))
    return missing


def _answers(
    missing: list[tuple[AIMessage, Any]], known: dict[Any, list[Entry]]
) -> list[BaseMessage]:
    found = []
    for message, call in missing:
        entries = known.get((message.id or "", call["id"] or "", call["name"]))
        # Equal calls of one message take their results in turn.
        found.append(_answer(call, entries.pop(0) if entries else None))
    return found


def _answer(call: Any, entry: Entry | None) -> BaseMessage:
    if entry is None:
        return results.told(f"The call to {call['name']} was interrupted before it began.", call)
    if entry.result is not None and entry.state in ("succeeded", "failed"):
        fitted = results.fitted(entry.result, call)
        recorded = [m for m in results.messages_in(fitted) if isinstance(m, ToolMessage)]
        return recorded[0] if recorded else results.told("It succeeded.", call, status="success")
    if entry.state == "failed":
        return results.told(f"The call to {call['name']} failed: {entry.error}", call)
    if entry.state == "suspended":
        return results.told(
            f"The call to {call['name']} waited for a human's answer and did not finish.", call
        )
    return results.told(unknown_text(entry), call)
