"""What is measured: seeded conversations and states, and the LangGraph graphs that play them.

Everything a node will answer is made before the clock starts, so that a run's time is LangGraph's
and the saver's. A workload knows nothing of savers: it builds a graph around whatever it is given.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import random
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, cast

import zstandard
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages
from typing_extensions import TypedDict

TRAJECTORIES = Path(__file__).resolve().parents[2] / "shared" / "trajectories"
RECURSION_LIMIT = 10_000
FIXED_ALLOWANCE = 128 * 1024  # bytes: schema, indexes and rows of a database that holds little


# Word sources of the synthetic texts; the other ones show that no size hangs on the first.
SOURCES = ("argparse", "typing", "subprocess")
OTHER_SOURCES = ("pydoc_data.topics", "_pydecimal", "turtle")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is run. Counts; `picture` and `document` are bytes; `conversations` None is all.

    `samples` is how often a reading call is timed.
    """

    name: str
    rounds: int
    short_rounds: int
    conversations: int | None
    steps: int
    crowd: int
    crowd_rounds: int
    picture: int
    document: int
    repetitions: int
    samples: int


SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            name="full",
            rounds=200,
            short_rounds=50,
            conversations=None,
            steps=200,
            crowd=16,
            crowd_rounds=20,
            picture=1_400_000,
            document=1_000_000,
            repetitions=3,
            samples=30,
        ),
        Scale(
            name="quick",
            rounds=60,
            short_rounds=20,
            conversations=12,
            steps=60,
            crowd=16,
            crowd_rounds=5,
            picture=1_400_000,
            document=1_000_000,
            repetitions=1,
            samples=30,
        ),
        Scale(
            name="tiny",
            rounds=3,
            short_rounds=2,
            conversations=1,
            steps=5,
            crowd=2,
            crowd_rounds=2,
            picture=40_000,
            document=20_000,
            repetitions=1,
            samples=1,
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One `invoke`: which thread, and its input."""

    thread_id: str
    inputs: dict[str, Any]

    @property
    def config(self) -> RunnableConfig:
        """A fresh config of the thread, with room for long conversations."""
        return {
            "configurable": {"thread_id": self.thread_id},
            "recursion_limit": RECURSION_LIMIT,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A graph to build and the turns to play on it.

    `build(saver, snapshot_frequency)` compiles the graph; a snapshot frequency asks for a
    `DeltaChannel` where the graph holds messages. `floor()` is the least the content takes.
    """

    name: str
    turns: Sequence[Turn]
    build: Callable[[Any, int | None], Any]
    floor: Callable[[], int]

    @property
    def thread_ids(self) -> list[str]:
        """The threads in order of their first turn."""
        return list(dict.fromkeys(turn.thread_id for turn in self.turns))


# ---- text ------------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def _words(modules: tuple[str, ...]) -> tuple[str, ...]:
    specs = [importlib.util.find_spec(module) for module in modules]
    paths = [Path(spec.origin) for spec in specs if spec is not None and spec.origin]
    return tuple(word for path in paths for word in path.read_text("utf-8").split())


def text(rng: random.Random, size: int, modules: tuple[str, ...] = SOURCES) -> str:
    """Return at least `size` characters, drawn word by word from large source files."""
    words = _words(modules)
    chosen: list[str] = []
    length = 0
    while length < size:
        chosen.append(rng.choice(words))
        length += len(chosen[-1]) + 1
    return " ".join(chosen)


# ---- conversations ---------------------------------------------------------------------------


def _round(rng: random.Random, modules: tuple[str, ...]) -> list[BaseMessage]:
    alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    calls = [
        {
            "name": f"tool{number}",
            "args": {"query": text(rng, 30, modules), "n": number},
            "id": "call_" + "".join(rng.choices(alphabet, k=24)),
        }
        for number in range(3)
    ]
    results = [
        ToolMessage(
            text(rng, rng.randint(2000, 6000), modules),
            tool_call_id=call["id"],
            name=str(call["name"]),
        )
        for call in calls
    ]
    return [
        HumanMessage(text(rng, 200, modules)),
        AIMessage(text(rng, 400, modules), tool_calls=calls),
        *results,
        AIMessage(text(rng, 1200, modules)),
    ]


def synthetic_conversation(
    seed: int, rounds: int, modules: tuple[str, ...] = SOURCES
) -> list[BaseMessage]:
    """Return a chat with tools; a round is 200 B, 400 B + 3 calls, 3 results of 2-6 KB, 1.2 KB."""
    rng = random.Random(seed)
    return [message for _ in range(rounds) for message in _round(rng, modules)]


def _kind(message: BaseMessage) -> str:
    return {"ai": "model", "tool": "tools"}.get(message.type, "input")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one superstep (or one input) adds: a model's message, its results, or the user's."""

    kind: str
    start: int
    messages: Sequence[BaseMessage]

    def fresh(self) -> list[BaseMessage]:
        """Return copies, as a model and its tools would make new objects."""
        return [message.model_copy() for message in self.messages]


def script_of(messages: Sequence[BaseMessage]) -> list[Step]:
    """Cut a conversation into supersteps: each model message alone, results together."""
    steps: list[Step] = []
    position = 0
    for kind, group in groupby(messages, key=_kind):
        members = list(group)
        parts = [[member] for member in members] if kind == "model" else [members]
        for part in parts:
            steps.append(Step(kind=kind, start=position, messages=part))
            position += len(part)
    return steps


def _turns(thread_id: str, script: Sequence[Step]) -> Iterator[Turn]:
    if script and script[0].kind != "input":
        yield Turn(thread_id=thread_id, inputs={"messages": []})
    for step in script:
        if step.kind == "input":
            yield Turn(thread_id=thread_id, inputs={"messages": step.fresh()})


def _messages_state(snapshot_frequency: int | None) -> type:
    channel: Any = add_messages
    if snapshot_frequency is not None:
        reducer = cast(Any, _messages_delta_reducer)
        channel = DeltaChannel(reducer, snapshot_frequency=snapshot_frequency)
    fields: Any = {"messages": Annotated[list[Any], channel]}
    return TypedDict("ChatState", fields)  # type: ignore[operator, no-any-return]


def _chat_graph(
    scripts: Mapping[str, Mapping[int, Step]], saver: Any, snapshot_frequency: int | None
) -> Any:
    def upcoming(state: Mapping[str, Any], config: RunnableConfig) -> Step | None:
        script = scripts[config["configurable"]["thread_id"]]
        return script.get(len(state["messages"]))

    def play(state: dict[str, Any], config: RunnableConfig) -> dict[str, Any]:
        step = upcoming(state, config)
        return {"messages": step.fresh() if step else []}

    def route(state: dict[str, Any], config: RunnableConfig) -> str:
        step = upcoming(state, config)
        return END if step is None or step.kind == "input" else step.kind

    builder = StateGraph(cast(Any, _messages_state(snapshot_frequency)))
    ways: dict[Hashable, str] = {"model": "model", "tools": "tools", END: END}
    for node in ("model", "tools"):
        builder.add_node(node, cast(Any, play))
        builder.add_conditional_edges(node, route, ways)
    builder.add_conditional_edges(START, route, ways)
    return builder.compile(checkpointer=saver)


def conversations_workload(
    name: str, conversations: Mapping[str, Sequence[BaseMessage]]
) -> Workload:
    """Make a workload that replays each conversation step by step in a thread of its own."""
    scripts = {thread_id: script_of(messages) for thread_id, messages in conversations.items()}
    by_position = {
        thread_id: {step.start: step for step in script} for thread_id, script in scripts.items()
    }
    return Workload(
        name=name,
        turns=[turn for thread_id, script in scripts.items() for turn in _turns(thread_id, script)],
        build=lambda saver, frequency: _chat_graph(by_position, saver, frequency),
        floor=lambda: stream_floor(conversations),
    )


def encoded(message: BaseMessage) -> bytes:
    """Return a message as compact JSON without its defaults: the measure for size floors."""
    content = {"type": message.type, **message.model_dump(mode="json", exclude_defaults=True)}
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )


def stream_floor(conversations: Mapping[str, Sequence[BaseMessage]]) -> int:
    """Return the bytes of one zstd-19 stream of each thread's distinct messages, summed."""
    total = 0
    for messages in conversations.values():
        distinct = dict.fromkeys(encoded(message) for message in messages)
        total += len(zstandard.ZstdCompressor(19).compress(b"\n".join(distinct)))
    return total


def chat(scale: Scale) -> Workload:
    """The synthetic chat in one thread, long."""
    return conversations_workload("chat", {"chat": synthetic_conversation(0, scale.rounds)})


def short_chat(scale: Scale) -> Workload:
    """The synthetic chat in one thread, short."""
    return conversations_workload("short", {"chat": synthetic_conversation(0, scale.short_rounds)})


def other_chat(scale: Scale) -> Workload:
    """The long synthetic chat with the words of other sources."""
    messages = synthetic_conversation(0, scale.rounds, OTHER_SOURCES)
    return conversations_workload("other", {"chat": messages})


def crowd(scale: Scale) -> Workload:
    """Synthetic chats in many threads, to be run at once."""
    return conversations_workload(
        "crowd",
        {
            f"chat-{number}": synthetic_conversation(number, scale.crowd_rounds)
            for number in range(scale.crowd)
        },
    )


# ---- recorded conversations ------------------------------------------------------------------


def _recorded() -> Iterable[tuple[dict[str, Any], list[BaseMessage]]]:
    spec = importlib.util.spec_from_file_location("trajectories_load", TRAJECTORIES / "load.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(TRAJECTORIES / "load.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Iterable[tuple[dict[str, Any], list[BaseMessage]]] = module.load(
        str(TRAJECTORIES / "conversations.jsonl.zst")
    )
    return found


def real(scale: Scale) -> Workload | None:
    """Recorded conversations of 20-320 messages, or None where the recordings are missing."""
    if not (TRAJECTORIES / "conversations.jsonl.zst").exists():
        return None
    recorded: dict[str, list[BaseMessage]] = {}
    for record, messages in _recorded():
        if scale.conversations is not None and len(recorded) >= scale.conversations:
            break
        if 20 <= len(messages) <= 320:
            recorded[record["id"]] = messages
    named = {thread_id: _with_ids(thread_id, found) for thread_id, found in recorded.items()}
    made = conversations_workload("real", named)
    return Workload(
        name=made.name,
        turns=made.turns,
        build=made.build,
        floor=lambda: stream_floor(
            recorded
        ),  # as recorded: ids that we gave cost us, not the floor
    )


def _with_ids(thread_id: str, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    return [
        message
        if message.id
        else message.model_copy(
            update={"id": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{thread_id}/{index}"))}
        )
        for index, message in enumerate(messages)
    ]


# ---- other state -----------------------------------------------------------------------------


def each_once_floor(contents: Iterable[bytes]) -> int:
    """Return the bytes of every distinct content as one zstd-3 frame each, and the allowance."""
    distinct = set(contents)
    return FIXED_ALLOWANCE + sum(
        len(zstandard.ZstdCompressor(3).compress(content)) for content in distinct
    )


def picture(scale: Scale) -> Workload:
    """A picture in the first user message (`scale.picture` characters of base64), then a chat."""
    rng = random.Random(1)
    data = base64.b64encode(rng.randbytes(scale.picture * 3 // 4)).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    messages: list[BaseMessage] = []
    for number in range(25):
        question: list[Any] = [{"type": "text", "text": text(rng, 200)}]
        messages.append(HumanMessage([*question, part] if number == 0 else question))
        messages.append(AIMessage(text(rng, 200)))
    made = conversations_workload("picture", {"picture": messages})
    return Workload(
        name=made.name,
        turns=made.turns,
        build=made.build,
        floor=lambda: each_once_floor(encoded(message) for message in messages),
    )


def _merge(old: dict[str, str] | None, new: dict[str, str] | None) -> dict[str, str]:
    return {**(old or {}), **(new or {})}


class FilesState(TypedDict, total=False):
    """An agent's virtual file system."""

    files: Annotated[dict[str, str], _merge]
    step: int


def _edited(rng: random.Random, content: str) -> str:
    lines = content.split("\n")
    lines[rng.randrange(len(lines))] = text(rng, 70)
    return "\n".join(lines)


def _stepping_graph(
    state: type, act: Callable[[int], dict[str, Any]], steps: int, saver: Any
) -> Any:
    def node(current: dict[str, Any]) -> dict[str, Any]:
        step = current.get("step", 0)
        return {**act(step), "step": step + 1}

    builder = StateGraph(cast(Any, state))
    builder.add_node("step", cast(Any, node))
    builder.add_edge(START, "step")
    builder.add_conditional_edges(
        "step",
        lambda current: "step" if current["step"] < steps and current["step"] % 10 else END,
        {"step": "step", END: END},
    )
    return builder.compile(checkpointer=saver)


def files(scale: Scale) -> Workload:
    """30 files of 4 KB in a dict channel; each step edits one line of one file."""
    rng = random.Random(2)
    current = {
        f"/src/module_{number:02}.py": "\n".join(text(rng, 70) for _ in range(56))
        for number in range(30)
    }
    first = dict(current)
    edits: list[dict[str, str]] = []
    for _ in range(scale.steps):
        name = rng.choice(list(current))
        current[name] = _edited(rng, current[name])
        edits.append({name: current[name]})
    contents = [*first.values(), *(value for edit in edits for value in edit.values())]
    return Workload(
        name="files",
        turns=[
            Turn(thread_id="files", inputs={"files": first if start == 0 else {}})
            for start in range(0, scale.steps, 10)
        ],
        build=lambda saver, _: _stepping_graph(
            FilesState, lambda step: {"files": edits[step]}, scale.steps, saver
        ),
        floor=lambda: each_once_floor(content.encode() for content in contents),
    )


class DocumentState(TypedDict, total=False):
    """A large value that never changes beside a small one that does."""

    document: str
    step: int


def document(scale: Scale) -> Workload:
    """One document in a channel, set once; the steps change only a number beside it."""
    content = text(random.Random(3), scale.document)
    steps = max(scale.steps // 2, 1)
    return Workload(
        name="document",
        turns=[
            Turn(
                thread_id="document",
                inputs={"document": content} if start == 0 else {"step": start},
            )
            for start in range(0, steps, 10)
        ],
        build=lambda saver, _: _stepping_graph(DocumentState, lambda _: {}, steps, saver),
        floor=lambda: each_once_floor([content.encode()]),
    )


WORKLOADS: dict[str, Callable[[Scale], Workload | None]] = {
    "chat": chat,
    "short": short_chat,
    "other": other_chat,
    "crowd": crowd,
    "real": real,
    "picture": picture,
    "files": files,
    "document": document,
}
