"""What the tool ledger costs: commits, time beside bare commits, replays, parallel calls.

    python -m benchmarks.bench_ledger [--calls 400] [--result-bytes 600] [--json out.json]

Each figure is a ratio to bare commits of a 1 KB row to the same file with the same `synchronous`,
timed in turns with the ledger's own in the same run. Exit code 1 when a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sqlite3
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from langchain_core.messages import ToolMessage

from benchmarks.report import machine
from langgraph_resilient import ResilientSaver, ToolPolicy
from langgraph_resilient._aio import drive
from langgraph_resilient.ledger import Book, Invocation, tool_flow
from langgraph_resilient.ledger.keys import digest_of
from langgraph_resilient.records import CallName

WORDS = [f"{word}{number}" for word in ["alpha", "beta", "gamma", "delta"] for number in range(300)]
PARALLEL = 8


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A measured figure, its limit (None: only shown) and unit."""

    name: str
    value: float
    limit: float | None
    unit: str

    @property
    def result(self) -> str:
        """OK, MISS or — (not judged)."""
        if self.limit is None:
            return "—"
        return "OK" if self.value <= self.limit else "MISS"


def call(number: int, result_bytes: int) -> Invocation:
    """A call of an external tool that does nothing but answer."""
    dice = random.Random(number)
    text = " ".join(dice.choices(WORDS, k=result_bytes // 8))
    arguments = {"to": "somebody@example.org", "amount": number}
    message = ToolMessage(text, name="pay", tool_call_id=f"call_{number}", id=f"answer-{number}")
    return Invocation(
        name=CallName(
            thread_id="thread",
            message_id=f"message-{number}",
            tool_call_id=f"call_{number}",
            tool="pay",
            arguments=digest_of(arguments),
        ),
        policy=ToolPolicy(effect="external"),
        arguments=arguments,
        body=lambda current: message,
        ask=lambda question: None,
        tell=lambda text: text,
    )


def timed(work: Callable[[], Any]) -> float:
    """Seconds that `work` takes."""
    start = perf_counter()
    work()
    return perf_counter() - start


def bare_connection(path: Path, synchronous: str) -> sqlite3.Connection:
    """A plain connection with the saver's settings and a table of its own."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("PRAGMA wal_autocheckpoint = 64")
    connection.execute("CREATE TABLE bare (number INTEGER PRIMARY KEY, content BLOB)")
    return connection


def bare_pair(connection: sqlite3.Connection, content: bytes) -> None:
    """Two commits of a 1 KB row."""
    for _ in range(2):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO bare (content) VALUES (?)", (content,))
        connection.execute("COMMIT")


def commits(path: Path) -> int:
    """How many commits the write-ahead log holds."""
    log = Path(f"{path}-wal").read_bytes()
    size = 24 + int.from_bytes(log[8:12], "big")
    starts = range(32, len(log) - 23, size)
    return sum(int.from_bytes(log[at + 4 : at + 8], "big") != 0 for at in starts)


def run(book: Book, number: int, result_bytes: int) -> None:
    """One call from begin to end."""
    drive(tool_flow(book, call(number, result_bytes)))


def _once(book: Book, one: Invocation) -> None:
    drive(tool_flow(book, one))


def cost(path: Path, synchronous: str, calls: int, result_bytes: int) -> list[Figure]:
    """Begin and finish beside bare commits, and what a replay takes."""
    with ResilientSaver.from_conn_string(path, synchronous=synchronous) as saver:
        book = saver.ledger.book
        run(book, 0, result_bytes)
        connection = bare_connection(path, synchronous)
        content = os.urandom(1024)
        made = [call(number, result_bytes) for number in range(1, calls + 1)]
        pairs = [
            (timed(partial(_once, book, one)), timed(partial(bare_pair, connection, content)))
            for one in made
        ]
        replays = [timed(partial(_once, book, one)) for one in made]
        connection.close()
    ours, bare = (statistics.median(column) for column in zip(*pairs, strict=True))
    limit = 1.3 if synchronous == "FULL" else None
    return [
        Figure(
            name=f"begin + finish, {synchronous}", value=ours / bare, limit=limit, unit="x bare"
        ),
        Figure(
            name=f"a replayed call, {synchronous}",
            value=statistics.median(replays) * 1e3,
            limit=0.2,
            unit="ms",
        ),
    ]


def counted(path: Path, result_bytes: int) -> list[Figure]:
    """Commits a call takes, alone and in parallel."""
    with ResilientSaver.from_conn_string(path, wal_pages=1 << 20) as saver:
        book = saver.ledger.book
        run(book, 0, result_bytes)
        before = commits(path)
        for number in range(1, 101):
            run(book, number, result_bytes)
        alone = (commits(path) - before) / 100
        before = commits(path)
        _parallel(book, range(1000, 1000 + 50 * PARALLEL), result_bytes)
        together = (commits(path) - before) / (50 * PARALLEL)
    return [
        Figure(name="commits a call", value=alone, limit=2.0, unit="commits"),
        Figure(
            name=f"commits a call, {PARALLEL} at once", value=together, limit=1.5, unit="commits"
        ),
    ]


def _parallel(book: Book, numbers: range, result_bytes: int) -> None:
    waiting = list(numbers)

    def worker() -> None:
        while waiting:
            try:
                number = waiting.pop()
            except IndexError:
                return
            run(book, number, result_bytes)

    threads = [threading.Thread(target=worker) for _ in range(PARALLEL)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and say by the exit code whether every limit holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--result-bytes", type=int, default=600)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="ledger-") as folder:
        for synchronous in ("FULL", "NORMAL"):
            path = Path(folder) / f"{synchronous}.db"
            figures += cost(path, synchronous, options.calls, options.result_bytes)
        figures += counted(Path(folder) / "counted.db", options.result_bytes)
    print("| figure | value | limit | result |\n| --- | --- | --- | --- |")
    for figure in figures:
        limit = "" if figure.limit is None else f"{figure.limit:g}"
        print(f"| {figure.name} | {figure.value:.2f} {figure.unit} | {limit} | {figure.result} |")
    if options.json:
        found = [{**asdict(figure), "result": figure.result} for figure in figures]
        options.json.write_text(json.dumps({"machine": machine(None), "figures": found}, indent=2))
    return int(any(figure.result == "MISS" for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
