"""Edits of the ledger's rows by somebody who has no key: refused, or what is missing is only missing.

Every row of both tables is deleted and altered, column by column, and so is each thread's row. A
call may be taken away whole, which nothing counts; none is ever believed to be another one, to
have come out otherwise, or to be another thread's.
"""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from calling import answer, begin, book_of, call, far_owner, make_unknown, run
from test_tampering import EDITED, GUARDS, apply_edit, edits

from langgraph_resilient import ResilientSaver
from langgraph_resilient.errors import DataCorrupt, ResilientError, StorageError

NAMES = ("a", "b")
TABLES = ("resilient_calls", "resilient_leases", "resilient_threads")
Calls = dict[str, list[dict[str, Any]]]


def build(path: str, options: dict[str, Any]) -> None:
    with ResilientSaver.from_conn_string(path, **options) as saver:
        for name in NAMES:
            for n in range(3):
                text = f"{name} {n} " * (1 if n else 300)
                run(saver, call(name, f"c{n}", arguments={"x": text}))
            make_unknown(saver, call(name, "lost"))
            begin(book_of(saver, far_owner()), call(f"far {name}", "running"))
            everywhere = {"key": lambda args, name=name: name, "scope": "global"}
            run(saver, call(name, "all", body=lambda now, n=name: answer(n), **everywhere))


def read(path: str, options: dict[str, Any]) -> Calls:
    """The calls, by every way of reading."""
    with ResilientSaver.from_conn_string(path, **options) as saver:
        found = {
            name: [asdict(entry) for entry in saver.ledger.entries(name)]
            for name in (*NAMES, *(f"far {name}" for name in NAMES))
        }
        found["all"] = [asdict(entry) for entry in saver.ledger.entries()]
        found["unknown"] = [asdict(entry) for entry in saver.ledger.unknown()]
        for items in found.values():
            for item in items:
                assert asdict(saver.ledger.get(item["key"])) == item
        return found


def judged(found: Calls, truth: Calls, table: str) -> str:
    """Whether a read is right; "absent" if all that is wrong is that something is missing.

    Without its lease, a call that runs on another machine is one that nobody runs any more. A call
    for all threads does not know the name of a thread that is gone.
    """
    if found == truth:
        return "right"
    known = list(truth["all"])
    if table == "resilient_leases":
        known += [{**one, "state": "unknown"} for one in known if one["state"] == "started"]
    if table == "resilient_threads":
        known += [{**one, "thread_id": f"(deleted thread {n})"} for one in known for n in range(9)]
    return "absent" if all(item in known for item in found["all"]) else "believed"


@pytest.mark.parametrize("guard", EDITED)
def test_no_single_edit_of_the_ledger_is_believed(tmp_path: Path, guard: str) -> None:
    options, dice, wrong, counts = GUARDS[guard](), random.Random(1), [], Counter()
    healthy, hurt = tmp_path / "healthy.db", tmp_path / "hurt.db"
    build(str(healthy), options)
    truth = read(str(healthy), options)
    with closing(sqlite3.connect(healthy)) as conn:
        everything = [edit for edit in edits(conn, dice) if edit[0].startswith(TABLES)]
    for what, text, values in everything:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{hurt}{suffix}").unlink(missing_ok=True)
        if not apply_edit(healthy, hurt, text, values):
            continue
        try:
            outcome = judged(read(str(hurt), options), truth, what.split(" ")[0].split(".")[0])
        except ResilientError as error:
            outcome = "refused" if isinstance(error, DataCorrupt | StorageError) else repr(error)
        except Exception as error:
            outcome = repr(error)
        counts[outcome] += 1
        if outcome not in ("right", "refused", "absent"):
            wrong.append(f"{what}: {outcome}")
    assert not wrong, "\n".join([*wrong[:40], str(counts)])
    assert counts["refused"] > 100, counts
