"""Makes the golden files of a format: small databases that every later release must read.

Run once per released format, ``python tests/golden/make.py v1`` (``... v3-compact v1`` compacts the
files of an earlier one, ``v4`` has a history of its own), and never again: a file that is there is
not touched. The history below belongs to the files and does not change either; a new
kind of value gets a new history and a new folder.
"""

from __future__ import annotations

import copy
import hashlib
import random
import shutil
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.types import Command, Interrupt, Send
from pydantic import SecretStr

from langgraph_resilient import Cipher, ResilientSaver, lifetimes
from langgraph_resilient.maintenance import compact

HERE = Path(__file__).parent
KEY = bytes(range(32))
GUARDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "keyed": {"integrity_key": KEY},
    "cipher": {"cipher": Cipher(KEY)},
}

Fact = dict[str, Any]


@dataclass
class Recorder:
    """Stores a history in a saver, if there is one, and remembers what must be read back."""

    saver: Any = None
    heads: dict[tuple[str, str], str] = field(default_factory=dict)
    facts: dict[tuple[str, str], list[Fact]] = field(default_factory=dict)
    count: int = 0

    def config(self, thread: str, ns: str) -> dict[str, Any]:
        named = {"thread_id": thread, "checkpoint_ns": ns}
        head = self.heads.get((thread, ns))
        return {"configurable": {**named, "checkpoint_id": head} if head else named}

    def put(self, thread: str, values: Mapping[str, Any], *, ns: str = "", **rest: Any) -> None:
        """The next checkpoint of a thread; every name and time is fixed."""
        self.count += 1
        id = rest.get("id") or str(UUID(int=(1 << 100) + self.count, version=None))
        versions = rest.get("versions") or dict.fromkeys(values, f"{self.count:032}.5")
        checkpoint = {
            "v": 4,
            "id": id,
            "ts": f"2024-05-06T07:08:{self.count % 60:02}.123456+00:00",
            "channel_values": dict(values),
            "channel_versions": versions,
            "versions_seen": {"__input__": {}, "node": dict(versions)},
            "updated_channels": sorted(values) if self.count % 2 else None,
        }
        metadata = {
            "source": "loop",
            "step": self.count,
            "parents": {},
            **rest.get("metadata", {}),
        }
        if self.saver is not None:
            self.saver.put(self.config(thread, ns), checkpoint, metadata, versions)
        fact = {
            "parent": self.heads.get((thread, ns)),
            "checkpoint": checkpoint,
            "metadata": metadata,
            "writes": {},
        }
        self.facts.setdefault((thread, ns), []).insert(0, copy.deepcopy(fact))
        self.heads[thread, ns] = id

    def write(self, thread: str, task: str, writes: list[tuple[str, Any]], ns: str = "") -> None:
        """What a task wrote under the newest checkpoint."""
        if self.saver is not None:
            self.saver.put_writes(self.config(thread, ns), writes, task, "~path")
        known = self.facts[thread, ns][0]["writes"]
        known.update({(task, channel): copy.deepcopy(value) for channel, value in writes})

    def copy(self, source: str, target: str) -> None:
        if self.saver is not None:
            self.saver.copy_thread(source, target)
        for (thread, ns), facts in list(self.facts.items()):
            if thread == source:
                self.facts[target, ns] = copy.deepcopy(facts)
                self.heads[target, ns] = self.heads[source, ns]

    def delete(self, thread: str) -> None:
        if self.saver is not None:
            self.saver.delete_thread(thread)
        for key in [key for key in self.facts if key[0] == thread]:
            del self.facts[key], self.heads[key]


def prose(seed: int, words: int) -> str:
    """Text of a fixed kind that does not compress to nothing."""
    source = random.Random(seed)
    letters = "etaoinshrdlucmfwypvbgk"
    return " ".join(
        "".join(source.choices(letters, weights=range(22, 0, -1), k=source.randint(2, 9)))
        for _ in range(words)
    )


def scalars() -> dict[str, Any]:
    return {
        "none": None,
        "bools": [True, False, 1, 0],
        "numbers": [0, -1, 1 << 63, -(1 << 63), 1 << 64, 10**40, 0.1, -0.0, float("inf")],
        "texts": ["", "é", "\x00", "a\ud800b", "日本語"],
        "bytes": [b"", b"\x00\xff", bytearray(b"\x01\x02")],
        "long text": prose(1, 400),
        "long bytes": bytes(range(256)) * 8,
    }


def containers() -> dict[str, Any]:
    return {
        "tuple": (1, ("two", [3])),
        "set": {1, 2, 3},
        "frozenset": frozenset({"a"}),
        "deque": deque([1, 2], maxlen=5),
        "ordered": OrderedDict([("z", 1), ("a", 2)]),
        "counter": Counter("abca"),
        "keys": {1: "int", "1": "text", (1, 2): "tuple", None: "none", b"b": "bytes"},
        "long list": [f"row {index} of the table" for index in range(200)],
        "long dict": {f"key {index}": {"value": index} for index in range(150)},
        "numbers": list(range(100)),
    }


def objects() -> dict[str, Any]:
    return {
        "date": date(2024, 2, 29),
        "datetime": datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=timezone.utc),
        "offset": datetime(2024, 2, 29, tzinfo=timezone(timedelta(hours=5, minutes=45))),
        "delta": timedelta(days=-1, microseconds=5),
        "decimal": Decimal("1.10"),
        "uuid": UUID(int=77),
        "path": Path("a/b.txt"),
        "error": ValueError("wrong", 7),
        "document": Document(page_content="page", metadata={"n": 1}),
        "secret": SecretStr("correct horse"),
        "send": Send("node", {"x": [HumanMessage("sent", id="s")]}),
        "command": Command(goto="node", update={"a": 1}),
        "interrupt": Interrupt(value={"ask": "?"}, id="i1"),
    }


