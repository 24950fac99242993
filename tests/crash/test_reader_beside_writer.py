"""A process that reads while another one writes never fails and only sees complete states."""

from __future__ import annotations

import time
from pathlib import Path

from building import Thread, config, fork, wait

from langgraph_resilient import ResilientSaver

STEPS = 1500


def test_a_reader_in_another_process_sees_complete_states_only(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with ResilientSaver.from_conn_string(path) as saver:
        Thread(saver).put({"n": 0, "twin": ["pad " * 500, 0]})

    def write() -> None:
        with ResilientSaver.from_conn_string(path) as saver:
            thread = Thread(saver)
            for n in range(1, STEPS + 1):
                thread.put({"n": n, "twin": [f"pad {n} " * 500, n]})

    child = fork(write)
    seen: list[int] = []
    deadline = time.monotonic() + 120
    with ResilientSaver.from_conn_string(path) as saver:
        while (not seen or seen[-1] < STEPS) and time.monotonic() < deadline:
            found = saver.get(config())
            assert found is not None
            values = found["channel_values"]
            assert values["n"] == values["twin"][1]
            seen.append(values["n"])
    assert wait(child) == 0
    assert seen == sorted(seen)
    assert len(set(seen)) > 10, "the reader was never beside the writer"
