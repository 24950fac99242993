"""Channel versions: integers, or strings in a thread that ``SqliteSaver`` began.

The two cannot be compared, so that no thread may have both. Knows nothing of storage.
"""

from __future__ import annotations

import random
from contextvars import ContextVar
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple

_strings: ContextVar[bool] = ContextVar("resilient_string_versions", default=False)
"""Whether the checkpoint that was read last in this context has strings.

LangGraph reads the checkpoint that a run goes on from, then asks for versions. For a channel that was
never written and gets a first one in an old thread (a delta channel, when a run forks) it tells neither
the thread nor the others' versions.
"""


def note(found: CheckpointTuple | None) -> None:
    """Remember of which kind the versions of a checkpoint are that was just read."""
    versions = {} if found is None else found.checkpoint["channel_versions"]
    _strings.set(isinstance(next(iter(versions.values()), None), str))


def following(current: Any) -> Any:
    """The version after another one; the first one after None."""
    if current is None and not _strings.get():
        return 1
    if current is None or isinstance(current, str):
        number = int(current.split(".")[0]) + 1 if current else 1
        return f"{number:032}.{random.random():016}"
    return current + 1
