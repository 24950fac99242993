"""A LangGraph checkpointer that makes agents survive anything.

A public name is loaded from its module when it is first asked for: a pytest plugin lives in this
package, and pytest loads it at every start, also where nothing of it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
        EnvironmentChanged,
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
    from langgraph_resilient.guard import (
        Change,
        Precondition,
        Recovery,
        Unfinished,
        arecover,
        aunfinished,
        guarded,
        recover,
        unfinished,
    )
    from langgraph_resilient.integrations.functions import aonce, once, recorded
    from langgraph_resilient.integrations.middleware import ResilienceMiddleware
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

__all__ = [
    "AfterTools",
    "BlobCorrupt",
    "BusinessKeyReused",
    "CallNotFound",
    "CallRefused",
    "Change",
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
    "EnvironmentChanged",
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
    "Precondition",
    "PreconditionFailed",
    "Recovery",
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
    "Unfinished",
    "UnknownOutcome",
    "Unrestored",
    "ValueRefused",
    "aonce",
    "arecover",
    "aunfinished",
    "awrap_tool_call",
    "current_call",
    "durable",
    "effect",
    "guarded",
    "journaled",
    "once",
    "recorded",
    "recorded_tools",
    "recover",
    "register_strategies",
    "repair_messages",
    "tool_node",
    "unfinished",
    "wrap_tool_call",
]
_MODULES = {
    "codec.cipher": ("Cipher",),
    "codec.registry": ("Unrestored",),
    "errors": (
        "BlobCorrupt",
        "BusinessKeyReused",
        "CallNotFound",
        "CallRefused",
        "CheckpointCorrupt",
        "ConfigurationError",
        "DatabaseCorrupt",
        "DatabaseFull",
        "DatabaseLocked",
        "DatabaseReadOnly",
        "DatabaseUnreachable",
        "DataCorrupt",
        "DecryptionFailed",
        "EnvironmentChanged",
        "JournalError",
        "LedgerError",
        "LostOwnership",
        "NoSaver",
        "NotDurable",
        "NotRecorded",
        "ParametersDrifted",
        "PreconditionFailed",
        "ResilientError",
        "RunDiverged",
        "SaverClosed",
        "SchemaTooNew",
        "StorageError",
        "TamperDetected",
        "ThreadBusy",
        "TypeNotAllowed",
        "UnknownOutcome",
        "ValueRefused",
    ),
    "guard": (
        "Change",
        "Precondition",
        "Recovery",
        "Unfinished",
        "arecover",
        "aunfinished",
        "guarded",
        "recover",
        "unfinished",
    ),
    "integrations.functions": (
        "aonce",
        "once",
        "recorded",
    ),
    "integrations.middleware": ("ResilienceMiddleware",),
    "integrations.models": (
        "ModelOptions",
        "durable",
        "journaled",
    ),
    "integrations.recorder": ("IdempotencyKey",),
    "integrations.repair": ("repair_messages",),
    "integrations.replaying": (
        "Replayer",
        "ReplayReport",
    ),
    "integrations.toolnode": (
        "ToolWrappers",
        "awrap_tool_call",
        "recorded_tools",
        "tool_node",
        "wrap_tool_call",
    ),
    "ledger": (
        "CurrentCall",
        "Done",
        "Entry",
        "NotDone",
        "ToolPolicy",
        "current_call",
        "effect",
    ),
    "options": ("Options",),
    "policy": (
        "AfterTools",
        "EveryRounds",
        "EveryStep",
        "Snapshot",
    ),
    "saver": ("ResilientSaver",),
    "stream": (
        "Strategy",
        "StreamChunk",
        "register_strategies",
    ),
}
_PARTS = ("maintenance", "testing")
"""What can be reached as an attribute, too, without an import of its own."""
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """A public name, from its module; `ResilienceMiddleware` needs ``langchain``."""
    if name in _PARTS:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if name != "ResilienceMiddleware" or missing != "langchain":
            raise
        raise ImportError(
            "ResilienceMiddleware is for create_agent and needs langchain: "
            "pip install 'langgraph-resilient[agents]'"
        ) from error
    found = globals()[name] = getattr(module, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
