"""Restores values only to see that it works: nothing is copied, nothing is handed out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langgraph_resilient.codec.msgpack import Unpacker
from langgraph_resilient.errors import DataCorrupt, TypeNotAllowed
from langgraph_resilient.records import BLOB_BITS
from langgraph_resilient.restoring import open_blob
from langgraph_resilient.store import rows
from langgraph_resilient.store.cache import Cache
from langgraph_resilient.store.session import Session

if TYPE_CHECKING:
    from langgraph_resilient.maintenance.verification import Check

_CACHE_BYTES = 32 << 20


class RestoreCheck:
    """Restores the values of one thread. Objects are shared between the values that name them.

    Args:
        check: counts what is not restored.
        number: the thread's.
    """

    def __init__(self, check: Check, number: int):
        self._check = check
        self._engine = check.engine
        self._base = number << BLOB_BITS
        self._objects = Cache(_CACHE_BYTES)
        self._unpackers: dict[int, Unpacker] = {}
        self._session: Session | None = None
        self._fetched = False

    def content(self, session: Session, blob: int, raw: bytes, named: bool) -> None:
        """Restore a content; it must name others only if it is marked to.

        Raises:
            DataCorrupt: it cannot be restored. (A class that strict mode refuses is no damage.)
        """
        self._session = session
        self._fetched = False
        try:
            value = self._unpacker(blob >> BLOB_BITS << BLOB_BITS).unpack(raw)
        except TypeNotAllowed:
            self._check.count("not_restored")
            return
        if self._fetched and not named:
            raise DataCorrupt("it names other values and is not marked so")
        self._objects.put(blob, (value,), len(raw) + 256)

    def value(self, session: Session, packed: bytes) -> None:
        """Restore a value of the thread.

        Raises:
            DataCorrupt: it cannot be restored.
        """
        self._session = session
        try:
            self._unpacker(self._base).unpack(packed)
        except TypeNotAllowed:
            self._check.count("not_restored")

    def _unpacker(self, base: int) -> Unpacker:
        found = self._unpackers.get(base)
        if found is None:
            reading, engine = self._check.reading, self._engine
            found = self._unpackers[base] = Unpacker(
                self._fetch,
                base,
                reading.policy or engine.policy,
                engine.key,
                self._opaque,
                lambda values, references: None,
            )
        return found

    def _fetch(self, references: list[int]) -> list[Any]:
        self._fetched = True
        found = self._objects.many(references)
        return [
            entry[0] if entry is not None else self._read(reference)
            for reference, entry in zip(references, found, strict=True)
        ]

    def _read(self, blob: int) -> Any:
        session = self._session
        for number, _, stored in rows.read_blobs(session, blob, blob) if session else ():
            raw, _ = open_blob(self._engine, session, number, stored, None)  # type: ignore[arg-type]
            value = self._unpacker(number >> BLOB_BITS << BLOB_BITS).unpack(raw)
            self._objects.put(number, (value,), len(raw) + 256)
            return value
        raise DataCorrupt(f"value {blob}, which it names, is missing")

    def _opaque(self, kind: str, data: bytes) -> Any:
        serde = self._check.reading.serde
        if serde is None:
            self._check.count("opaque")
            return None
        try:
            return serde.loads_typed((kind, data))
        except Exception as error:
            raise DataCorrupt(
                f"the serializer cannot read it: {type(error).__name__}: {error}"
            ) from error
