"""Which process this is, and whether another one still lives.

A process number alone is no identity: numbers are used again, containers number by themselves, and
machines restart. Reads ``/proc`` where there is one; elsewhere psutil tells the start time.
"""

from __future__ import annotations

import os
import socket
import time
from functools import lru_cache
from pathlib import Path

from langgraph_resilient.process import pid
from langgraph_resilient.records import Owner

_START_TIME = 22
"""Field of /proc/PID/stat: start in clock ticks since boot. No step of the clock changes it."""


def this_process() -> Owner:
    """The owner that this process is; a forked child is another one."""
    return _identity(pid())


@lru_cache(maxsize=8)
def _identity(number: int) -> Owner:
    return Owner(boot=_boot(), host=_host(), pid=number, started=_started(number) or 0)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _host() -> str:
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return f"{socket.gethostname()}/{space}"


def _started(pid: int) -> int | None:
    """When a process of this host started; None when there is none."""
    if Path("/proc/self/stat").exists():
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        fields = text.rsplit(")", 1)[1].split()  # the name before it may hold anything
        return None if fields[0] == "Z" else int(fields[_START_TIME - 3])
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return int(process.create_time())
    except psutil.Error:
        return None


def is_alive(owner: Owner, expires: float, now: float | None = None) -> bool:
    """Whether an owner still runs, as far as this process can tell.

    Args:
        owner: the process asked about.
        expires: until when its lease runs, in seconds since 1970; counts on other hosts only.
        now: the time, for tests.
    """
    me = this_process()
    if (owner.boot, owner.host) == (me.boot, me.host):
        return _started(owner.pid) == owner.started
    return (time.time() if now is None else now) < expires
