"""SIGKILL at every chunk of an answer, and between storing and showing it.

The child writes what it shows to a file, with fsync; a server in this process answers. What the user
saw begins the final text, unless a reset was emitted; who reads by offset gets no piece twice; there
is one message id.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from building import in_child
from langchain.agents import create_agent
from wire import Server, Story
from wire.clients import client
from wired import is_replayed, is_reset, last, shown, thinking, tokens, user, where

from langgraph_resilient import ResilienceMiddleware, ResilientSaver, durable
from langgraph_resilient.stream.buffer import StreamBuffer

TEXT = "Once upon a time there was a small fox in a wood"
WORDS = len(TEXT.split())


@dataclass(frozen=True)
class Case:
    """A provider, a way to go on, and what it must come to.

    Attributes:
        resets: whether the new answer may contradict what was shown.
        whole: whether the final text is the whole story.
    """

    name: str
    api: str
    model: str = ""
    story: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    resets: bool = False
    whole: bool = True


OLD, NEW = "claude-3-5-sonnet-20240620", "claude-opus-4-7"
REFUSES: dict[str, Any] = {"prefill": "refuse"}
CASES = [
    Case("chat instruct", "chat", story={**REFUSES, "overlap": 2}),
    Case("responses instruct", "responses", story={**REFUSES, "overlap": 3}),
    Case("messages instruct", "messages", NEW, {**REFUSES, "overlap": 0}),
    Case("messages prefill", "messages", OLD),
    Case("prefill refused", "messages", OLD, REFUSES),
    Case("restart, the same", "chat", options={"continuation": "restart"}),
    Case("restart, blocks", "responses", options={"continuation": "restart"}),
    Case(
        "restart, another",
        "messages",
        NEW,
        {"varies": True},
        {"continuation": "restart"},
        resets=True,
    ),
    Case("keep partial", "chat", options={"continuation": "keep_partial"}, whole=False),
]
PHASES = ("stored", "shown")


def build(kind: str, case: Case, server: Server, saver: Any) -> Any:
    model = client(case.api, server, **({"model": case.model} if case.model else {}))
    if kind == "agent":
        middleware = [ResilienceMiddleware(**case.options)]
        return create_agent(model, [], middleware=middleware, checkpointer=saver)
    return thinking(durable(model, **case.options), saver, kind)


def dying(path: Path, kind: str, case: Case, server: Server, phase: str, at: int) -> None:
    """Run in a child: show chunks, die at one of them."""
    die = _die_behind(at)
    if phase == "stored":
        store = StreamBuffer._store

        def dies(self: Any, items: Any) -> None:
            store(self, items)
            die()

        StreamBuffer._store = dies  # type: ignore[method-assign]
    with ResilientSaver.from_conn_string(path) as saver:
        made = build(kind, case, server, saver)
        with path.with_suffix(".seen").open("w") as file:
            for chunk, _ in made.stream(user(), where(), stream_mode="messages"):
                if not getattr(chunk, "chunk_position", None) and chunk.text == "":
                    continue
                file.write(json.dumps([chunk.id, chunk.text, is_reset(chunk)]) + "\n")
                file.flush()
                os.fsync(file.fileno())
                if phase == "shown":
                    die()


def _die_behind(at: int) -> Any:
    left = [at]

    def die() -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return die


class Pace:
    """The server sends a piece when the one before the last is on the screen."""

    def __init__(self, seen: Path):
        self.on = True
        self._seen = seen

    def __call__(self, index: int) -> None:
        deadline = time.monotonic() + 5
        while self.on and self._shown() < index - 1 and time.monotonic() < deadline:
            time.sleep(0.002)

    def _shown(self) -> int:
        return self._seen.read_bytes().count(b"\n") if self._seen.exists() else 0


class Client:
    """Reads by offset, forgets on a reset, must see no piece twice."""

    def __init__(self, saver: ResilientSaver):
        self.saver = saver
        self.offset = 0
        self.text = ""
        self.ids: set[str] = set()
        self.ends: list[Any] = []
        self.resets = 0

    def read(self) -> None:
        for piece in self.saver.stream("t", after=self.offset):
            assert piece.offset > self.offset, "a piece came twice"
            self.offset = piece.offset
            self.ids.add(piece.message_id)
            if piece.kind == "end":
                self.ends.append(piece.message)
            elif piece.kind == "reset":
                self.text, self.resets = "", self.resets + 1
            else:
                self.text += piece.text


def check(tmp_path: Path, kind: str, case: Case, phase: str, at: int) -> None:
    path = tmp_path / f"{phase}{at}.db"
    pace = Pace(path.with_suffix(".seen"))
    with Server(Story(TEXT, before=pace, **case.story)) as server:
        code = in_child(lambda: dying(path, kind, case, server, phase, at))
        pace.on = False
        assert code in (-signal.SIGKILL, 0)
        seen = [json.loads(line) for line in path.with_suffix(".seen").read_text().splitlines()]
        saw = "".join(text for _, text, _ in seen)
        with ResilientSaver.from_conn_string(path) as saver:
            reader = Client(saver)
            reader.read()
            if code == 0:
                return
            kept = reader.ends[-1].text if reader.ends else reader.text
            assert kept.startswith(saw), "what was shown was stored before"
            made = build(kind, case, server, saver)
            if not made.get_state(where()).next:
                return  # the kill came behind the last checkpoint
            chunks = []
            for chunk, _ in made.stream(None, where(), stream_mode="messages"):
                chunks.append(chunk)
                reader.read()
            reader.read()
            final = last(made.get_state(where()).values)
    judge(case, seen, saw, chunks, reader, final)
    assert server.paid <= 3


def judge(
    case: Case, seen: list[Any], saw: str, chunks: list[Any], reader: Client, final: Any
) -> None:
    reset = any(map(is_reset, chunks))
    assert reset or final.text.startswith(saw), "tokens that were shown are contradicted"
    assert reset >= bool(reader.resets)
    assert not reset or case.resets
    assert shown(chunks) == final.text, "replayed, then continued"
    replayed = shown([c for c in chunks if is_replayed(c)])
    assert replayed.startswith(saw)
    if case.whole and not case.resets:
        assert final.text == TEXT
    sources = {id for id, _, _ in seen}, {c.id for c in chunks}, reader.ids, {final.id}
    assert len(set().union(*sources)) == 1, sources
    # With the answer's checkpoint its pieces are gone: the end tells the whole message.
    assert final.text.startswith(reader.text) or (reset and not reader.resets)
    assert [m.text for m in reader.ends] == [final.text]
    if not case.whole and saw and final.text != TEXT:
        assert final.response_metadata.get("finish_reason") == "interrupted"


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_kill_in_mid_answer_loses_and_doubles_nothing(
    case: Case, phase: str, tmp_path: Path
) -> None:
    check(tmp_path, "agent", case, phase, 5)


@pytest.mark.parametrize("at", [0, 1, WORDS - 1, WORDS, WORDS + 1, WORDS + 2])
def test_a_kill_at_the_edges_of_an_answer(at: int, tmp_path: Path) -> None:
    check(tmp_path, "invoke", CASES[at % 2], "stored", at)


@pytest.mark.parametrize("kind", ["stream"])
def test_a_model_that_a_node_streams_itself(kind: str, tmp_path: Path) -> None:
    for case in (CASES[0], CASES[3]):
        check(tmp_path, kind, case, "shown", 4)
        check(tmp_path, kind, case, "stored", 7)


@pytest.mark.campaign
@pytest.mark.parametrize("kind", ["agent", "invoke", "stream"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_kill_at_every_chunk(case: Case, phase: str, kind: str, tmp_path: Path) -> None:
    for at in range(WORDS + 5):
        check(tmp_path, kind, case, phase, at)


# --- twice ----------------------------------------------------------------------------------------


def killed_again(path: Path, case: Case, server: Server, at: int) -> int:
    def body() -> None:
        die = _die_behind(at)
        store = StreamBuffer._store

        def dies(self: Any, items: Any) -> None:
            store(self, items)
            die()

        StreamBuffer._store = dies  # type: ignore[method-assign]
        with ResilientSaver.from_conn_string(path) as saver:
            made = build("agent", case, server, saver)
            state = made.get_state(where())
            tokens(made, None if state.values else user())

    return in_child(body)


@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[5]], ids=lambda case: case.name)
def test_an_answer_that_is_killed_twice_goes_on_from_all_of_it(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with Server(Story(TEXT, **case.story)) as server:
        assert killed_again(path, case, server, 3) == -9
        assert killed_again(path, case, server, 2) == -9
        with ResilientSaver.from_conn_string(path) as saver:
            reader = Client(saver)
            reader.read()
            before = reader.text
            made = build("agent", case, server, saver)
            chunks = tokens(made, None)
            reader.read()
            final = last(made.get_state(where()).values)
    assert final.text == TEXT == shown(chunks)
    assert len(before.split()) >= 4
    assert len({c.id for c in chunks} | reader.ids) == 1
    assert server.paid == 3


def test_the_budget_bounds_the_attempts(tmp_path: Path) -> None:
    """Three attempts, each killed: the fourth run ends with what there is, and pays nothing."""
    path = tmp_path / "agent.db"
    case = CASES[0]
    with Server(Story(TEXT, **case.story)) as server:
        for _ in range(3):
            assert killed_again(path, case, server, 2) == -9
        with ResilientSaver.from_conn_string(path) as saver:
            made = build("agent", case, server, saver)
            chunks = tokens(made, None)
            final = last(made.get_state(where()).values)
    assert server.paid == 3
    assert TEXT.startswith(final.text)
    assert final.text == shown(chunks) != ""
    assert final.response_metadata["finish_reason"] == "interrupted"


@pytest.fixture(autouse=True)
def _no_zombies() -> Iterator[None]:
    yield
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
