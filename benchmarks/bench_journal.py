"""What the journal and the stream buffer cost: a chunk alone and in a row, commits, replayed calls.

    python -m benchmarks.bench_journal [--chunks 10000] [--calls 200] [--json out.json]

Times are medians, taken in turns with what they are compared with in the same run. Exit code 1 when
a limit is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import sqlite3
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from benchmarks.bench_ledger import Figure, bare_connection, commits, timed
from benchmarks.report import machine
from langgraph_resilient import ResilientSaver, durable
from langgraph_resilient.journal import Request
from langgraph_resilient.journal.book import Spot
from langgraph_resilient.stream import StreamBuffer

TOKEN = " token"
ROUNDS = 9
"""How often a stream of chunks in a row is measured."""
PACE = 1e-4
"""Seconds between two chunks of a paced stream."""
TURNS = ("The gauge at the northern pier reads 412 cm and rises. ", "And what was it at noon? ")


class Talker(BaseChatModel):
    """Says the same token again and again, as fast as it is asked, under one message id."""

    tokens: int = 1

    @property
    def _llm_type(self) -> str:
        return "talker"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        answer = AIMessage(TOKEN * self.tokens)
        return ChatResult(generations=[ChatGeneration(message=answer)])

    def _stream(self, *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
        for _number in range(self.tokens):
            yield ChatGenerationChunk(message=AIMessageChunk(content=TOKEN, id="answer"))


class Paced(Talker):
    """Says a token every tenth of a millisecond."""

    def _stream(self, *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
        due = perf_counter()
        for _number in range(self.tokens):
            due += PACE
            while (left := due - perf_counter()) > 0:
                sleep(left / 2)
            yield ChatGenerationChunk(message=AIMessageChunk(content=TOKEN, id="answer"))


class State(TypedDict):
    """A graph's state: nothing that matters."""

    done: bool


def in_node(
    saver: ResilientSaver | None,
    work: Callable[[RunnableConfig], Any],
    thread: str,
    *,
    resume: bool = False,
) -> None:
    """Do something inside a node of a running graph."""

    def node(state: State, config: RunnableConfig) -> State:
        work(config)
        return State(done=True)

    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    graph = builder.compile(checkpointer=saver)
    given = None if resume else State(done=False)
    graph.invoke(given, {"configurable": {"thread_id": thread}})


# --- chunks -----------------------------------------------------------------------------------


def alone(path: Path, chunks: int) -> list[Figure]:
    """A chunk that comes alone, beside a bare commit of one row with ``synchronous=NORMAL``."""
    with ResilientSaver.from_conn_string(path) as saver:
        book = saver.journal.book
        spot = Spot(thread_id="thread", parent=b"", task="", root="", place="node")
        record = book.begin(spot, Request(messages=[HumanMessage("go")]), running=False)
        buffer = StreamBuffer(saver.journal.book.engine, record, book.reading())
        with closing(bare_connection(path, "NORMAL")) as connection:
            content = TOKEN.encode() * 4
            chunk = AIMessageChunk(content=TOKEN, id=record.message_id)
            pairs = [
                (timed(lambda: buffer.chunk(chunk)), timed(lambda: bare(connection, content)))
                for _ in range(chunks)
            ]
    ours, plain = (statistics.median(column) for column in zip(*pairs, strict=True))
    means = [statistics.fmean(column) for column in zip(*pairs, strict=True)]
    return [
        Figure(name="a chunk alone", value=ours / plain, limit=1.5, unit="x bare"),
        Figure(name="a chunk alone", value=ours * 1e6, limit=None, unit="us"),
        Figure(name="a bare commit, NORMAL", value=plain * 1e6, limit=None, unit="us"),
        Figure(name="a chunk alone, mean", value=means[0] / means[1], limit=None, unit="x bare"),
    ]


