"""Every error a user of the package can meet, in one tree.

Each message says what happened, with which value, and what to do next. Leaves also derive from
the built-in exception that a caller would reach for, so that ``except OSError`` still works.
This module imports nothing of the package.
"""

from __future__ import annotations

from collections.abc import Sequence

from langgraph.errors import GraphBubbleUp


class ResilientError(Exception):
    """Root of all errors raised by langgraph_resilient."""


class ConfigurationError(ResilientError, ValueError):
    """An option, a connection string or a run config has a value that cannot work."""


class SaverClosed(ResilientError, RuntimeError):
    """The saver was used after ``close()``, or after its ``with`` block ended."""


# --- values ---------------------------------------------------------------------------------


class ValueRefused(ResilientError, TypeError):
    """A value in the state cannot be stored so that it comes back equal.

    Attributes:
        channel: the channel (or metadata key) that holds the value.
        path: where inside the channel, as Python subscripts, e.g. ``['rows'][3].owner``.
        type_name: qualified name of the offending type.
    """

    def __init__(self, message: str, *, channel: str = "", path: str = "", type_name: str = ""):
        super().__init__(message)
        self.channel = channel
        self.path = path
        self.type_name = type_name


class TypeNotAllowed(ResilientError, TypeError):
    """Strict mode: stored data names a type outside the allowlist; it was not restored."""

    def __init__(self, message: str, *, type_name: str = ""):
        super().__init__(message)
        self.type_name = type_name


# --- storage --------------------------------------------------------------------------------


class StorageError(ResilientError):
    """The database could not do what was asked."""


class DatabaseLocked(StorageError, TimeoutError):
    """Another process held the database for longer than ``busy_timeout``."""


class DatabaseFull(StorageError, OSError):
    """The disk, the quota or the size limit of the process is used up."""


class DatabaseReadOnly(StorageError, PermissionError):
    """The file or its folder cannot be written."""


class DatabaseUnreachable(StorageError, OSError):
    """The file cannot be opened, or an input/output error occurred."""


class SchemaTooNew(StorageError):
    """The file was written by a newer release than the one that opens it."""


# --- damage ---------------------------------------------------------------------------------


class DataCorrupt(ResilientError):
    """Stored bytes are not what was written. Other threads stay readable.

    Attributes:
        thread_id: the thread that is hit, where known.
        checkpoint_id: the checkpoint that is hit, where known.
        channel: the channel that is hit, where known.
    """

    def __init__(
        self,
        message: str,
        *,
        thread_id: str | None = None,
        checkpoint_id: str | None = None,
        channel: str | None = None,
    ):
        super().__init__(message)
        self.thread_id = thread_id
        self.checkpoint_id = checkpoint_id
        self.channel = channel


class BlobCorrupt(DataCorrupt):
    """A stored value is missing, cut or altered."""


class CheckpointCorrupt(DataCorrupt):
    """A checkpoint row, or the record of a thread's newest checkpoint, is missing or altered."""


class DatabaseCorrupt(DataCorrupt, StorageError):
    """The database file itself is damaged; SQLite cannot walk its pages."""


class TamperDetected(DataCorrupt):
    """A seal made with the integrity key or the cipher does not fit: the file was edited."""


class DecryptionFailed(DataCorrupt):
    """The cipher has no key for a frame, or a plaintext row stands where a cipher is required."""


# --- ledger ---------------------------------------------------------------------------------


class LedgerError(ResilientError):
    """The tool ledger cannot let a call go on.

    Attributes:
        key: the call's key in hexadecimal, for `saver.ledger.resolve` and the CLI.
        tool: the tool's name.
    """

    def __init__(self, message: str, *, key: str = "", tool: str = ""):
        super().__init__(message)
        self.key = key
        self.tool = tool


class CallRefused(LedgerError, GraphBubbleUp):
    """A call must not go on, and its run must stop.

    Passes through whatever turns errors into messages (``ToolNode(handle_tool_errors=True)``, retry
    middleware): a model that is told "error" makes the call once more, as another call.
    """


class UnknownOutcome(CallRefused, RuntimeError):
    """Nobody knows whether an external call took effect; it is not run again by guess."""


class LostOwnership(CallRefused, RuntimeError):
    """Another process took the thread over, or somebody resolved the call; nothing was written."""


class ThreadBusy(CallRefused, TimeoutError):
    """Another live process runs calls of the thread."""


class BusinessKeyReused(LedgerError, ValueError):
    """A business key came again with other arguments; the recorded result is not for them."""


class PreconditionFailed(CallRefused, RuntimeError):
    """What must hold before an external call runs again does not hold."""


class NotDurable(CallRefused, TimeoutError):
    """The checkpoint that asked for an external call was not stored in time; it did not start."""


class NotRecorded(CallRefused, StorageError):
    """A call ended, and how it ended could not be stored: its outcome counts as unknown."""


class CallNotFound(LedgerError, LookupError):
    """The ledger has no call with this key."""


class JournalError(ResilientError):
    """The journal of model calls cannot let a call go on."""


class ParametersDrifted(JournalError, ValueError):
    """A call that a crash interrupted was made with other parameters than the code has now."""


class RunDiverged(JournalError, RuntimeError):
    """A resumed or replayed run asks a model something else than was recorded."""


class NoSaver(CallRefused, RuntimeError):
    """A recorded tool ran in a graph without a `ResilientSaver`."""


# --- resume guard ---------------------------------------------------------------------------


class EnvironmentChanged(ResilientError, RuntimeError):
    """A stopped run must not go on: what it relied on has changed. Nothing of it was run.

    Attributes:
        changes: what has changed, each a `langgraph_resilient.Change`.
    """

    def __init__(self, message: str, *, changes: Sequence[object] = ()):
        super().__init__(message)
        self.changes = tuple(changes)


# --- demo -----------------------------------------------------------------------------------


class DemoFailed(ResilientError, RuntimeError):
    """A process of ``langgraph-resilient demo`` failed by itself, not by the planned kill."""
