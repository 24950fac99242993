"""Every tunable of the saver, its default and its unit, in one frozen dataclass."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from langgraph_resilient.errors import ConfigurationError

if TYPE_CHECKING:
    from langgraph_resilient.codec.cipher import Cipher

Synchronous = Literal["FULL", "NORMAL", "EXTRA", "OFF"]

_SYNCHRONOUS = ("FULL", "NORMAL", "EXTRA", "OFF")


_UNITS = {"seconds": 1000, "minutes": 60_000}
_LONGEST = 100 * 366 * 86_400_000


def milliseconds(ttl: float | timedelta, *, unit: str = "seconds") -> int:
    """A time to live in milliseconds.

    Args:
        ttl: the time.
        unit: what a bare number counts, ``seconds`` or ``minutes``.

    Raises:
        ConfigurationError: it is no number, not positive, or longer than a hundred years.
    """
    number = isinstance(ttl, (int, float)) and not isinstance(ttl, bool)
    if not number and not isinstance(ttl, timedelta):
        raise ConfigurationError(f"ttl={ttl!r}: give {unit}, a timedelta, or None for ever")
    found = ttl.total_seconds() * 1000 if isinstance(ttl, timedelta) else ttl * _UNITS[unit]
    if not 0 < found <= _LONGEST:
        raise ConfigurationError(
            f"ttl={ttl!r} must be positive and at most a hundred years; None means for ever"
        )
    return max(1, round(found))


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may tune. Sizes are bytes and times are seconds unless a name says otherwise."""

    synchronous: Synchronous = "FULL"
    """Durability: FULL survives a power cut, NORMAL survives kill -9 only (PostgreSQL: of a client)."""
    busy_timeout: float = 30.0
    """How long to wait for another process that holds the database before `DatabaseLocked`."""
    page_size: int = 4096
    """Page size of files this package creates; existing files keep theirs."""
    wal_pages: int = 64
    """Pages in the write-ahead log after which a commit copies them into the file; when nobody
    writes for a moment, the log is emptied in the background."""
    readers: int = 4
    """Read connections (and threads for async calls) that may work at once."""

    level: int = 7
    """zstandard level for new values."""
    leaf_bytes: int = 1024
    """Strings and bytes at least this long are stored once, by content, outside messages."""
    message_leaf_bytes: int = 8192
    """The same inside messages (a picture sent twice is stored once)."""
    cache_bytes: int = 4 << 20
    """Decoded values kept in memory so that they are not read or decoded twice."""
    max_value_bytes: int = 1 << 30
    """Largest decompressed size of one stored value; more is refused as damage."""
    max_depth: int = 128
    """Deepest nesting of a stored value."""

    strict: bool | None = None
    """Restore only allowed types; None follows the environment (LANGGRAPH_STRICT_MSGPACK)."""
    allowed_types: Iterable[type | tuple[str, str]] = ()
    """Types that strict mode restores besides the standard, langchain and langgraph ones."""
    renamed_types: Mapping[str, type] | None = None
    """Old name "module:Qual.Name" to the class that holds such objects now."""

    lease: float = 30.0
    """For how long a process that runs tool calls of a thread keeps it without a sign of life. Only
    other machines look at it: on one machine a dead process is known to be dead at once."""
    lease_wait: float = 60.0
    """How long a tool call waits for another live process that runs the thread, before
    `ThreadBusy`."""
    barrier_wait: float = 30.0
    """How long an external tool call waits for the checkpoint that asked for it to be stored,
    before `NotDurable`."""

    single_writer: bool = False
    """Fences plain checkpoints, too: a run takes its thread when it begins, and a process that lost the
    thread to another one since stores nothing of its run any more (`LostOwnership`). Updates are
    no runs, and are not fenced. Costs one commit more a run, at most."""

    policy: Callable[[Any], bool] | None = None
    """Which checkpoints are stored (see `langgraph_resilient.policy`); None stores all."""

    ttl: float | timedelta | Mapping[str, Any] | None = None
    """How long threads live after they were last written to, until `expire` deletes them: seconds, or
    a `timedelta`; or in the form of LangGraph's ``TTLConfig``, ``{"default_ttl": minutes,
    "refresh_on_read": bool}``. Stored with each thread that is made; threads that are there keep what
    they have. None: for ever."""

    cipher: Cipher | None = None
    """Encrypts every stored value (AES-GCM); plaintext rows are refused."""
    integrity_key: bytes | None = None
    """Seals every row with this key (at least 16 bytes): edits of the file are refused on reading."""
    rollback_anchor: str | os.PathLike[str] | None = None
    """A file kept elsewhere that remembers the newest commit: an older copy is refused."""

    def __post_init__(self) -> None:
        if self.synchronous not in _SYNCHRONOUS:
            raise ConfigurationError(
                f"synchronous={self.synchronous!r} is not one of {', '.join(_SYNCHRONOUS)}"
            )
        if self.busy_timeout < 0:
            raise ConfigurationError(f"busy_timeout={self.busy_timeout!r} must not be negative")
        for name in ("lease", "lease_wait", "barrier_wait"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name}={getattr(self, name)!r} must be positive")
        self._check_ttl()
        if self.integrity_key is not None and len(self.integrity_key) < 16:
            raise ConfigurationError(
                f"integrity_key has {len(self.integrity_key)} bytes; give at least 16, "
                "for example secrets.token_bytes(32)"
            )

    def _check_ttl(self) -> None:
        if isinstance(self.ttl, Mapping):
            unknown = sorted(set(self.ttl) - {"default_ttl", "refresh_on_read"})
            if unknown:
                raise ConfigurationError(
                    f"ttl has {', '.join(map(repr, unknown))}; it takes 'default_ttl' (minutes) and "
                    "'refresh_on_read'. Nothing is swept in the background: call "
                    "langgraph_resilient.maintenance.expire when it suits you"
                )
        if self.ttl_milliseconds is None and self.refresh_on_read:
            raise ConfigurationError(
                "ttl has 'refresh_on_read' and no 'default_ttl'; give it, in minutes"
            )

    @property
    def ttl_milliseconds(self) -> int | None:
        """How long threads live that are made, in milliseconds."""
        ttl = self.ttl
        if isinstance(ttl, Mapping):
            minutes = ttl.get("default_ttl")
            return None if minutes is None else milliseconds(minutes, unit="minutes")
        return None if ttl is None else milliseconds(ttl)

    @property
    def refresh_on_read(self) -> bool:
        """Whether a thread that is read lives on as if it had been written to."""
        return isinstance(self.ttl, Mapping) and bool(self.ttl.get("refresh_on_read"))

    @classmethod
    def build(cls, values: Mapping[str, Any]) -> Options:
        """Options from keywords.

        Raises:
            ConfigurationError: a keyword is unknown (the message lists the known ones) or has a
                value that cannot work.
        """
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigurationError(
                f"unknown option {', '.join(unknown)}; known options: {', '.join(sorted(known))}"
            )
        return cls(**values)

    @property
    def is_strict(self) -> bool:
        """Whether only allowed types are restored."""
        if self.strict is not None:
            return self.strict
        value = os.environ.get("LANGGRAPH_STRICT_MSGPACK", "false").lower()
        return value in ("1", "true", "yes")

    @property
    def anchor_path(self) -> Path | None:
        """The rollback anchor's path, if one is used."""
        return None if self.rollback_anchor is None else Path(self.rollback_anchor)
