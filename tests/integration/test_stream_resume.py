"""Answers that go on: what is sent to the provider, what the user sees, who may read along."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from building import fork, wait
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from wire import Asked, Reply, Server, Story, Tool, reply
from wire.clients import APIS, client
from wire.server import Step
from wired import (
    is_replayed,
    is_reset,
    last,
    one_node,
    shown,
    spread,
    states,
    thinking,
    tokens,
    user,
    where,
)

from langgraph_resilient import ResilienceMiddleware, ResilientSaver, durable
from langgraph_resilient.stream.continuation import INSTRUCTION

TEXT = "Once upon a time there was a small fox in a wood"
OLD, NEW = "claude-3-5-sonnet-20240620", "claude-opus-4-7"
TWICE = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def saver(path: Path) -> Iterator[ResilientSaver]:
    with ResilientSaver.from_conn_string(path) as made:
        yield made


class CutFirst:
    """A script whose first answer breaks off after so many pieces."""

    def __init__(self, first: Reply, then: Any, cut: int = 4):
        self._first = Reply(
            pieces=first.pieces, tools=first.tools, reasoning=first.reasoning, cut=cut
        )
        self._then = then

    def __call__(self, asked: Asked) -> Reply:
        if asked.number == 1:
            return self._first
        return self._then if isinstance(self._then, Reply) else self._then(asked)


def agent(model: Any, saver: Any, tools: Any = (), **options: Any) -> Any:
    middleware = [ResilienceMiddleware(**options)]
    return create_agent(model, list(tools), middleware=middleware, checkpointer=saver)


def cut(made: Any, *, asynchronous: bool = False) -> list[Any]:
    """Run until the line is cut; what was shown."""
    found: list[Any] = []

    async def along() -> None:
        async for chunk, _ in made.astream(user(), where(), stream_mode="messages"):
            found.append(chunk)

    with pytest.raises(Exception):  # noqa: B017 - each client has its own
        if asynchronous:
            asyncio.run(along())
        else:
            for chunk, _ in made.stream(user(), where(), stream_mode="messages"):
                found.append(chunk)
    return found


def sent(server: Server) -> list[Any]:
    return [asked.messages for asked in server.log]


# --- what is sent -------------------------------------------------------------------------------


@TWICE
def test_prefill_sends_the_partial_answer_last(asynchronous: bool, saver: ResilientSaver) -> None:
    with Server(CutFirst(reply(TEXT), Story(TEXT))) as server:
        made = agent(client("messages", server, model=OLD), saver)
        before = cut(made, asynchronous=asynchronous)
        after = tokens(made, None, asynchronous=asynchronous)
    assert sent(server)[1] == [("user", "go"), ("assistant", shown(before))]
    assert shown(after) == TEXT == last(made.get_state(where()).values).text


@pytest.mark.parametrize(
    ("overlap", "api", "asynchronous"),
    spread(
        (0, 2, 40),
        APIS,
        (False, True),
        keep=lambda overlap, api, asynchronous: overlap == 2 or api == "responses",
    ),
)
def test_instruct_asks_to_go_on_and_trims_what_is_said_twice(
    overlap: int, api: str, asynchronous: bool, saver: ResilientSaver
) -> None:
    with Server(CutFirst(reply(TEXT), Story(TEXT, prefill="refuse", overlap=overlap))) as server:
        made = agent(client(api, server), saver)
        before = shown(cut(made, asynchronous=asynchronous))
        after = tokens(made, None, asynchronous=asynchronous)
    assert sent(server)[1] == [("user", "go"), ("assistant", before), ("user", INSTRUCTION)]
    assert shown(after) == TEXT
    assert not any(map(is_reset, after))
    final = last(made.get_state(where()).values)
    assert final.text == TEXT
    assert len(made.get_state(where()).values["messages"]) == 2


@TWICE
def test_a_refusal_of_prefill_steps_down_to_instruct(
    asynchronous: bool, saver: ResilientSaver
) -> None:
    with Server(CutFirst(reply(TEXT), Story(TEXT, prefill="refuse", overlap=1))) as server:
        made = agent(client("messages", server, model=OLD), saver)
        cut(made, asynchronous=asynchronous)
        after = tokens(made, None, asynchronous=asynchronous)
    assert [seen[-1][0] for seen in sent(server)] == ["user", "assistant", "user"]
    assert shown(after) == TEXT
    assert states(saver) == ["retired"]


def test_another_error_of_the_provider_is_no_refusal(saver: ResilientSaver) -> None:
    """A limit while going on: the answer stays interrupted, and goes on in the next run."""
    replies = iter([Reply(status=429, error="slow down"), Reply(status=529, error="overloaded")])
    story = Story(TEXT)

    def then(asked: Asked) -> Reply:
        return next(replies, None) or story(asked)

    with Server(CutFirst(reply(TEXT), then)) as server:
        made = agent(client("messages", server, model=OLD), saver, attempts=9)
        before = shown(cut(made))
        for _ in range(2):
            with pytest.raises(Exception):  # noqa: B017
                tokens(made, None)
            assert states(saver) == ["interrupted"]
        after = tokens(made, None)
    assert shown(after) == TEXT
    assert [seen[-1] for seen in sent(server)[1:]] == [("assistant", before)] * 3


@TWICE
@pytest.mark.parametrize("api", APIS)
def test_a_restart_that_says_something_else_resets(
    api: str, asynchronous: bool, saver: ResilientSaver
) -> None:
    other = "Once upon another time it rained"
    with Server(CutFirst(reply(TEXT), reply(other))) as server:
        made = agent(client(api, server), saver, continuation="restart")
        before = cut(made, asynchronous=asynchronous)
        after = tokens(made, None, asynchronous=asynchronous)
    assert sent(server)[1] == [("user", "go")]
    assert [is_reset(c) for c in after].count(True) == 1
    assert shown(after) == other == last(made.get_state(where()).values).text
    replayed = [c for c in after if is_replayed(c)]
    assert shown(replayed) == shown(before)
    assert {c.id for c in before + after} == {last(made.get_state(where()).values).id}


@pytest.mark.parametrize("api", APIS)
def test_a_restart_that_says_the_same_shows_nothing_twice(api: str, saver: ResilientSaver) -> None:
    with Server(CutFirst(reply(TEXT), reply(TEXT))) as server:
        made = agent(client(api, server), saver, continuation="restart")
        before = shown(cut(made))
        after = tokens(made, None)
    assert not any(map(is_reset, after))
    fresh = "".join(c.text for c in after if not is_replayed(c))
    assert before + fresh == TEXT


@pytest.mark.parametrize("api", APIS)
def test_keep_partial_ends_with_what_there_is_and_pays_nothing(
    api: str, saver: ResilientSaver
) -> None:
    with Server(CutFirst(reply(TEXT), reply(TEXT))) as server:
        made = agent(client(api, server), saver, continuation="keep_partial")
        before = shown(cut(made))
        after = tokens(made, None)
    final = last(made.get_state(where()).values)
    assert final.text == before == shown(after) != ""
    assert final.response_metadata["finish_reason"] == "interrupted"
    assert server.paid == 1


@pytest.mark.parametrize("way", ["auto", "restart", "another"])
@pytest.mark.parametrize("api", APIS)
def test_metadata_of_an_answer_that_went_on_is_that_of_one_answer(
    api: str, way: str, saver: ResilientSaver
) -> None:
    """Names are not written twice in a row, usage is there."""
    then = Story("Once more" if way == "another" else TEXT)
    with Server(CutFirst(reply(TEXT), then)) as server:
        made = agent(
            client(api, server), saver, continuation="auto" if way == "auto" else "restart"
        )
        cut(made)
        tokens(made, None)
        final = last(made.get_state(where()).values)
        plain = list(client(api, server).stream([HumanMessage("go")]))
        whole = plain[0]
        for chunk in plain[1:]:
            whole = whole + chunk
    told, wanted = dict(final.response_metadata), dict(whole.response_metadata)
    assert str(told.pop("id", "resp_1")).count("resp_") == 1
    wanted.pop("id", None)
    assert told == wanted
    assert "resilient_replayed" not in told
    if isinstance(final.content, list):
        assert [block["type"] for block in final.content] == ["text"]


# --- what cannot go on --------------------------------------------------------------------------


def pay(amount: int, reason: str) -> str:
    """Pay."""
    return f"paid {amount}"


@TWICE
@pytest.mark.parametrize("api", APIS)
def test_half_a_tool_call_begins_anew(api: str, asynchronous: bool, saver: ResilientSaver) -> None:
    call = Tool(name="pay", args={"amount": 7, "reason": "it is due"})
    answer = reply("I pay", call)

    def then(asked: Asked) -> Reply:
        return reply("done") if asked.messages[-1][0] == "tool" else answer

    with Server(CutFirst(answer, then, cut=5)) as server:
        made = agent(client(api, server), saver, [pay], pure=["pay"])
        before = cut(made, asynchronous=asynchronous)
        assert any(c.tool_call_chunks for c in before)
        after = tokens(made, None, asynchronous=asynchronous)
    assert sent(server)[1] == [("user", "go")]
    first = last(made.get_state(where()).values).id
    ai = [m for m in made.get_state(where()).values["messages"] if m.type == "ai"]
    assert ai[0].tool_calls[0]["args"] == call.args
    assert len(ai[0].tool_calls) == 1
    assert ai[0].text == "I pay"
    assert any(map(is_reset, after))
    assert {c.id for c in before} == {ai[0].id} != {first}
    assert server.paid == 3


@pytest.mark.parametrize("api", ["responses", "messages"])
def test_half_a_block_of_reasoning_begins_anew(api: str, saver: ResilientSaver) -> None:
    answer = reply(TEXT, reasoning=["let ", "me ", "think ", "this ", "through "])
    thinks: dict[str, Any] = (
        {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048}
        if api == "messages"
        else {"reasoning": {"effort": "low", "summary": "auto"}}
    )
    with Server(CutFirst(answer, answer, cut=3)) as server:
        made = agent(client(api, server, **thinks), saver)
        before = cut(made)
        assert shown(before) == ""
        after = tokens(made, None)
    final = last(made.get_state(where()).values)
    assert [b["type"] for b in final.content_blocks] == ["reasoning", "text"]
    assert "".join(answer.reasoning) in str(final.content_blocks[0])
    assert str(final.content_blocks).count("let me") == 1
    assert final.text == TEXT == shown(after)
    assert any(map(is_reset, after))
    assert sent(server)[1] == [("user", "go")]


def test_text_behind_whole_reasoning_begins_anew(saver: ResilientSaver) -> None:
    """The cut is in the text, the reasoning before it is whole: its signature cannot be sent."""
    answer = reply(TEXT, reasoning=["hm ", "so "])
    thinks = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048}
    with Server(CutFirst(answer, answer, cut=6)) as server:
        made = agent(client("messages", server, **thinks), saver)
        cut(made)
        after = tokens(made, None)
    final = last(made.get_state(where()).values)
    assert final.text == TEXT == shown(after)
    assert sent(server)[1] == [("user", "go")]


def test_half_a_structured_answer_begins_anew(saver: ResilientSaver) -> None:
    answer = Reply(pieces=['{"to', 'wn": ', '"Ulm", "deg', 'rees": 3', "}"])
    schema = {"title": "W", "type": "object", "properties": {"town": {"type": "string"}}}
    with Server(CutFirst(answer, answer, cut=2)) as server:
        model = durable(client("responses", server))
        bound = model.bind(text={"format": {"type": "json_schema", "name": "W", "schema": schema}})
        made = thinking(bound, saver, "stream")
        cut(made)
        made.invoke(None, where())
    assert sent(server)[1] == [("user", "go")]
    assert last(made.get_state(where()).values).text == answer.text


# --- the provider goes on by itself -------------------------------------------------------------


@TWICE
def test_a_background_response_is_fetched_and_not_paid_again(
    asynchronous: bool, saver: ResilientSaver
) -> None:
    """The client's line is cut, the provider goes on generating."""
    with Server(CutFirst(reply(TEXT), reply("never"))) as server:
        model = client("responses", server, model_kwargs={"background": True})
        made = agent(model, saver)
        before = cut(made, asynchronous=asynchronous)
        after = tokens(made, None, asynchronous=asynchronous)
    assert [asked.api for asked in server.log] == ["responses", "fetch"]
    final = last(made.get_state(where()).values)
    assert final.text == TEXT == shown(after)
    assert {c.id for c in before + after} == {final.id}
    assert not any(map(is_reset, after))


