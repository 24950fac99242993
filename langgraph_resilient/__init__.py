"""A LangGraph checkpointer that makes agents survive anything."""

from langgraph_resilient.codec.cipher import Cipher
from langgraph_resilient.codec.registry import Unrestored
from langgraph_resilient.errors import (
    BlobCorrupt,
    CheckpointCorrupt,
    ConfigurationError,
    DatabaseCorrupt,
    DatabaseFull,
    DatabaseLocked,
    DatabaseReadOnly,
    DatabaseUnreachable,
    DataCorrupt,
    DecryptionFailed,
    ResilientError,
    SaverClosed,
    SchemaTooNew,
    StorageError,
    TamperDetected,
    TypeNotAllowed,
    ValueRefused,
)
from langgraph_resilient.options import Options
from langgraph_resilient.saver import ResilientSaver

__all__ = [
    "BlobCorrupt",
    "CheckpointCorrupt",
    "Cipher",
    "ConfigurationError",
    "DataCorrupt",
    "DatabaseCorrupt",
    "DatabaseFull",
    "DatabaseLocked",
    "DatabaseReadOnly",
    "DatabaseUnreachable",
    "DecryptionFailed",
    "Options",
    "ResilientError",
    "ResilientSaver",
    "SaverClosed",
    "SchemaTooNew",
    "StorageError",
    "TamperDetected",
    "TypeNotAllowed",
    "Unrestored",
    "ValueRefused",
]
