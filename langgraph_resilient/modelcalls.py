"""Model calls to rows and back, and when they retire. Knows no models and no requests.

A frame has the shape of a task's writes, as a tool call's has (`calls.packed_call`): collectors and
checkers find what it names alike.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME

from langgraph_resilient import calls
from langgraph_resilient.codec.keys import pack_name
from langgraph_resilient.codec.packed import pack
from langgraph_resilient.codec.seal import Sealer
from langgraph_resilient.errors import CheckpointCorrupt, DataCorrupt, ResilientError
from langgraph_resilient.records import ModelCallRecord, ModelCallState, ordinal
from langgraph_resilient.restoring import unpacked
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Row, Session

if TYPE_CHECKING:
    from langgraph_resilient.draft import Draft, Namespace
    from langgraph_resilient.engine import Engine

_PLACE = struct.Struct(">cqB").pack
_CHUNK_PLACE = struct.Struct(">cqq").pack
Wanted = Callable[[Row], bool]


# --- packed layout ----------------------------------------------------------------------------


def packed_model_call(record: ModelCallRecord) -> bytes:
    """A model call's record as bytes; what stands in columns is not repeated."""
    fields = [
        record.sampling,
        record.place,
        record.provider,
        record.model,
        record.message_id,
        record.started_at,
        record.ended_at,
        record.attempt,
        sorted(record.flags),
    ]
    names = [name for name, _ in record.values]
    return pack([fields, [], names, [value for _, value in record.values]])


def model_call_from(raw: bytes, row: Row, thread_id: str) -> ModelCallRecord:
    """The record again.

    Raises:
        DataCorrupt: the bytes are no model call.
    """
    try:
        fields, _, names, values = unpacked(raw)
        sampling, place, provider, model, message_id, started_at, ended_at = fields[:7]
        attempt, flags = fields[7:]
        return ModelCallRecord(
            call=row[0],
            thread_id=thread_id,
            state=ModelCallState(row[1]),
            request=row[2],
            sampling=sampling,
            parent=row[3],
            task=row[4],
            root=row[5],
            place=place,
            provider=provider,
            model=model,
            message_id=message_id,
            started_at=started_at,
            ended_at=ended_at,
            attempt=attempt,
            flags=frozenset(flags),
            values=tuple(zip(names, values, strict=True)),
        )
    except (ValueError, TypeError) as problem:
        raise DataCorrupt(f"it is no model call: {problem}") from None


# --- sealed rows ------------------------------------------------------------------------------


def journal_place(
    call: int, state: int, request: bytes, parent: bytes, task: bytes, root: bytes
) -> bytes:
    """Where the seal of a model call's row belongs."""
    return _PLACE(b"J", call, state) + pack([request, parent, task, root])


def chunk_place(call: int, first: int) -> bytes:
    """Where the seal of a block of a stream belongs."""
    return _CHUNK_PLACE(b"K", call, first)


def opened_frame(sealer: Sealer, row: Row, thread_id: str) -> bytes:
    """The frame of a model call's row.

    Raises:
        CheckpointCorrupt: its seal does not fit (or what its seal says).
    """
    try:
        return sealer.open(journal_place(*row[:6]), row[6])
    except (DataCorrupt, TypeError, AttributeError, OverflowError, struct.error) as error:
        known = isinstance(error, DataCorrupt) and type(error) is not DataCorrupt
        kind = type(error) if known else CheckpointCorrupt
        raise kind(  # type: ignore[call-arg]
            f"thread {thread_id!r}, model call {ordinal(row[0])}: its record is damaged: {error}; "
            "run `langgraph-resilient verify` for all findings",
            thread_id=thread_id,
        ) from None


def frames_of(session: Session, sealer: Sealer, thread: int, thread_id: str) -> Iterable[bytes]:
    """The frames of all model calls of a thread."""
    for row in session.all("journal_in", *rows.call_bounds(thread)):
        yield opened_frame(sealer, row, thread_id)


def store_model_call(
    draft: Draft, record: ModelCallRecord, blocks: Sequence[tuple[int, bytes]] = ()
) -> None:
    """Put a copied call, and blocks of its stream, into a draft under the thread's next number."""
    first, last = rows.call_bounds(draft.state.number)
    frame = draft.frame(packed_model_call(record), "j")
    sealer = draft.engine.sealer
    columns = (record.state, record.request, record.parent, record.task, record.root)

    def step(session: Session) -> None:
        calls.same_epoch(session, draft)
        newest = session.one("journal_last", first, last)
        call = (newest[0] if newest and newest[0] is not None else first) + 1
        stored = sealer.seal(journal_place(call, *columns), frame)
        session.insert("journal_insert", call, *columns, stored)
        for position, block in blocks:
            sealed = sealer.seal(chunk_place(call, position), block)
            session.run("chunk_insert", position, sealed, call)
        draft.state.open_model_calls = True

    draft.then(step)


def opened_block(sealer: Sealer, row: Row) -> bytes:
    """The frame of a block of a stream.

    Raises:
        DataCorrupt: its seal does not fit.
    """
    try:
        return sealer.open(chunk_place(row[0], row[1]), row[2])
    except (TypeError, AttributeError, OverflowError, struct.error) as error:
        raise DataCorrupt(
            f"block {row[1]} of the stream of model call {ordinal(row[0])} is damaged: {error}"
        ) from None


# --- retiring ---------------------------------------------------------------------------------