# --- readers ------------------------------------------------------------------------------------


def read(saver: ResilientSaver, after: int = 0, follow: float | None = None) -> list[Any]:
    return list(saver.stream("t", after=after, follow=follow))


@pytest.mark.parametrize("api", APIS)
def test_a_reader_gets_each_piece_once_across_cut_and_resume(
    api: str, saver: ResilientSaver
) -> None:
    with Server(CutFirst(reply(TEXT), Story(TEXT, prefill="refuse", overlap=2))) as server:
        made = agent(client(api, server), saver)
        before = shown(cut(made))
        pieces = read(saver)
        assert "".join(p.text for p in pieces) == before
        middle = pieces[len(pieces) // 2].offset
        assert read(saver, after=middle) == [p for p in pieces if p.offset > middle]
        for _ in made.stream(None, where(), stream_mode="messages"):
            pieces += read(saver, after=pieces[-1].offset)
        pieces += read(saver, after=pieces[-1].offset)
    offsets = [p.offset for p in pieces]
    assert offsets == sorted(set(offsets))
    final = last(made.get_state(where()).values)
    assert [p.message.text for p in pieces if p.kind == "end"] == [TEXT]
    assert {p.message_id for p in pieces} == {final.id}
    assert TEXT.startswith("".join(p.text for p in pieces))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_reader_in_another_process_follows_the_run(asynchronous: bool, path: Path) -> None:
    """The run goes on in a child, in step with what this process has read."""
    step = Step()

    def script(asked: Asked) -> Reply:
        return Reply(pieces=reply(TEXT).pieces, before=step)

    with Server(script) as server:

        def child() -> None:
            with ResilientSaver.from_conn_string(path) as saver:
                tokens(agent(client("messages", server), saver), user())

        with ResilientSaver.from_conn_string(path) as saver:
            read(saver)  # the file is there
        pid = fork(child)
        with ResilientSaver.from_conn_string(path) as saver:
            step.let(2)
            found: list[Any] = []

            def seen(piece: Any) -> bool:
                found.append(piece)
                step.let(1)
                if piece.kind == "end":
                    step.let_all()
                return bool(piece.kind == "end")

            async def along() -> None:
                async for piece in saver.astream("t", follow=10):
                    if seen(piece):
                        break

            if asynchronous:
                asyncio.run(along())
            else:
                for piece in saver.stream("t", follow=10):
                    if seen(piece):
                        break
        step.let_all()
        assert wait(pid) == 0
    # With the answer's checkpoint its pieces are gone; the last word is the whole message.
    assert len("".join(p.text for p in found if p.kind != "end")) > len(TEXT) / 2
    assert TEXT.startswith("".join(p.text for p in found if p.kind != "end"))
    assert found[-1].message.text == TEXT
    assert len({p.message_id for p in found}) == 1


def test_a_stalled_provider_keeps_nobody_from_reading(saver: ResilientSaver) -> None:
    step = Step()
    with Server([Reply(pieces=reply(TEXT).pieces, before=step)]) as server:
        made = agent(client("chat", server), saver)
        runner = threading.Thread(target=lambda: tokens(made, user()))
        runner.start()
        step.let(3)
        pieces: list[Any] = []
        for piece in saver.stream("t", follow=10):
            pieces.append(piece)
            if sum(bool(p.text) for p in pieces) == 3:
                break
        assert "".join(p.text for p in pieces) == "Once upon a"
        step.let_all()
        runner.join()
    assert read(saver, after=pieces[-1].offset)[-1].message.text == TEXT


def test_two_answers_in_parallel_are_told_apart_by_their_ids(saver: ResilientSaver) -> None:
    with Server(lambda asked: reply(f"{TEXT} {asked.messages[-1][1]}")) as server:
        model = durable(client("chat", server, streaming=True))

        def node(state: Any) -> Any:
            model.batch([[HumanMessage("a")], [HumanMessage("b")]])
            pieces.extend(read(saver))
            return {}

        pieces: list[Any] = []
        one_node(node, saver).invoke(user(), where())
    texts: dict[str, str] = {}
    for piece in pieces:
        if piece.kind != "end":
            texts[piece.message_id] = texts.get(piece.message_id, "") + piece.text
    assert sorted(texts.values()) == [f"{TEXT} a", f"{TEXT} b"]


@pytest.mark.parametrize("api", APIS)
def test_events_of_the_third_protocol_go_on_too(api: str, saver: ResilientSaver) -> None:
    """`stream_events(version="v3")` drives a model by its protocol events."""
    with Server(CutFirst(reply(TEXT), Story(TEXT, prefill="refuse", overlap=1))) as server:
        model = durable(client(api, server))
        found: list[Any] = []

        def node(state: Any) -> Any:
            stream = model.stream_events(state["messages"], version="v3")
            found.append(stream.output)
            return {"messages": [found[-1]]}

        made = one_node(node, saver)
        with pytest.raises(Exception):  # noqa: B017
            made.invoke(user(), where())
        assert states(saver) == ["interrupted"]
        got = made.invoke(None, where())
    assert last(got).text == TEXT
    assert server.paid == 2
    assert states(saver) == ["retired"]
