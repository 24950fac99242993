"""Random but repeatable work for a saver, and the oracle that knows what must be there after it.

A ``Campaign`` is a pure function of its seed: operation number *n* is the same in the child that
does the work and in the parent that checks it. The child writes ``begin n`` before and ``done n``
after each operation to a log; what the parent must find is the state after the last ``done``,
or, if one more had begun, the state after that one, and nothing in between.
"""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from building import Thread, checkpoint_id_of, config, observe
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from property.reference import Reference

from langgraph_resilient import ResilientSaver
from langgraph_resilient.maintenance import migrate, verify

NAMES = [f"t{n}" for n in range(5)]
NEWCOMERS = [f"u{n}" for n in range(3)]
LEGACY = ["old0", "old1"]
ALL_NAMES = [*NAMES, *NEWCOMERS, *LEGACY]
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "the",
    "lazy",
    "dog",
    "while",
    "it",
    "rains",
    "in",
    "the",
    "old",
    "town",
]


@dataclass(frozen=True)
class Operation:
    """One call of one saver method."""

    name: str
    arguments: tuple

    def apply(self, saver: BaseCheckpointSaver) -> None:
        if self.name == "migrate":
            if isinstance(saver, ResilientSaver) and saver._engine.db.is_file:
                migrate(saver)
            return
        getattr(saver, self.name)(*self.arguments)


