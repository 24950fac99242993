"""A LangGraph checkpointer that makes agents survive anything."""

from typing import TYPE_CHECKING, Any

from langgraph_resilient.codec.cipher import Cipher
from langgraph_resilient.codec.registry import Unrestored
from langgraph_resilient.errors import (
    BlobCorrupt,
    BusinessKeyReused,
    CallNotFound,
    CallRefused,
    CheckpointCorrupt,
    ConfigurationError,
    DatabaseCorrupt,
    DatabaseFull,
    DatabaseLocked,
    DatabaseReadOnly,
    DatabaseUnreachable,
    DataCorrupt,
    DecryptionFailed,
    JournalError,
    LedgerError,
    LostOwnership,
    NoSaver,
    NotDurable,
    NotRecorded,
    ParametersDrifted,
    PreconditionFailed,
    ResilientError,
    RunDiverged,
    SaverClosed,
    SchemaTooNew,
    StorageError,
    TamperDetected,
    ThreadBusy,
    TypeNotAllowed,
    UnknownOutcome,
    ValueRefused,
)
from langgraph_resilient.integrations.functions import aonce, once, recorded
from langgraph_resilient.integrations.models import ModelOptions, durable, journaled
from langgraph_resilient.integrations.recorder import IdempotencyKey
from langgraph_resilient.integrations.repair import repair_messages
from langgraph_resilient.integrations.replaying import Replayer, ReplayReport
from langgraph_resilient.integrations.toolnode import (
    ToolWrappers,
    awrap_tool_call,
    recorded_tools,
    tool_node,
    wrap_tool_call,
)
from langgraph_resilient.ledger import (
    CurrentCall,
    Done,
    Entry,
    NotDone,
    ToolPolicy,
    current_call,
    effect,
)
from langgraph_resilient.options import Options
from langgraph_resilient.policy import AfterTools, EveryRounds, EveryStep, Snapshot
from langgraph_resilient.saver import ResilientSaver
from langgraph_resilient.stream import Strategy, StreamChunk, register_strategies

if TYPE_CHECKING:
    from langgraph_resilient.integrations.middleware import ResilienceMiddleware

__all__ = [
    "AfterTools",
    "BlobCorrupt",
    "BusinessKeyReused",
    "CallNotFound",
    "CallRefused",
    "CheckpointCorrupt",
    "Cipher",
    "ConfigurationError",
    "CurrentCall",
    "DataCorrupt",
    "DatabaseCorrupt",
    "DatabaseFull",
    "DatabaseLocked",
    "DatabaseReadOnly",
    "DatabaseUnreachable",
    "DecryptionFailed",
    "Done",
    "Entry",
    "EveryRounds",
    "EveryStep",
    "IdempotencyKey",
    "JournalError",
    "LedgerError",
    "LostOwnership",
    "ModelOptions",
    "NoSaver",
    "NotDone",
    "NotDurable",
    "NotRecorded",
    "Options",
    "ParametersDrifted",
    "PreconditionFailed",
    "ReplayReport",
    "Replayer",
    "ResilienceMiddleware",
    "ResilientError",
    "ResilientSaver",
    "RunDiverged",
    "SaverClosed",
    "SchemaTooNew",
    "Snapshot",
    "StorageError",
    "Strategy",
    "StreamChunk",
    "TamperDetected",
    "ThreadBusy",
    "ToolPolicy",
    "ToolWrappers",
    "TypeNotAllowed",
    "UnknownOutcome",
    "Unrestored",
    "ValueRefused",
    "aonce",
    "awrap_tool_call",
    "current_call",
    "durable",
    "effect",
    "journaled",
    "once",
    "recorded",
    "recorded_tools",
    "register_strategies",
    "repair_messages",
    "tool_node",
    "wrap_tool_call",
]


def __getattr__(name: str) -> Any:
    """`ResilienceMiddleware` needs ``langchain``, which is loaded only when it is asked for."""
    if name != "ResilienceMiddleware":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from langgraph_resilient.integrations.middleware import ResilienceMiddleware
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "langchain":
            raise
        raise ImportError(
            "ResilienceMiddleware is for create_agent and needs langchain: "
            "pip install 'langgraph-resilient[agents]'"
        ) from error
    return ResilienceMiddleware
