"""Checkpoints, threads and observations that the tests share; knows no particular saver."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.base.id import uuid6


def config(thread_id: Any = "t", checkpoint_id: str | None = None, *, ns: str = "") -> dict:
    """A run config that names a thread, a namespace and, if given, a checkpoint."""
    configurable: dict[str, Any] = {"thread_id": thread_id, "checkpoint_ns": ns}
    if checkpoint_id is not None:
        configurable["checkpoint_id"] = checkpoint_id
    return {"configurable": configurable}


def checkpoint_id_of(where: Mapping[str, Any]) -> str:
    return where["configurable"]["checkpoint_id"]


def checkpoint(
    values: Mapping[str, Any] | None = None,
    *,
    versions: Mapping[str, Any] | None = None,
    seen: Mapping[str, Any] | None = None,
    id: str | None = None,
) -> dict:
    """A well-formed checkpoint; each channel has version 1 unless ``versions`` says otherwise."""
    values = dict(values or {})
    return {
        "v": 4,
        "id": id or str(uuid6()),
        "ts": datetime.now(timezone.utc).isoformat(),
        "channel_values": values,
        "channel_versions": dict(versions if versions is not None else dict.fromkeys(values, 1)),
        "versions_seen": {k: dict(v) for k, v in (seen or {}).items()},
        "updated_channels": None,
    }


class Thread:
    """Writes one thread as a graph would: versions grow, each checkpoint names its parent."""

    def __init__(self, saver: BaseCheckpointSaver, thread_id: Any = "t", *, ns: str = "") -> None:
        self.saver = saver
        self.where = config(thread_id, ns=ns)
        self.values: dict[str, Any] = {}
        self.versions: dict[str, int] = {}
        self.step = -2

    def prepare(
        self, changed: Mapping[str, Any], metadata: Mapping[str, Any] | None, id: str | None
    ) -> tuple[dict, dict, dict, dict]:
        """The arguments of the next ``put``; the thread's own state moves on."""
        self.step += 1
        version = self.step + 2
        self.values = {**self.values, **changed}
        self.versions = {**self.versions, **dict.fromkeys(changed, version)}
        body = checkpoint(self.values, versions=self.versions, seen={"node": self.versions}, id=id)
        meta = {"source": "loop", "step": self.step, "parents": {}, **(metadata or {})}
        return self.where, body, meta, dict.fromkeys(changed, version)

    def put(
        self,
        changed: Mapping[str, Any] | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        id: str | None = None,
    ) -> dict:
        """Store the next checkpoint and return its config."""
        self.where = self.saver.put(*self.prepare(changed or {}, metadata, id))
        return self.where

    async def aput(self, changed: Mapping[str, Any], **rest: Any) -> dict:
        arguments = self.prepare(changed, rest.get("metadata"), rest.get("id"))
        self.where = await self.saver.aput(*arguments)
        return self.where


def facts(found: CheckpointTuple) -> dict[str, Any]:
    """What a tuple says, in a form that two savers can be compared by."""
    where = found.config["configurable"]
    parent = found.parent_config
    return {
        "thread": str(where["thread_id"]),
        "ns": where.get("checkpoint_ns", ""),
        "id": where["checkpoint_id"],
        "parent": parent["configurable"]["checkpoint_id"] if parent else None,
        "values": found.checkpoint["channel_values"],
        "versions": found.checkpoint["channel_versions"],
        "seen": found.checkpoint["versions_seen"],
        "metadata": found.metadata,
        "writes": [tuple(write) for write in found.pending_writes or []],
    }


def ids(found: Iterable[CheckpointTuple]) -> list[str]:
    return [item.config["configurable"]["checkpoint_id"] for item in found]


def observe(saver: BaseCheckpointSaver, thread_ids: Iterable[str]) -> dict[str, list[dict]]:
    """Everything a reader can see of the threads: all namespaces, newest first, and the head.

    Threads without checkpoints are left out. The head (``get_tuple`` without an id) of each
    namespace must be the first one listed; that is asserted here because it holds always.
    """
    seen: dict[str, list[dict]] = {}
    for thread_id in thread_ids:
        listed = [facts(item) for item in saver.list({"configurable": {"thread_id": thread_id}})]
        spaces: dict[str, list[dict]] = {}
        for item in listed:
            spaces.setdefault(item["ns"], []).append(item)
        for ns, items in spaces.items():
            head = saver.get_tuple(config(thread_id, ns=ns))
            assert head is not None, f"{thread_id!r}/{ns!r} is listed but has no head"
            assert facts(head) == items[0], f"{thread_id!r}/{ns!r}: the head is not listed first"
        if spaces:
            seen[thread_id] = [item for ns in sorted(spaces) for item in spaces[ns]]
        else:
            assert saver.get_tuple(config(thread_id)) is None
    return seen


# --- processes ------------------------------------------------------------------------------


def fork(body: Callable[[], Any]) -> int:
    """Run ``body`` in a forked child; the child ends with 0, or with 71 and a traceback."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12+: fork with other threads
        pid = os.fork()
    if pid:
        return pid
    code = 71
    try:
        body()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        os._exit(code)


def wait(pid: int) -> int:
    """The child's exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_child(body: Callable[[], Any]) -> int:
    return wait(fork(body))


def assert_running(pid: int) -> None:
    """Say at once, and not after a time-out, that a child of ours has ended by itself."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    assert ended is None, "the child ended by itself; see its traceback"


def kill(pid: int) -> None:
    """SIGKILL a child of ours and reap it; it must have died by that signal."""
    os.kill(pid, signal.SIGKILL)
    assert wait(pid) == -signal.SIGKILL, "the child ended by itself before it was killed"


def plain_id(value: Any) -> str:
    """A test's id that is the same in every process: no addresses, sets in the order of their texts."""
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}({', '.join(sorted(map(plain_id, value)))})"
    shown = value if isinstance(value, str) and value.isprintable() else repr(value)
    return re.sub(r" at 0x[0-9a-f]+", "", shown)
