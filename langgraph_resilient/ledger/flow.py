"""One call's way through the ledger, as a generator that yields what is to be done.

Written once for sync and async: `_aio.drive` and `_aio.adrive` carry the effects out (after the
idea of httpx's auth flows). Touches no database itself and knows no graph.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from langgraph.errors import GraphInterrupt, ParentCommand
from typing_extensions import assert_never

from langgraph_resilient import calls
from langgraph_resilient._aio import Call, Do, Pause
from langgraph_resilient.errors import (
    CallRefused,
    LedgerError,
    LostOwnership,
    NotDurable,
    NotRecorded,
    PreconditionFailed,
    ResilientError,
    ThreadBusy,
    UnknownOutcome,
)
from langgraph_resilient.ledger import flights
from langgraph_resilient.ledger.answers import Answer, parse
from langgraph_resilient.ledger.book import Book, Entered
from langgraph_resilient.ledger.decision import Decision
from langgraph_resilient.ledger.entry import Entry
from langgraph_resilient.ledger.invocation import SPENT, CurrentCall, Invocation
from langgraph_resilient.ledger.outcome import Ending, ending_of
from langgraph_resilient.ledger.policy import Done, NotDone
from langgraph_resilient.records import CallRecord, CallState, Effect, Event

logger = logging.getLogger(__name__)

Flow = Generator[Any, Any, Any]
_SHORTEST, _LONGEST = 0.001, 0.05
"""Seconds between two looks at what is waited for."""
_BLOCK = 1 << 20
_STALE = object()


def tool_flow(book: Book, call: Invocation) -> Flow:
    """Run a call, or give back what is recorded of it.

    Returns:
        What the body gave, now or in an earlier run.

    Raises:
        UnknownOutcome: nobody knows whether it took effect, and its policy says so.
        ThreadBusy: another live process runs the thread.
        NotDurable: the checkpoint that asked was not stored in time.
        LostOwnership: another process took the thread over meanwhile.
    """
    cleared, hold = call.reexecute, call.policy.precondition is not None
    waiting = _Waiting(book, call)
    while True:
        found: Entered = yield Do(partial(book.enter, call, cleared=cleared, hold=hold))
        record = found.record
        if found.decision is Decision.WAIT:
            yield Pause(waiting.pause(found))
        elif record is None:
            raise AssertionError("only waiting has no record")
        elif found.decision is Decision.REPLAY:
            result = yield from _replay(book, call, record)
            if result is not _STALE:
                return result
            cleared = True
        elif found.decision is Decision.UNKNOWN:
            told = yield from _clear_up(book, call, record)
            if told is _STALE:
                continue
            if told is not None:
                return told[0]
            cleared = call.cleared = True
        elif found.decision is Decision.START:
            if found.begun:
                return (yield from _run(book, call, record))
            yield from _check(book, call, record)
            hold = False
        else:
            assert_never(found.decision)


# --- running ----------------------------------------------------------------------------------


def _run(book: Book, call: Invocation, record: CallRecord) -> Flow:
    """Run the body of a call that was begun, and record how it ends."""
    step = Call(partial(call.body, current_of(record)))
    try:
        if record.value("answers") is not None:
            call.answers[:] = (yield Do(partial(book.restored, record, "answers")))["answers"]
        try:
            result = yield step
        except BaseException as error:
            yield from _ended(book, call, record, error, begun=step.begun)
            raise
        values = {"result": result, **_answers(call)}
        flags = frozenset({"error"}) if getattr(result, "status", "") == "error" else frozenset()
        if call.policy.artifacts is not None:
            values |= yield Do(partial(_artifacts, call, result))
        yield from _settle(book, record, CallState.SUCCEEDED, values, flags)
        return result
    finally:
        flights.land(book.engine.scope, record.key)


def current_of(record: CallRecord) -> CurrentCall:
    """What the tool may know of the call it runs for."""
    before = record.history[-1].what if record.history else ""
    return CurrentCall(
        key=record.key.hex(),
        idempotency_key=record.key.hex(),
        tool=record.name.tool,
        thread_id=record.name.thread_id,
        attempt=record.attempt,
        epoch=record.epoch,
        interrupted=before.endswith(("(was unknown)", "(was started)")),
        anew=before.endswith("(was succeeded)"),
    )


def _ended(
    book: Book, call: Invocation, record: CallRecord, error: BaseException, *, begun: bool
) -> Flow:
    """Record how a body ended that raised."""
    ending = ending_of(error, call.policy, begun=begun)
    text = f"{type(error).__name__}: {error}"
    values: dict[str, Any]
    flags: frozenset[str] = frozenset()
    if ending is Ending.PARENT:
        state, values = CallState.SUCCEEDED, {"result": error.args[0], **_answers(call)}
        flags = frozenset({"parent"})
    elif ending is Ending.SUSPENDED:
        state, values = CallState.SUSPENDED, _answers(call)
    elif ending is Ending.DEFINITE:
        state, values = CallState.FAILED, {"error": text}
    elif ending is Ending.AMBIGUOUS:
        state, values = CallState.UNKNOWN, {"error": text}
        # For integrations: whoever is further out may be about to turn the error into a message.
        error.__resilient_unknown__ = record.key  # type: ignore[attr-defined]
    else:
        assert_never(ending)
    try:
        yield from _settle(book, record, state, values, flags)
    except CallRefused as refused:
        raise refused from error


def _settle(
    book: Book,
    record: CallRecord,
    state: CallState,
    values: Mapping[str, Any],
    flags: frozenset[str],
) -> Flow:
    """Record how a body ended.

    Raises:
        LostOwnership: the call or its thread was taken over meanwhile.
        NotRecorded: it could not be stored.
    """
    try:
        yield Do(partial(book.settle, record, state, values, flags=flags))
    except LedgerError:
        raise
    except ResilientError as error:
        raise NotRecorded(
            f"tool {record.name.tool!r}, call {record.key.hex()} ended as {state.name.lower()}, but "
            f"that could not be stored: {error}. Its outcome counts as unknown; see that the "
            "database can be written, and resume",
            key=record.key.hex(),
            tool=record.name.tool,
        ) from error


def _answers(call: Invocation) -> dict[str, Any]:
    return {"answers": list(call.answers)} if call.answers else {}


# --- replaying --------------------------------------------------------------------------------


def _replay(book: Book, call: Invocation, record: CallRecord) -> Flow:
    """What is recorded of a call; `_STALE` when its policy rejects that."""
    values = yield Do(partial(book.restored, record, "result", "artifacts"))
    result = values.get("result")
    valid = call.policy.still_valid if call.effect is Effect.PURE else None
    if valid is not None and not (yield Call(partial(valid, result))):
        return _STALE
    if "artifacts" in values:
        changed = yield Do(partial(_changed, values["artifacts"]))
        for path, what in changed:
            logger.warning("tool %s: a file that it made is %s: %s", record.name.tool, what, path)
    book.note_replay(record)
    if "parent" in record.flags:
        raise ParentCommand(result)
    return call.restamp(result)


def _artifacts(call: Invocation, result: Any) -> dict[str, Any]:
    """Size and digest of each file that a call made, by path."""
    assert call.policy.artifacts is not None
    try:
        paths = [Path(path) for path in call.policy.artifacts(result)]
    except Exception as error:  # noqa: BLE001 - the effect is done, and must be recorded as done
        logger.warning("tool %s: artifacts= failed: %s", call.name.tool, type(error).__name__)
        return {}
    return {"artifacts": {str(path): _fingerprint(path) for path in paths}}


def _fingerprint(path: Path) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                hashed.update(block)
            return f"{os.fstat(file.fileno()).st_size}:{hashed.hexdigest()}"
    except OSError:
        return "gone"


def _changed(recorded: Mapping[str, str]) -> list[tuple[str, str]]:
    found = []
    for path, before in recorded.items():
        now = _fingerprint(Path(path))
        if now != before:
            found.append((path, "gone" if now == "gone" else "changed"))
    return found


# --- unknown outcomes -------------------------------------------------------------------------


def _clear_up(book: Book, call: Invocation, record: CallRecord) -> Flow:
    """Find out what became of a call, or ask.

    Returns:
        None when it may run again, `_STALE` when it has changed; else what to tell the model, in
        a tuple.

    Raises:
        UnknownOutcome: the policy says so.
        GraphInterrupt: a human is asked.
    """
    if record.state is CallState.STARTED:
        event = Event(at=time.time(), what=f"left behind by {record.owner}")
        step = partial(book.settle, record, CallState.UNKNOWN, {}, event=event, fenced=False)
        try:
            record = yield Do(step)
        except LostOwnership:
            return _STALE  # somebody else found it, too, and was faster: look again
    entry: Entry = yield Do(partial(book.entry, record))
    if call.policy.verify is not None:
        verdict = yield Call(partial(call.policy.verify, entry))
        found = _verdict(verdict)
        if isinstance(found, Done):
            return (yield from _resolved(book, call, record, found.result, "verify"))
        if isinstance(found, NotDone):
            return None
    policy = call.policy.on_unknown
    if policy == "retry":
        return None
    if policy == "message":
        return (call.tell(unknown_text(entry)),)
    if policy == "raise":
        raise UnknownOutcome(
            f"{unknown_text(entry)} Decide with `langgraph-resilient ledger resolve {entry.key}` "
            "or saver.ledger.resolve, or give its policy verify= or another on_unknown=",
            key=entry.key,
            tool=entry.tool,
        )
    return (yield from _asked(book, call, record, entry))


def _verdict(verdict: Any) -> Done | NotDone | None:
    if verdict is True:
        return Done()
    return NotDone() if verdict is False else verdict


def _resolved(book: Book, call: Invocation, record: CallRecord, result: Any, by: str) -> Flow:
    event = Event(at=time.time(), what="succeeded", by=by)
    result = call.restamp(result)
    yield Do(
        partial(
            book.settle, record, CallState.SUCCEEDED, {"result": result}, event=event, fenced=False
        )
    )
    return (result,)


def _asked(book: Book, call: Invocation, record: CallRecord, entry: Entry) -> Flow:
    """Put the question to a human, and again when the answer cannot be understood."""
    spent: list[str] | None = (yield Do(partial(book.restored, record, "asked"))).get("asked")
    problem = ""
    while True:
        try:
            answer: Answer | str = parse(call.ask({**_question(entry, problem), SPENT: spent}))
        except GraphInterrupt:
            yield from _note_asked(book, call, record, entry, spent)
            raise
        if isinstance(answer, Answer):
            break
        problem = answer
    event = Event(at=time.time(), what=answer.action, by=answer.by or "human", reason=answer.reason)
    if answer.action == "succeeded":
        result = call.restamp(answer.result)
        state, values = CallState.SUCCEEDED, {"result": result}
    elif answer.action == "failed":
        result = call.tell(
            answer.result or f"The call to {entry.tool} failed. {answer.reason}".strip()
        )
        state, values = CallState.FAILED, {"result": result}
    else:
        result, state, values = None, CallState.FAILED, {"error": "cleared to run again"}
    yield Do(partial(book.settle, record, state, values, event=event, fenced=False))
    return None if answer.action == "retry" else (result,)


def _note_asked(
    book: Book, call: Invocation, record: CallRecord, entry: Entry, spent: list[str] | None
) -> Flow:
    """Record that the question was put, and which answer without an id is none to it.

    LangGraph keeps such an answer with the checkpoint, and shows it to every later run of the step:
    what was said before this question was put decides nothing.
    """
    given = call.bare()
    if spent is not None and (given is None or given in spent):
        return
    values = {"error": entry.error, "asked": [*(spent or ()), *([] if given is None else [given])]}
    event = Event(at=time.time(), what="asked")
    yield Do(partial(book.settle, record, CallState.UNKNOWN, values, event=event, fenced=False))


def _question(entry: Entry, problem: str) -> dict[str, Any]:
    question = {
        "kind": "unknown_outcome",
        "message": unknown_text(entry),
        "key": entry.key,
        "tool": entry.tool,
        "arguments": entry.arguments,
        "tool_call_id": entry.tool_call_id,
        "attempt": entry.attempt,
        "started_at": entry.started_at,
        "owner": entry.owner,
        "error": entry.error,
        "answers": ANSWERS,
    }
    return {**question, "problem": problem} if problem else question


ANSWERS = {
    "succeeded": 'it took effect: {"action": "succeeded", "result": what the tool would have said}',
    "retry": 'it did not, run it: {"action": "retry"}',
    "failed": 'it did not, and must not run: {"action": "failed", "result": what to tell the model}',
}


def unknown_text(entry: Entry) -> str:
    """The truth about a call whose outcome nobody knows."""
    how = f" ({entry.error})" if entry.error else ""
    return (
        f"The call to {entry.tool} was interrupted{how}; "
        "whether it took effect is unknown. It was not repeated."
    )


def _check(book: Book, call: Invocation, record: CallRecord) -> Flow:
    """What must hold before a call runs again."""
    entry: Entry = yield Do(partial(book.entry, record))
    assert call.policy.precondition is not None
    if (yield Call(partial(call.policy.precondition, entry))) is False:
        raise PreconditionFailed(
            f"tool {entry.tool!r}, call {entry.key}: its precondition does not hold, so attempt "
            f"{entry.attempt + 1} was not begun; make it hold and resume, or resolve the call",
            key=entry.key,
            tool=entry.tool,
        )


# --- waiting ----------------------------------------------------------------------------------


class _Waiting:
    """How long to pause before the next look, and when to give up."""

    def __init__(self, book: Book, call: Invocation):
        self._options = book.engine.options
        self._call = call
        self._pause = _SHORTEST
        self._since: dict[str, float] = {}

    def pause(self, found: Entered) -> float:
        """Seconds to pause.

        Raises:
            ThreadBusy: another process was waited for long enough.
            NotDurable: the checkpoint was.
        """
        now = time.monotonic()
        waited = now - self._since.setdefault(found.reason, now)
        name = self._call.name
        if found.reason == "checkpoint" and waited > self._options.barrier_wait:
            raise NotDurable(
                f"tool {name.tool!r} did not start: the checkpoint that asked for it was not stored "
                f"within {self._options.barrier_wait:g} s; look for an error of the saver, or raise "
                "barrier_wait",
                tool=name.tool,
            )
        if found.owner is not None and waited > self._options.lease_wait:
            raise ThreadBusy(
                f"thread {name.thread_id!r}: {found.owner} is running its tool calls; waited "
                f"{self._options.lease_wait:g} s for {name.tool!r}. Let it finish, stop it, or raise "
                "lease_wait",
                key=calls.key_of(name).hex(),
                tool=name.tool,
            )
        self._pause = min(self._pause * 1.5, _LONGEST)
        return self._pause