class Campaign:
    """An endless sequence of operations with a model that knows their outcome."""

    def __init__(self, seed: int, *, legacy: bool = False) -> None:
        self.random = random.Random(seed)
        self.model = Reference()
        self.threads: dict[str, Thread] = {}
        self.count = 0
        self.clock = 0
        if legacy:
            for operation in legacy_operations():
                operation.apply(self.model)
            for name in LEGACY:
                self._follow(name)

    # --- the random world -------------------------------------------------------------------

    def _text(self, size: int) -> str:
        return " ".join(self.random.choices(WORDS, k=max(1, size // 5)))

    def _message(self) -> Any:
        kind = self.random.choice((HumanMessage, AIMessage, ToolMessage))
        extra = {"tool_call_id": "c"} if kind is ToolMessage else {}
        size = self.random.choice((5, 60, 900))
        return kind(self._text(size), id=f"m{self.random.getrandbits(40)}", **extra)

    def _values(self, thread: Thread) -> dict[str, Any]:
        changed: dict[str, Any] = {"n": self.random.getrandbits(30)}
        if self.random.random() < 0.7:
            known = thread.values.get("messages", [])[-12:]
            changed["messages"] = [*known, self._message()]
        if self.random.random() < 0.25:
            changed["document"] = {"text": self._text(6000), "tags": ["a", {"b": [1, 2]}]}
        if self.random.random() < 0.15:
            changed["image"] = self.random.randbytes(self.random.choice((100, 3000, 20_000)))
        return changed

    # --- operations -------------------------------------------------------------------------

    def _put(self, name: str) -> Operation:
        thread = self.threads.setdefault(name, Thread(self.model, name))
        self.clock += 1
        metadata = {"run_id": f"r{self.clock // 6}"}
        arguments = thread.prepare(self._values(thread), metadata, f"{self.clock:08}")
        return Operation("put", arguments)

    def _put_writes(self, name: str) -> Operation:
        task = f"task{self.random.randrange(4)}"
        writes = [("n", self.random.getrandbits(20)) for _ in range(self.random.randrange(1, 4))]
        if self.random.random() < 0.5:
            writes.append(("messages", [self._message()]))
        if self.random.random() < 0.2:
            writes = [("__error__", self._text(100))]
        return Operation("put_writes", (self.threads[name].where, writes, task, f"~{task}"))

    def _choose(self) -> Operation:
        alive = sorted(self.threads)
        kind = self.random.choices(
            ("put", "writes", "prune", "copy", "delete", "runs", "purge", "migrate"),
            (50, 30, 4, 5, 4, 3, 2, 2),
        )[0]
        free = [name for name in NAMES + NEWCOMERS if name not in alive]
        if kind == "put" or not alive:
            return self._put(self.random.choice(NAMES + [n for n in alive if n not in NAMES]))
        name = self.random.choice(alive)
        if kind == "writes":
            return self._put_writes(name)
        if kind == "prune":
            return Operation("prune", (self.random.sample(alive, k=min(2, len(alive))),))
        if kind == "copy" and free:
            return Operation("copy_thread", (name, self.random.choice(free)))
        if kind == "delete":
            return Operation("delete_thread", (name,))
        if kind == "runs":
            recent = max(0, self.clock // 6 - self.random.randrange(3))
            return Operation("delete_for_runs", ([f"r{recent}"],))
        if kind == "purge":
            return Operation("delete_thread", (self.random.choice(NEWCOMERS),))
        return Operation("migrate", ())

    def next(self) -> Operation:
        """The next operation; the model does not know it yet (see ``settle``)."""
        self.count += 1
        return self._choose()

    def settle(self, operation: Operation) -> None:
        """The operation is done: the model and the threads move on."""
        operation.apply(self.model)
        if operation.name == "put":
            where = operation.arguments[0]["configurable"]
            thread = self.threads[where["thread_id"]]
            thread.where = config(where["thread_id"], operation.arguments[1]["id"])
        elif operation.name in ("copy_thread", "delete_thread", "delete_for_runs"):
            for name in ALL_NAMES:
                self._follow(name)

    def _follow(self, name: str) -> None:
        """Go on from the model's head, as an application would that looks it up."""
        head = self.model.get_tuple(config(name))
        if head is None:
            self.threads.pop(name, None)
            return
        known = self.threads.get(name)
        if known is not None and checkpoint_id_of(known.where) == checkpoint_id_of(head.config):
            return
        thread = Thread(self.model, name)
        thread.where = head.config
        thread.values = dict(head.checkpoint["channel_values"])
        thread.versions = dict(head.checkpoint["channel_versions"])
        thread.step = head.metadata["step"]
        self.threads[name] = thread

    def advance(self, count: int) -> None:
        """Do the operations up to number ``count`` on the model alone."""
        while self.count < count:
            self.settle(self.next())


def legacy_operations() -> Iterator[Operation]:
    """What a SqliteSaver had stored in the file before."""
    for name in LEGACY:
        thread = Thread(None, name)  # type: ignore[arg-type]
        for n in range(3):
            changed = {"n": n, "messages": [HumanMessage(f"{name} {n}", id=f"{name}{n}")]}
            arguments = thread.prepare(changed, {"run_id": "legacy"}, f"0-{name}-{n}")
            yield Operation("put", arguments)
            thread.where = config(name, f"0-{name}-{n}")
            yield Operation("put_writes", (thread.where, [("n", n)], f"task{n}", f"~task{n}"))


# --- observing and comparing ----------------------------------------------------------------


def visible(
    saver: BaseCheckpointSaver, names: Iterable[str] = tuple(ALL_NAMES)
) -> dict[str, list[dict]]:
    """All a reader can see; a parent that is gone counts as none."""
    seen = observe(saver, names)
    for items in seen.values():
        known = {item["id"] for item in items}
        for item in items:
            if item["parent"] not in known:
                item["parent"] = None
    return seen


def touched(operation: Operation) -> list[str]:
    """The threads that an operation can change."""
    if operation.name in ("put", "put_writes"):
        return [operation.arguments[0]["configurable"]["thread_id"]]
    if operation.name in ("copy_thread", "delete_thread"):
        return [operation.arguments[-1]]
    return ALL_NAMES


State = dict[str, list[dict]]


def is_between(found: State, before: State, after: State) -> bool:
    """Whether each thread is as it was before an operation or as it is after it.

    ``prune`` and ``delete_for_runs`` change one thread after the other, each in one transaction;
    all other operations change one thread only, so that this means all or nothing.
    """
    names = before.keys() | after.keys() | found.keys()
    return all(found.get(n) in (before.get(n), after.get(n)) for n in names)


class History:
    """What is visible after 0, 1, 2, … operations of a campaign, worked out as it is needed."""

    def __init__(self, seed: int, *, legacy: bool = False) -> None:
        self.campaign = Campaign(seed, legacy=legacy)
        self.states: list[State] = [visible(self.campaign.model)]

    def at(self, number: int) -> State:
        """What is visible after ``number`` operations."""
        while len(self.states) <= number:
            operation = self.campaign.next()
            self.campaign.settle(operation)
            names = touched(operation)
            kept = {k: v for k, v in self.states[-1].items() if k not in names}
            self.states.append({**kept, **visible(self.campaign.model, names)})
        return self.states[number]

    def indexes(self, found: State, last: int) -> list[int]:
        """After which numbers of operations, up to ``last``, this can be what is visible."""
        return [n for n in range(last + 1) if is_between(found, self.at(n), self.at(n + 1))]


def assert_sound(saver: ResilientSaver, path: str) -> None:
    """``verify`` has no finding and SQLite finds its own file, if it is one, whole."""
    report = verify(saver)
    assert report.ok, report
    if "://" in path:
        return
    conn = sqlite3.connect(path)
    try:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    finally:
        conn.close()


# --- the child's log ------------------------------------------------------------------------


@dataclass(frozen=True)
class Log:
    """What the child had begun and what it had seen done, by number of operation."""

    path: str

    def _append(self, text: str, *, sync: bool) -> None:
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(handle, text.encode())
            if sync:
                os.fsync(handle)
        finally:
            os.close(handle)

    def begin(self, number: int) -> None:
        self._append(f"begin {number}\n", sync=False)

    def done(self, number: int) -> None:
        self._append(f"done {number}\n", sync=True)

    def read(self) -> tuple[int, int]:
        """The number of the last operation that was done, and of the last that had begun."""
        done = begun = 0
        if os.path.exists(self.path):
            for line in Path(self.path).read_text().splitlines():
                word, number = line.split()
                if word == "done":
                    done = int(number)
                else:
                    begun = int(number)
        return done, max(done, begun)

    def size(self) -> int:
        return os.path.getsize(self.path) if os.path.exists(self.path) else 0


def work(
    open_saver: Callable[[], Any],
    log: Log,
    seed: int,
    *,
    start: int = 0,
    legacy: bool = False,
    limit: int = 100_000,
) -> None:
    """What the child does: go on with the campaign after operation ``start``."""
    campaign = Campaign(seed, legacy=legacy)
    campaign.advance(start)
    with open_saver() as saver:
        while campaign.count < limit:
            operation = campaign.next()
            log.begin(campaign.count)
            operation.apply(saver)
            log.done(campaign.count)
            campaign.settle(operation)
