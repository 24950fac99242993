"""Which process began a call, and whether it still lives: real processes, no guesses."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

from building import fork, kill, wait

from langgraph_resilient.ledger.owner import is_alive, this_process

LATER, EARLIER = time.time() + 3600, time.time() - 3600


def owner_of(pid: int):  # type: ignore[no-untyped-def]
    """The owner that a child says it is."""
    me = this_process()
    with open(f"/proc/{pid}/stat") as file:
        started = int(file.read().rsplit(")", 1)[1].split()[19])
    return replace(me, pid=pid, started=started)


def test_this_process_is_alive_whatever_its_lease_says() -> None:
    me = this_process()
    assert me == this_process()
    assert me.pid == os.getpid()
    assert is_alive(me, EARLIER)
    assert is_alive(me, LATER)


def test_a_forked_child_is_another_owner() -> None:
    read, write = os.pipe()
    me = this_process()

    def body() -> None:
        found = this_process()
        os.write(
            write, f"{found.pid} {found == me} {is_alive(me, 0)} {is_alive(found, 0)}".encode()
        )

    pid = fork(body)
    assert wait(pid) == 0
    assert os.read(read, 100).decode() == f"{pid} False True True"
    os.close(read)
    os.close(write)


def test_a_killed_process_is_dead_at_once_also_before_it_is_reaped() -> None:
    pid = fork(signal.pause)
    child = owner_of(pid)
    assert is_alive(child, EARLIER)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # a zombie now
    assert not is_alive(child, LATER)
    assert wait(pid) == -signal.SIGKILL
    assert not is_alive(child, LATER)


def test_a_stopped_process_is_alive() -> None:
    pid = fork(signal.pause)
    child = owner_of(pid)
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)
    try:
        assert is_alive(child, EARLIER)
    finally:
        kill(pid)


def test_a_process_number_that_was_given_out_again_is_another_process() -> None:
    me = this_process()
    assert not is_alive(replace(me, started=me.started - 1), LATER)
    assert not is_alive(replace(me, started=me.started + 1), LATER)


def test_elsewhere_only_the_lease_tells() -> None:
    """Another machine, another boot of this one, another container: their numbers say nothing."""
    me = this_process()
    for other in (
        replace(me, host="elsewhere/"),
        replace(me, boot="another"),
        replace(me, host=""),
    ):
        assert is_alive(other, 100.0, now=99.9)
        assert not is_alive(other, 100.0, now=100.0)
        assert not is_alive(other, 0.0, now=100.0)
        assert is_alive(other, LATER)
        assert not is_alive(other, EARLIER)


def test_an_owner_is_named_for_people_without_its_name_space() -> None:
    me = this_process()
    assert str(replace(me, pid=7, host="box/pid:[4026531836]")) == "process 7 on box"
    assert me.boot
    assert "pid:[" in me.host