def move(
    engine: Engine, session: Session, row: Row, state: ModelCallState, thread_id: str = ""
) -> None:
    """Give a model call another state, inside a write transaction; its stream goes with it."""
    frame = opened_frame(engine.sealer, row, thread_id)
    stored = engine.sealer.seal(journal_place(row[0], state, *row[2:6]), frame)
    session.run("journal_update", state, stored, row[0], row[1])
    session.run("chunks_delete", row[0], row[0])


def retire(
    engine: Engine, session: Session, thread: int, thread_id: str, wanted: Wanted
) -> list[int]:
    """Retire the model calls of a thread whose outcome is durable with this transaction.

    Returns:
        The numbers of those that are left.
    """
    left = []
    for row in session.all("journal_open", *rows.call_bounds(thread)):
        if wanted(row):
            move(engine, session, row, ModelCallState.RETIRED, thread_id)
        else:
            left.append(row[0])
    return left


def discard_last(
    engine: Engine, session: Session, thread: int, thread_id: str, wanted: Wanted
) -> None:
    """The last call of a task that failed is what it choked on: it is not given back again."""
    last = [
        row
        for row in session.all("journal_in", *rows.call_bounds(thread))[-64:]
        if row[1] != ModelCallState.RETIRED and wanted(row)
    ]
    if last and last[-1][1] == ModelCallState.ENDED:
        move(engine, session, last[-1], ModelCallState.DISCARDED, thread_id)


# --- with what a call retires -------------------------------------------------------------------


_UNFINISHED = frozenset((ERROR, INTERRUPT, RESUME))
_TRANSIENT_NAMES = re.compile(
    r"RateLimit|Timeout|TimedOut|Connection|Unavailable|Overloaded|InternalServer|Cancelled"
    r"|TooManyRequests|ServiceError|RemoteProtocol|Network|Interrupt",
    re.IGNORECASE,
)
_TRANSIENT_STATUS = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))


def retire_with_checkpoint(
    draft: Draft, checkpoint_ns: str, id: bytes, metadata: Mapping[str, Any]
) -> None:
    """A new root checkpoint: what was asked before it is durable now.

    The checkpoints of a run may be lost with the process while answers that it got are recorded. The
    run that goes on stores checkpoints anew, ahead of its model calls: they cover only what this run
    itself has asked before them. What an earlier run asked and this one does not is obsolete when
    this run began behind it, or when new input begins another one.
    """
    if checkpoint_ns or not _concerned(draft):
        return
    runs, thread_id = draft.engine.runs, draft.state.thread_id
    is_input = metadata.get("source") == "input"

    def covered(row: Row) -> bool:
        root, head = runs.root_of(thread_id, row[0]), runs.head_of(thread_id)
        if root is not None:
            return not is_input and root < id
        if head is None:
            return not is_input and bool(row[5] < id)
        return bool(row[5] <= head if is_input else row[5] < head)

    draft.then(_retiring(draft, covered))


def retire_with_writes(
    draft: Draft,
    namespace: Namespace,
    checkpoint: bytes,
    task_id: str,
    writes: Sequence[tuple[str, Any]],
) -> None:
    """A task of the root graph has ended: what it asked for is durable, or it choked on it.

    Writes that come before their checkpoint are lost with it when it is never stored; what they
    cover retires with the next checkpoint.
    """
    if namespace.row.checkpoint_ns or not _concerned(draft):
        return
    engine, thread_id, task = draft.engine, draft.state.thread_id, pack_name(task_id)
    number = draft.state.number

    def wanted(row: Row) -> bool:
        return bool((engine.runs.task_of(thread_id, row[0]) or row[4]) == task)

    error = next((value for channel, value in writes if channel == ERROR), None)
    if error is not None:
        if not is_transient(error):
            draft.then(lambda session: discard_last(engine, session, number, thread_id, wanted))
    elif not any(channel in _UNFINISHED for channel, _ in writes):
        retiring = _retiring(draft, wanted)

        def step(session: Session) -> None:
            if session.one("checkpoint_exists", checkpoint, namespace.row.ns) is not None:
                retiring(session)

        draft.then(step)


def retire_with_call(engine: Engine, session: Session, thread: int, key: bytes) -> None:
    """A recorded tool has succeeded: what was asked inside it is not asked again."""
    retire(engine, session, thread, "", lambda row: bool(row[3] == key))


def _concerned(draft: Draft) -> bool:
    state = draft.state
    return state.open_model_calls or draft.engine.runs.has(state.thread_id)


def _retiring(draft: Draft, wanted: Wanted) -> Callable[[Session], None]:
    engine, state = draft.engine, draft.state

    def step(session: Session) -> None:
        left = retire(engine, session, state.number, state.thread_id, wanted)
        engine.runs.forget(state.thread_id, left)
        state.open_model_calls = bool(left)

    return step


def is_transient(error: object) -> bool:
    """Whether a task's error says nothing against the answers it had got: a limit, a lost line.

    A call whose answer a run choked on is made again; after a transient error, what had succeeded
    before it is given back.
    """
    link = error if isinstance(error, BaseException) else None
    if link is None:
        return bool(_TRANSIENT_NAMES.search(str(error).split("(")[0]))
    if isinstance(link, ResilientError):
        return True  # ours: a refusal to go on, or a database that cannot be reached
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        status = getattr(link, "status_code", getattr(link, "code", None))
        known = isinstance(status, int) and status in _TRANSIENT_STATUS
        if known or isinstance(link, (TimeoutError, ConnectionError)):
            return True
        if any(_TRANSIENT_NAMES.search(cls.__name__) for cls in type(link).__mro__[:-2]):
            return True
        link = link.__cause__
    return not isinstance(error, Exception)
