"""Threads of a SqliteSaver file: whatever deletes them here, they do not come back from there."""

from __future__ import annotations

from typing import Any

import pytest
from building import Thread, config
from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_resilient import ResilientSaver
from langgraph_resilient.maintenance import migrate

ENDINGS: dict[str, Any] = {
    "delete_thread": lambda saver: saver.delete_thread("old"),
    "prune": lambda saver: saver.prune(["old"], strategy="delete"),
    "delete_for_runs": lambda saver: saver.delete_for_runs(["first", "second"]),
}


@pytest.mark.parametrize("moved", ["by migrate", "by a write", "not yet"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_deleted_thread_does_not_come_back_from_the_old_tables(
    db_path: str, ending: str, moved: str
) -> None:
    with SqliteSaver.from_conn_string(db_path) as old:
        thread = Thread(old, "old")
        thread.put({"x": 1}, metadata={"run_id": "first"})
        thread.put({"x": 2}, metadata={"run_id": "second"})
    with ResilientSaver.from_conn_string(db_path) as saver:
        if moved == "by migrate":
            migrate(saver)
        elif moved == "by a write":
            saver.put_writes(saver.get_tuple(config("old")).config, [("x", 3)], "task")
        ENDINGS[ending](saver)
        assert saver.get_tuple(config("old")) is None
        assert list(saver.list(None)) == []
        migrate(saver)
        assert saver.get_tuple(config("old")) is None
    with ResilientSaver.from_conn_string(db_path) as saver:
        assert saver.get_tuple(config("old")) is None


def test_pruned_checkpoints_do_not_come_back_from_the_old_tables(db_path: str) -> None:
    with SqliteSaver.from_conn_string(db_path) as old:
        thread = Thread(old, "old")
        for n in range(3):
            thread.put({"x": n})
    with ResilientSaver.from_conn_string(db_path) as saver:
        saver.prune(["old"])
        migrate(saver)
        found = [item.checkpoint["channel_values"]["x"] for item in saver.list(config("old"))]
    assert found == [2]
