"""Rows of a ``SqliteSaver`` file, and what that saver gives back of them. Knows nothing of ours."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import INTERRUPT

from langgraph_resilient.codec.naming import type_name
from langgraph_resilient.maintenance.comparing import Comparer, as_json
from langgraph_resilient.maintenance.reports import Lossy
from langgraph_resilient.records import Write


class Refused(Exception):
    """A thread that ``SqliteSaver`` cannot hold; the text says why."""


class Plain:
    """Inserts into the tables of ``SqliteSaver`` and notes what it would give back changed.

    Args:
        connection: on a database that ``SqliteSaver`` has set up, in autocommit mode.
        serde: the user's serializer; LangGraph's default if None.
    """

    def __init__(self, connection: sqlite3.Connection, serde: Any = None):
        self._connection = connection
        self._serde: SerializerProtocol = serde or JsonPlusSerializer()
        self._comparer = Comparer()
        self._faithful: set[tuple[str, int]] = set()
        self._before: tuple[int, int, dict[Lossy, None]] = (0, 0, {})
        self.checkpoints = 0
        self.writes = 0
        self.lossy: dict[Lossy, None] = {}

    # --- transactions -------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a thread."""
        self._connection.execute("BEGIN")
        self._faithful.clear()
        self._before = (self.checkpoints, self.writes, dict(self.lossy))

    def commit(self) -> None:
        """Keep the thread."""
        self._connection.execute("COMMIT")

    def undo(self) -> None:
        """Forget the thread."""
        self._connection.execute("ROLLBACK")
        self.checkpoints, self.writes, self.lossy = self._before

    # --- rows ---------------------------------------------------------------------------------

    def copy(self, table: str, columns: str, found: Iterable[tuple[Any, ...]]) -> None:
        """Insert rows as they are."""
        marks = ", ".join("?" * (columns.count(",") + 1))
        done = self._connection.executemany(
            f"INSERT INTO {table} ({columns}) VALUES ({marks})", found
        ).rowcount
        if table == "writes":
            self.writes += max(done, 0)
        else:
            self.checkpoints += max(done, 0)

    def checkpoint(
        self,
        spot: tuple[str, str, str],
        parent_id: str | None,
        checkpoint: dict[str, Any],
        metadata: Mapping[str, Any],
        known: Mapping[str, int],
    ) -> None:
        """Insert a checkpoint.

        Args:
            spot: thread, namespace and id.
            parent_id: its parent's id.
            checkpoint: as LangGraph gives it.
            metadata: its metadata.
            known: channel to a number that tells values apart, so that equal ones are compared
                with what comes back only once.

        Raises:
            Refused: ``SqliteSaver`` cannot store it.
        """
        checkpoint = with_text_versions(checkpoint)
        values = checkpoint.get("channel_values") or {}
        kind, body = self._dumped(checkpoint, values)
        unsure = [name for name in values if (name, known.get(name, -1)) not in self._faithful]
        if unsure:
            back = self._loaded(kind, body, "a checkpoint").get("channel_values") or {}
            for name in unsure:
                if self._compare(spot[0], name, values[name], back.get(name)) and name in known:
                    self._faithful.add((name, known[name]))
        self._connection.execute(
            "INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, "
            "parent_checkpoint_id, type, checkpoint, metadata) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*spot, parent_id, kind, body, self._metadata(spot[0], metadata)),
        )
        self.checkpoints += 1

    def write(self, spot: tuple[str, str, str], write: Write) -> None:
        """Insert a pending write.

        Raises:
            Refused: ``SqliteSaver`` cannot store it.
        """
        kind, body = self._dumped(write.value, {write.channel: write.value})
        back = self._loaded(kind, body, f"a write to {write.channel!r}")
        value = write.value
        if write.channel == INTERRUPT and type(value) is tuple:
            value = list(value)  # LangGraph takes both
        self._compare(spot[0], write.channel, value, back)
        self._connection.execute(
            "INSERT INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, "
            "idx, channel, type, value) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *spot,
                write.task_id,
                write.task_path,
                write.index,
                write.channel,
                kind,
                body,
            ),
        )
        self.writes += 1

    # --- values -------------------------------------------------------------------------------

    def _dumped(self, value: Any, parts: Mapping[str, Any]) -> tuple[str, bytes]:
        try:
            return self._serde.dumps_typed(value)
        except Exception as error:
            raise self._refusal(parts, error) from error

    def _refusal(self, parts: Mapping[str, Any], error: Exception) -> Refused:
        for channel, part in parts.items():
            try:
                self._serde.dumps_typed(part)
            except Exception as cause:  # noqa: BLE001 - whatever a foreign serializer raises
                return Refused(
                    f"SqliteSaver cannot store channel {channel!r} "
                    f"({type_name(type(part))}): {type(cause).__name__}: {cause}"
                )
        return Refused(f"SqliteSaver cannot store it: {type(error).__name__}: {error}")

    def _loaded(self, kind: str, body: bytes, what: str) -> Any:
        try:
            return self._serde.loads_typed((kind, body))
        except Exception as error:
            raise Refused(
                f"SqliteSaver could store {what}, but not read it: {type(error).__name__}: {error}"
            ) from error

    def _compare(self, thread_id: str, channel: str, value: Any, back: Any) -> bool:
        if self._comparer.same(value, back):
            return True
        self.lossy[Lossy(thread_id, channel, self._comparer.difference(value, back))] = None
        return False

    def _metadata(self, thread_id: str, metadata: Mapping[str, Any]) -> bytes:
        def as_text(value: Any) -> str:
            self.lossy[Lossy(thread_id, "metadata", type_name(type(value)))] = None
            return repr(value)

        text = json.dumps(as_json(metadata), ensure_ascii=False, default=as_text)
        return text.encode("utf-8", "ignore")


def with_text_versions(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint whose integer versions are ``SqliteSaver``'s text, in the same order.

    That saver goes on with text; LangGraph could not compare it with a number.
    """
    changed = dict(checkpoint)
    versions = checkpoint.get("channel_versions")
    if isinstance(versions, dict):
        changed["channel_versions"] = _text_versions(versions)
    seen = checkpoint.get("versions_seen")
    if isinstance(seen, dict):
        changed["versions_seen"] = {
            node: _text_versions(item) if isinstance(item, dict) else item
            for node, item in seen.items()
        }
    return changed


def _text_versions(versions: Mapping[Any, Any]) -> dict[Any, Any]:
    return {
        channel: f"{version:032}.{0:016}" if type(version) is int else version
        for channel, version in versions.items()
    }
