"""One answer has one message id, whoever gave it: on the screen, after a crash, and for a reader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_resilient import ResilienceMiddleware, ResilientSaver

WHERE: Any = {"configurable": {"thread_id": "t"}}


class Scripted(BaseChatModel):
    """Streams words under an id of its own, and may break off."""

    words: list[str]
    id_: str | None
    cut: bool = False

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, *args: Any, **more: Any) -> ChatResult:
        raise NotImplementedError

    def _stream(self, *args: Any, **more: Any) -> Iterator[ChatGenerationChunk]:
        for word in self.words:
            yield ChatGenerationChunk(message=AIMessageChunk(word, id=self.id_))
        if self.cut:
            raise ConnectionResetError


@pytest.mark.parametrize("own_serde", [False, True], ids=["ours", "own serde"])
@pytest.mark.parametrize("words", [3, 70], ids=["alone", "in a block"])
@pytest.mark.parametrize("given", [None, "chatcmpl-1"], ids=["no id", "the provider's id"])
def test_an_answer_keeps_its_message_id_across_a_crash(
    given: str | None, words: int, own_serde: bool
) -> None:
    first = [f"{number} " for number in range(words)]
    serde = JsonPlusSerializer() if own_serde else None
    with ResilientSaver.from_conn_string(":memory:", serde=serde) as saver:

        def agent(model: Scripted) -> Any:
            middleware = [ResilienceMiddleware(continuation="prefill")]
            return create_agent(model, [], checkpointer=saver, middleware=middleware)

        ids = set()
        with pytest.raises(ConnectionResetError):
            crashed = agent(Scripted(words=first, id_=given, cut=True))
            for chunk, _ in crashed.stream({"messages": ["x"]}, WHERE, stream_mode="messages"):
                ids.add(chunk.id)
        read = list(saver.stream("t"))
        ids |= {piece.message_id for piece in read}
        ids |= {piece.message_id for piece in saver.stream("t", after=read[1].offset)}
        other = given and "chatcmpl-2"
        graph = agent(Scripted(words=["and ", "on"], id_=other))
        for chunk, _ in graph.stream(None, WHERE, stream_mode="messages"):
            ids.add(chunk.id)
        answer = graph.get_state(WHERE).values["messages"][-1]
    assert answer.text == "".join(first) + "and on"
    assert ids == {answer.id}
    assert given in (None, answer.id)
