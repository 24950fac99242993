"""A log of effects that outlives every process: what a tool did, counted outside of it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph_resilient.testing.faults import fault_point


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEffect:
    """An effect that happened.

    Attributes:
        name: what happened.
        key: the key that it was done under; that of the recorded tool call where none was given.
        call: the keys of the recorded calls that it happened in, the innermost first.
        result: what the tool said, or will say.
        pid: the process.
    """

    name: str
    key: str | None
    call: tuple[str, ...]
    result: Any
    pid: int


class EffectLog:
    """An append-only file with a line per effect, each durable before the tool goes on.

    Stands for the outside world in a test: a tool calls `record` where it would send the mail. In a
    `crash_sweep` the moments before and after are fault points.

    Args:
        path: the file; it is made with the first effect.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"EffectLog({str(self.path)!r})"

    def record(self, name: str, key: str | None = None, *, result: Any = None) -> None:
        """Let an effect happen; on return it survives SIGKILL and a power cut.

        Args:
            name: what happens, such as ``"mail"``.
            key: what makes it the same effect when it happens again; by default the idempotency
                key of the recorded tool call that is running here.
            result: what the tool will say; a sweep answers a question about the call with it. JSON.
        """
        calls = _calls()
        own = key if key is not None else (calls[0] if calls else None)
        line = {"name": name, "key": own, "call": calls, "result": result, "pid": os.getpid()}
        fault_point("effect.before")
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, json.dumps(line).encode() + b"\n")  # one write: lines never mix
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fault_point("effect.after")

    def entries(self) -> list[LoggedEffect]:
        """All effects, the first one first."""
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")[:-1]  # what has no end did not happen
        return [_effect(json.loads(line)) for line in lines]

    def counts(self) -> Counter[str]:
        """How often each effect happened, by name."""
        return Counter(entry.name for entry in self.entries())

    def keys(self) -> Counter[tuple[str, str | None]]:
        """How often each effect happened, by name and key."""
        return Counter((entry.name, entry.key) for entry in self.entries())

    def clear(self) -> None:
        """Forget everything."""
        self.path.unlink(missing_ok=True)


def _effect(line: Mapping[str, Any]) -> LoggedEffect:
    return LoggedEffect(**{**line, "call": tuple(line["call"])})


def _calls() -> list[str]:
    """The keys of the recorded calls that are running here, the innermost first."""
    from langgraph_resilient.ledger.context import innermost

    found = innermost()
    if found is None:
        return []
    outer = found.call.name.parent.hex()
    return [found.current.key, *([outer] if outer else [])]
