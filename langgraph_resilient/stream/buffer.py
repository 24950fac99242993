"""Chunks of streaming answers, stored before they are shown.

A chunk that comes alone is one row and one commit without fsync, chunks that come together share
them; a closed stretch is folded into a block. A chunk of plain text is stored as that text, any other one as the message chunk that it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from langchain_core.messages import AIMessageChunk
from msgpack import ExtType

from langgraph_resilient import calls, modelcalls
from langgraph_resilient.codec.memo import Memo
from langgraph_resilient.codec.msgpack import Packer
from langgraph_resilient.codec.packed import OPAQUE, pack
from langgraph_resilient.engine import Engine
from langgraph_resilient.errors import DataCorrupt
from langgraph_resilient.journal import JournalBook
from langgraph_resilient.ledger import Reading
from langgraph_resilient.records import ModelCallRecord, ModelCallState, ordinal
from langgraph_resilient.restoring import unpacked
from langgraph_resilient.store.quick import Statement
from langgraph_resilient.store.session import Session

_FOLD: Final = 64
"""Chunks after which short blocks become one."""
_NOTHING: Final[Any] = None
TEXT, CHUNK, RESET = 0, 1, 2
"""Kinds of an item: a text, any other chunk, "forget what was shown"."""


class Item(NamedTuple):
    """An item of a stream.

    Attributes:
        kind: its kind.
        value: a text, or a message chunk, or nothing.
        message_id: the id that the provider gave the message of a text; empty: the call's own.
    """

    kind: int
    value: Any
    message_id: str = ""


class StreamBuffer:
    """The stream of one model call. Used by one caller at a time.

    Args:
        engine: lends database and codec.
        record: the call.
        reading: what values are stored with.
        position: how many items are stored already.
    """

    def __init__(
        self, engine: Engine, record: ModelCallRecord, reading: Reading, position: int = 0
    ):
        self._engine = engine
        self._call = record.call
        self._message_id = record.message_id
        self._reading = reading
        self._position = position
        self._open: list[Any] = []
        """Packed items that are in no folded block so far, the last of them at `_position` - 1."""
        self._gathered: list[Any] | None = None
        """Items that wait for their common commit."""

    @property
    def position(self) -> int:
        """How many items are stored."""
        return self._position

    def text(self, text: str) -> None:
        """Store a chunk of plain text; on return it survives SIGKILL."""
        self._append([TEXT, text])

    def chunk(self, chunk: AIMessageChunk, text: str | None = None) -> None:
        """Store any chunk; on return it survives SIGKILL.

        Args:
            chunk: the chunk.
            text: its text, where the caller knows that it is nothing else (`plain_text`).
        """
        text = plain_text(chunk) if text is None else text
        if text is None or (self._reading.serde is not None and self._is_named(chunk)):
            self._append([CHUNK, self._packed(chunk)])
        else:
            self._append([TEXT, text, chunk.id] if self._is_named(chunk) else [TEXT, text])

    def _is_named(self, chunk: AIMessageChunk) -> bool:
        """Whether the provider gave the message an id."""
        return chunk.id not in (None, self._message_id)

    def reset(self) -> None:
        """What was shown does not count any more: the answer begins anew."""
        self._append([RESET, None])

    @contextmanager
    def together(self) -> Iterator[None]:
        """Store what comes inside in one commit, at the end; nothing of it after an error."""
        items: list[Any] = []
        self._gathered = items
        try:
            yield
        finally:
            self._gathered = None
        if items:
            self._store(items)

    def _append(self, item: list[Any]) -> None:
        if self._reading.serde is not None and item[0] == TEXT:
            item = [CHUNK, self._opaque(item[1])]
        if self._gathered is None:
            self._store([item])
        else:
            self._gathered.append(item)

    def _store(self, items: list[Any]) -> None:
        """One commit: the items as one block, or with those that stood alone so far."""
        first = self._position
        alone = [*self._open, *items]
        if len(alone) < _FOLD:
            self._write([self._insertion(first, items)])
        else:
            start = first - len(self._open)
            insertion = self._insertion(start, alone, fold=True)
            folded: Statement = ("chunks_fold", (self._call, start, first))
            # Most blocks of a fast stream are new as a whole: one statement is one commit.
            self._write([folded, insertion] if self._open else [insertion])
            alone = []
        self._open = alone
        self._position = first + len(items)

    def _write(self, statements: list[Statement]) -> None:
        self._engine.quick.write(statements)

    def _insertion(self, first: int, items: list[Any], *, fold: bool = False) -> Statement:
        return "chunk_insert", (first, self._sealed(first, items, fold=fold), self._call)

    def _sealed(self, first: int, items: list[Any], *, fold: bool = False) -> bytes:
        raw = pack([items])
        frame = self._engine.frames.encode(raw) if fold else calls.UNCOMPRESSED + raw
        return self._engine.sealer.seal(modelcalls.chunk_place(self._call, first), frame)

    def _packed(self, value: Any) -> bytes:
        if self._reading.serde is not None:
            return self._opaque(value)
        packer = Packer(
            _NOTHING,
            Memo(),
            leaf_bytes=1 << 62,
            message_leaf_bytes=1 << 62,
            max_depth=self._engine.options.max_depth,
            secret_key=self._engine.key,
            inline=True,
        )
        return pack(packer.write("chunk", value))

    def _opaque(self, value: Any) -> bytes:
        assert self._reading.serde is not None
        return pack(ExtType(OPAQUE, pack(list(self._reading.serde.dumps_typed(value)))))


def plain_text(chunk: AIMessageChunk) -> str | None:
    """The text of a chunk that is nothing but text, or None."""
    if type(chunk) is not AIMessageChunk or not isinstance(chunk.content, str):
        return None
    more = (
        chunk.additional_kwargs
        or chunk.response_metadata
        or chunk.tool_call_chunks
        or chunk.usage_metadata
        or chunk.name
        or chunk.chunk_position
    )
    return None if more or not chunk.content else chunk.content


def stored(
    book: JournalBook, session: Session, record: ModelCallRecord, after: int = 0
) -> Iterator[tuple[int, Item]]:
    """The stored items of a call from a position on: position, (kind, text or chunk).

    Raises:
        DataCorrupt: a block is damaged or missing.
    """
    # What came late for a call that is not open any more begins anywhere.
    expected = after if record.state < ModelCallState.RETIRED else None
    for row in session.all("chunks_after", record.call, record.call, after):
        first = row[1]
        if expected is not None and first > expected:
            raise DataCorrupt(
                f"stream of model call {ordinal(record.call)}: what came before {first} is missing"
            )
        items = _items(book, row)
        expected = first + len(items)
        for offset, item in enumerate(items):
            if first + offset >= after:
                yield first + offset, _restored(book, session, record, item)


def _items(book: JournalBook, row: tuple[Any, ...]) -> list[Any]:
    engine = book.engine
    try:
        frame = modelcalls.opened_block(engine.sealer, row)
        items: list[Any] = unpacked(engine.frames.decode(frame))[0]
        return items
    except (TypeError, IndexError) as error:
        raise DataCorrupt(
            f"block {row[1]} of the stream of model call {ordinal(row[0])} is damaged: {error}"
        ) from None


def _restored(
    book: JournalBook, session: Session, record: ModelCallRecord, item: Iterable[Any]
) -> Item:
    found = Item(*item)
    if found.kind != CHUNK:
        return found
    return found._replace(value=book.unpacked(session, record, found.value))


def chunks_of(items: Iterable[Item], message_id: str) -> list[AIMessageChunk]:
    """What counts of the stored items, as message chunks: nothing before the last reset."""
    found: list[AIMessageChunk] = []
    for kind, value, given_id in items:
        if kind == RESET:
            found = []
        elif isinstance(value, AIMessageChunk):
            found.append(value)
        elif kind in (TEXT, CHUNK):
            found.append(AIMessageChunk(content=value, id=given_id or message_id))
    return found