def bare(connection: sqlite3.Connection, content: bytes) -> None:
    """One commit of one small row."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO bare (content) VALUES (?)", (content,))
    connection.execute("COMMIT")


def in_a_row(folder: Path, chunks: int) -> list[Figure]:
    """Chunks that come as fast as they are taken, beside the same model without the buffer."""
    plain = Talker(tokens=chunks)
    kinds: dict[str, BaseChatModel] = {
        "plain": plain,
        "journal": durable(plain, stream=False),
        "buffer": durable(plain),
    }
    spent: dict[str, list[float]] = {name: [] for name in kinds}
    with ResilientSaver.from_conn_string(folder / "row.db") as saver:
        for number in range(ROUNDS):
            for name, model in kinds.items():
                in_node(saver, partial(_streamed, model, spent[name]), f"{name}-{number}")
    each = {name: statistics.median(times) / chunks * 1e6 for name, times in spent.items()}
    return [
        Figure(
            name="chunks in a row, the buffer's part",
            value=each["buffer"] - each["plain"],
            limit=15.0,
            unit="us each",
        ),
        Figure(
            name="of that, without storing them",
            value=each["journal"] - each["plain"],
            limit=None,
            unit="us each",
        ),
        Figure(name="the model alone", value=each["plain"], limit=None, unit="us each"),
        Figure(
            name="chunks a second with the buffer",
            value=1e6 / each["buffer"],
            limit=None,
            unit="a second",
        ),
    ]


def paced(folder: Path, chunks: int) -> list[Figure]:
    """Chunks that come 10,000 times a second: processor time beside the model without the buffer."""
    plain = Paced(tokens=chunks)
    kinds: dict[str, BaseChatModel] = {"plain": plain, "buffer": durable(plain)}
    spent: dict[str, list[float]] = {name: [] for name in kinds}

    def work(model: BaseChatModel, into: list[float], config: RunnableConfig) -> None:
        busy = process_time()
        count = sum(1 for _ in model.stream("go", config))
        into.append((process_time() - busy) / count * 1e6)

    with ResilientSaver.from_conn_string(folder / "paced.db") as saver:
        for number in range(ROUNDS // 2):
            for name, model in kinds.items():
                in_node(saver, partial(work, model, spent[name]), f"{name}-{number}")
    each = {name: statistics.median(found) for name, found in spent.items()}
    return [
        Figure(
            name="chunks at 10,000 a second, the buffer's part",
            value=each["buffer"] - each["plain"],
            limit=15.0,
            unit="us of processor time each",
        )
    ]


def _streamed(model: BaseChatModel, into: list[float], config: RunnableConfig) -> None:
    gc.collect()
    into.append(timed(lambda: [None for _ in model.stream("go", config)]))


# --- calls ------------------------------------------------------------------------------------


def conversation(length: int) -> list[BaseMessage]:
    """Messages of a chat, none equal to another."""
    kinds = (HumanMessage, AIMessage)
    return [
        kinds[number % 2](f"{number}: {TURNS[number % 2] * 4}", id=f"message-{number}")
        for number in range(length)
    ]


def counted(path: Path, calls: int) -> list[Figure]:
    """Commits that a call takes."""
    found: list[float] = []
    model = durable(Talker())

    def work(config: RunnableConfig) -> None:
        model.invoke("warm", config)
        before = commits(path)
        for number in range(calls):
            model.invoke(f"question {number}", config)
        found.append((commits(path) - before) / calls)

    with ResilientSaver.from_conn_string(path, wal_pages=1 << 20) as saver:
        in_node(saver, work, "thread")
    return [Figure(name="commits a call", value=found[0], limit=2.0, unit="commits")]


def replayed(folder: Path, length: int, calls: int) -> list[Figure]:
    """What a call takes that the journal answers; a process died after it was made."""
    path, prompt = folder / f"{length}.db", conversation(length)
    model = durable(Talker())
    prompts = [
        [*prompt, HumanMessage(f"question {number}", id=f"q{number}")] for number in range(calls)
    ]
    first: list[float] = []
    again: list[float] = []
    known: list[float] = []

    def ask(config: RunnableConfig, into: list[float]) -> None:
        for one in prompts:
            into.append(timed(lambda: model.invoke(one, config)))  # noqa: B023

    def lost(config: RunnableConfig) -> None:
        ask(config, first)
        raise KeyboardInterrupt  # nothing retires: the node has not ended

    with ResilientSaver.from_conn_string(path) as saver:
        with suppress(KeyboardInterrupt):
            in_node(saver, lost, "thread")
    with ResilientSaver.from_conn_string(path) as saver:
        in_node(saver, lambda config: ask(config, again), "thread", resume=True)
        assert len(saver.journal.entries("thread")) == calls, "calls were made anew"
    plain = Talker()
    in_node(None, lambda config: known.extend(plain_times(plain, prompts, config)), "thread")
    what = f"{length + 1} messages" if length else "a short prompt"
    own = statistics.median(again) - statistics.median(known)
    return [
        Figure(
            name=f"a replayed call, {what}",
            value=statistics.median(again) * 1e3,
            limit=None if length else 1.0,
            unit="ms",
        ),
        Figure(name=f"of that, the journal's part, {what}", value=own * 1e3, limit=None, unit="ms"),
        Figure(
            name=f"a call that is recorded, {what}",
            value=statistics.median(first) * 1e3,
            limit=None,
            unit="ms",
        ),
    ]


def plain_times(
    model: BaseChatModel, prompts: Sequence[list[BaseMessage]], config: RunnableConfig
) -> list[float]:
    """How long the same calls take without a journal."""
    return [timed(lambda: model.invoke(one, config)) for one in prompts]  # noqa: B023


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and say by the exit code whether every limit holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--chunks", type=int, default=10_000)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    figures: list[Figure] = []
    start = perf_counter()
    with tempfile.TemporaryDirectory(prefix="journal-") as name:
        folder = Path(name)
        figures += alone(folder / "alone.db", min(options.chunks, 2000))
        figures += in_a_row(folder, options.chunks)
        figures += paced(folder, options.chunks)
        figures += counted(folder / "counted.db", options.calls)
        for length in (0, 200, 1000):
            figures += replayed(folder, length, options.calls)
    print("| figure | value | limit | result |\n| --- | --- | --- | --- |")
    for figure in figures:
        limit = "" if figure.limit is None else f"{figure.limit:g}"
        print(f"| {figure.name} | {figure.value:,.2f} {figure.unit} | {limit} | {figure.result} |")
    print(f"\nin {perf_counter() - start:.0f} s")
    if options.json:
        found = [{**asdict(figure), "result": figure.result} for figure in figures]
        options.json.write_text(json.dumps({"machine": machine(None), "figures": found}, indent=2))
    return int(any(figure.result == "MISS" for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