def chat(turns: int) -> list[BaseMessage]:
    messages: list[BaseMessage] = [SystemMessage("You are helpful.", id="sys")]
    for turn in range(turns):
        call = {"name": "search", "args": {"q": prose(turn, 5)}, "id": f"call{turn}"}
        messages += [
            HumanMessage(prose(100 + turn, 30), id=f"h{turn}"),
            AIMessage(
                [{"type": "text", "text": prose(200 + turn, 60)}],
                id=f"a{turn}",
                tool_calls=[call],
                response_metadata={"model_name": "m", "logprobs": None},
                usage_metadata={"input_tokens": 9, "output_tokens": turn, "total_tokens": 9 + turn},
            ),
            ToolMessage(prose(300 + turn, 120), tool_call_id=f"call{turn}", id=f"t{turn}"),
        ]
    return messages


def history(recorder: Recorder) -> None:
    """Everything that a file of the first format can hold."""
    recorder.put("values", {**scalars(), **containers(), **objects()})
    recorder.put("values", {"numbers": {"nested": [scalars()]}}, metadata={"tags": ["a", None]})
    recorder.write("values", "task-1", list(objects().items()))
    recorder.write("values", str(UUID(int=5)), [("__error__", "boom"), ("__no_writes__", None)])

    long = chat(60)
    for length in range(1, len(long), 12):
        recorder.put("chat", {"messages": long[:length], "step": length})
    late = HumanMessage("its id comes later " * 5)
    recorder.write("chat", "task-late", [("messages", [late])])
    late.id = "late"
    recorder.put("chat", {"messages": [*long[:20], "a text", late, *long[40:]]})
    recorder.put("chat", {"messages": long[:3]}, ns="sub:1", versions={"messages": 7})
    recorder.put("chat", {"messages": long[:4]}, ns="sub:1", versions={"messages": 1 << 70})

    recorder.put("sharing", {"messages": long[:9], "own": prose(9, 300)}, id="no uuid")
    recorder.copy("sharing", "the copy")
    recorder.put("the copy", {"messages": long[:10]})
    recorder.put("deleted", {"messages": [HumanMessage("gone"), long[2]]})
    recorder.delete("deleted")
    recorder.put("", {"the empty name": 1})


def mortal(recorder: Recorder) -> None:
    """What the fourth format added: a time to live, and counts of what a policy skipped."""
    place = ("mortal", "")
    for turn, kept in enumerate((True, False, False, True, False, True)):
        above = recorder.facts.get(place, [])[:1]
        values = {"messages": chat(turn + 1), "branch:to:node": turn}
        recorder.put("mortal", values, metadata={"kept": kept})
        if kept and above:
            recorder.facts[place][0]["parent"] = above[0]["checkpoint"]["id"]
        elif not kept:
            del recorder.facts[place][0]
    recorder.put("free", {"messages": chat(1)})
    if recorder.saver is not None:
        engine = recorder.saver._engine
        lifetimes.set_lifetime(engine, "mortal", 30 * 86_400_000, now=1_700_000_000)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make(folder: Path) -> None:
    """Write the files that are missing, and their digests."""
    folder.mkdir(parents=True, exist_ok=True)
    for guard, options in GUARDS.items():
        path = folder / f"{guard}.bin"
        if path.exists():
            sys.exit(f"{path} is there already; golden files are never made again")
        with ResilientSaver.from_conn_string(path, **options) as saver:
            history(Recorder(saver))
    lines = [f"{digest(path)}  {path.name}\n" for path in sorted(folder.glob("*.bin"))]
    (folder / "SHA256SUMS").write_text("".join(lines))


def make_mortal(folder: Path) -> None:
    """Write the files of the fourth format, and their digests."""
    folder.mkdir(parents=True, exist_ok=True)
    for guard, options in GUARDS.items():
        path = folder / f"{guard}.bin"
        if path.exists():
            sys.exit(f"{path} is there already; golden files are never made again")
        kept: Any = lambda snapshot: snapshot.metadata["kept"]  # noqa: E731
        with ResilientSaver.from_conn_string(path, policy=kept, **options) as saver:
            mortal(Recorder(saver))
    lines = [f"{digest(path)}  {path.name}\n" for path in sorted(folder.glob("*.bin"))]
    (folder / "SHA256SUMS").write_text("".join(lines))


def make_compact(folder: Path, source: Path) -> None:
    """The same for the files of an earlier format, compacted by this release."""
    folder.mkdir(parents=True, exist_ok=True)
    for guard, options in GUARDS.items():
        path = folder / f"{guard}.bin"
        if path.exists():
            sys.exit(f"{path} is there already; golden files are never made again")
        shutil.copy(source / path.name, path)
        with ResilientSaver.from_conn_string(path, **options) as saver:
            compact(saver)
    lines = [f"{digest(path)}  {path.name}\n" for path in sorted(folder.glob("*.bin"))]
    (folder / "SHA256SUMS").write_text("".join(lines))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        make_compact(HERE / sys.argv[1], HERE / sys.argv[2])
    elif sys.argv[1] == "v4":
        make_mortal(HERE / "v4")
    else:
        make(HERE / sys.argv[1])
