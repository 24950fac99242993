"""The common case in one short transaction: a new call of a thread that this process owns.

Small values stand in the call's own row, lightly compressed; nothing is looked up outside the
transaction. Whatever is not the common case gives None, and `book.Book` goes the long way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgpack import ExtType

from langgraph_resilient import calls, modelcalls
from langgraph_resilient.codec.frame import FrameCodec
from langgraph_resilient.codec.keys import pack_name
from langgraph_resilient.codec.memo import Memo
from langgraph_resilient.codec.msgpack import Packer
from langgraph_resilient.codec.packed import OPAQUE, pack
from langgraph_resilient.engine import Engine
from langgraph_resilient.errors import ValueRefused
from langgraph_resilient.ledger.invocation import Invocation
from langgraph_resilient.process import pid
from langgraph_resilient.recording import UserSerde
from langgraph_resilient.records import CallRecord, CallState, Effect
from langgraph_resilient.store.session import Row, Session

_SMALL: Final = 4096
"""Longer values are worth storing once, by content, with the messages they become."""
_WORTH: Final = 1024
"""Bytes from which compressing a row is worth the time."""
_LEVEL: Final = 1
_NOTHING: Final[Any] = None


class Shortcut:
    """Begins and settles calls the short way.

    Args:
        engine: lends database and codec.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        self._frames = FrameCodec(_LEVEL, engine.options.max_value_bytes)
        self._leases: dict[tuple[int, int], Row] = {}

    def lease(self, thread: int) -> Row | None:
        """The row of a lease of this process as it was last seen; a forked child has none."""
        return self._leases.get((pid(), thread))

    def remember(self, thread: int, row: Row) -> None:
        """This process has a lease, or will have it with the transaction under way."""
        self._leases[pid(), thread] = row

    def packed(
        self, values: Mapping[str, Any], serde: UserSerde | None, *, small: bool = True
    ) -> dict[str, bytes] | None:
        """Values packed whole; None when they are not small (if they must be) or are refused."""
        found: dict[str, bytes] = {}
        packer = Packer(
            _NOTHING,
            Memo(),
            leaf_bytes=1 << 62,
            message_leaf_bytes=1 << 62,
            max_depth=self._engine.options.max_depth,
            secret_key=self._engine.key,
            inline=True,
        )
        for name, value in values.items():
            if small and _is_long(value):
                return None
            try:
                tree = (
                    packer.write(name, value)
                    if serde is None
                    else ExtType(OPAQUE, pack(list(dumped(serde, name, value))))
                )
            except ValueRefused:
                return None
            found[name] = pack(tree)
            if small and len(found[name]) > _SMALL:
                return None
        return found

    def thread_of(self, thread_id: str) -> int | None:
        """The number of a thread that this process knows well."""
        engine = self._engine
        engine.open()  # notices a fork
        if engine.anchor is not None:
            return None
        state = engine.state(thread_id)
        try:
            return state.number if state.loaded and state.exists else None
        finally:
            engine.release(state)

    def begin(self, call: Invocation, record: CallRecord, lease: Row, period: int) -> int:
        """Store a new call; its number, or 0 when it is not new or the thread is another's."""
        engine, thread = self._engine, record.home
        if lease[1] - int(record.started_at * 1000) <= period // 2 or record.name.everywhere:
            return 0
        place = calls.call_place(thread, record.key, record.state, record.version)
        stored = engine.sealer.seal(place, calls.UNCOMPRESSED + calls.packed_call(record))
        asked = self._asked(call)
        if asked is None:
            return 0
        bounds = calls.slots(thread, record.key)

        row = (bounds[0], record.key, record.state, record.version, stored)
        # Nothing where the thread has another owner, the asking checkpoint is not stored yet, or a
        # call stands where this one would.
        parameters = (*row, thread, *lease, *bounds, asked[0], *asked)
        return bounds[0] if engine.db.step("call_begin", parameters) else 0

    def _asked(self, call: Invocation) -> tuple[Any, ...] | None:
        """The checkpoint to look for before an external call; None when it is unknown where."""
        asked = call.asked
        if asked is None or call.effect is not Effect.EXTERNAL:
            return (None, None)
        state = self._engine.state(call.name.thread_id)
        try:
            known = state.namespaces.get(asked.checkpoint_ns) if state.loaded else None
        finally:
            self._engine.release(state)
        return None if known is None else (pack_name(asked.checkpoint_id), known.row.ns)

    def settle(self, record: CallRecord, old_version: int, *, fenced: bool = True) -> bool:
        """Store how a call ended; False when it has changed or is not this process's to end."""
        engine, thread = self._engine, calls.thread_of(record.call)
        place = calls.call_place(thread, record.key, record.state, record.version)
        raw = calls.packed_call(record)
        frame = calls.UNCOMPRESSED + raw if len(raw) < _WORTH else self._frames.encode(raw)
        stored = engine.sealer.seal(place, frame)
        row: Row = (record.state, record.version, stored, record.call, record.key, old_version)
        if not fenced:
            return engine.db.step("call_update", row) == 1
        row = (*row, record.home, record.epoch)
        if not engine.runs.ends_inside(record.key):
            return engine.db.step("call_settle", row) == 1

        def work(session: Session) -> int:
            changed = session.run("call_settle", *row)
            if changed == 1 and record.state is CallState.SUCCEEDED:
                modelcalls.retire_with_call(engine, session, record.home, record.key)
            return changed

        return bool(engine.db.write(work) == 1)


def dumped(serde: UserSerde, name: str, value: Any) -> tuple[str, bytes]:
    """What the user's serializer makes of a value.

    Raises:
        ValueRefused: it does not take it, in whatever words.
    """
    try:
        return serde.dumps_typed(value)
    except Exception as error:
        raise ValueRefused(
            f"the serializer does not take the {name} of a call: {type(error).__name__}: {error}",
            channel=name,
            type_name=type(value).__qualname__,
        ) from error


def _is_long(value: Any) -> bool:
    """A cheap first look, so that a picture is not packed twice."""
    content = getattr(value, "content", value)
    return isinstance(content, (str, bytes)) and len(content) > _SMALL
