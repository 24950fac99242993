"""A process that forks while another of its threads writes: the child can use the database."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from building import Thread, config, fork, wait

from langgraph_resilient import ResilientSaver


@contextmanager
def writing(saver: ResilientSaver, pause: float) -> Iterator[None]:
    """Another thread stores a checkpoint after the other, with a pause between them."""
    over = threading.Event()

    def work() -> None:
        thread = Thread(saver, "busy")
        while not over.wait(pause):
            thread.put({"text": "x" * 20_000})

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join()


def at_once(body: Callable[[], None]) -> int:
    """The exit code of a child; one that waits for a lock is ended."""

    def limited() -> None:
        signal.alarm(10)
        body()

    return wait(fork(limited))


# With a pause the log is copied between two commits; that locks the file, too.
@pytest.mark.parametrize("pause", [0, 0.055], ids=["in commits", "while the log is copied"])
@pytest.mark.parametrize("anew", [False, True], ids=["the parent's saver", "a new saver"])
def test_a_child_is_never_made_in_the_middle_of_a_transaction(
    tmp_path: Path, anew: bool, pause: float
) -> None:
    path = tmp_path / "agent.db"
    with ResilientSaver.from_conn_string(path) as saver:
        Thread(saver, "first").put({"x": 1})
        with writing(saver, pause):
            for number in range(10):
                time.sleep(0.002)

                def body(number: int = number) -> None:
                    if anew:
                        with ResilientSaver.from_conn_string(path) as own:
                            Thread(own, f"child {number}").put({"x": number})
                    else:
                        Thread(saver, f"child {number}").put({"x": number})

                assert at_once(body) == 0, number
        for number in range(10):
            found = saver.get_tuple(config(f"child {number}"))
            assert found is not None
            assert found.checkpoint["channel_values"] == {"x": number}
