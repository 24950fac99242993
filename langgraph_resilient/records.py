"""Frozen values that cross layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BLOB_BITS = 24
"""A blob's number is ``thread << BLOB_BITS | ordinal``."""
ORDINALS = 1 << BLOB_BITS


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadRow:
    """A thread as stored."""

    number: int
    thread_id: str
    spent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceRow:
    """A namespace as stored: where its newest checkpoint is, and how many there are."""

    ns: int
    thread: int
    checkpoint_ns: str
    head: int
    checkpoints: int
    tally: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """A checkpoint as stored, its seal opened."""

    seq: int
    ns: int
    id: bytes
    parent: bytes | None
    frame: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WritesRow:
    """What one task wrote, as stored, its seal opened."""

    ns: int
    checkpoint: bytes
    task: bytes
    frame: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One pending write."""

    task_id: str
    task_path: str
    index: int
    channel: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One checkpoint with everything that belongs to it, restored."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    parent_id: str | None
    seq: int
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    writes: list[Write]
