"""The demo's chat model: scripted, without a key, streaming.

What it answers depends only on the messages it is given, so a lost or altered message changes the
outcome. Like the servers of open models it goes on with a half answer that it finds as the last
message. Knows no graph and no saver.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import PrivateAttr

from langgraph_resilient.demo.calls import FINISHED, STARTED, CallLog

MODEL_CALLS = ("choose a search", "choose a source", "summarise", "write the e-mail", "report")
STREAMED = "summarise"
"""The longest answer, with no tool call in it: the one that is cut in the middle."""
RECIPIENT = "harbour@example.org"

_WORD = re.compile(r"\s*\S+|\s+$")
_WORDS_A_CALL = 10
"""A word of a stream takes that part of a call's time."""


def _choose_search(messages: Sequence[BaseMessage]) -> AIMessage:
    query = " ".join(str(messages[0].content).split()[4:14])
    return _asking("I look for sources first.", "search", {"query": query})


def _choose_source(messages: Sequence[BaseMessage]) -> AIMessage:
    hits = json.loads(str(messages[-1].content))
    best = max(hits, key=lambda hit: hit["score"])
    return _asking(f"{best['title']} fits best.", "extract", {"url": best["url"]})


def _summarise(messages: Sequence[BaseMessage]) -> AIMessage:
    page = str(messages[-1].content)
    findings = [line[9:] for line in page.splitlines() if line.startswith("Finding: ")]
    return AIMessage("Summary:\n" + "\n".join(f"- {finding}" for finding in findings))


def _write_email(messages: Sequence[BaseMessage]) -> AIMessage:
    arguments = {
        "to": RECIPIENT,
        "subject": "How the tide gauges kept their readings",
        "body": str(messages[-1].content),
    }
    return _asking("The summary is ready, I send it.", "send_email", arguments)


def _report(messages: Sequence[BaseMessage]) -> AIMessage:
    findings = str(messages[5].content).count("\n- ")
    return AIMessage(f"Done: {findings} findings summarised. {messages[-1].content}")


_ANSWERS: tuple[Callable[[Sequence[BaseMessage]], AIMessage], ...] = (
    _choose_search,
    _choose_source,
    _summarise,
    _write_email,
    _report,
)


def _asking(content: str, name: str, arguments: dict[str, str]) -> AIMessage:
    call = {"name": name, "args": arguments, "id": f"call-{name}", "type": "tool_call"}
    return AIMessage(content, tool_calls=[call])


def _tokens(text: str) -> int:
    """A rough count, four characters a token; only ratios are shown."""
    return max(1, len(text) // 4)


class ScriptedModel(BaseChatModel):
    """Answers each of the five steps by rule, after ``latency`` seconds.

    Which step it is follows from the number of its answers in the messages. Every call is
    written to the call log when it begins and when it has ended.

    Args:
        log: gets every call.
        latency: seconds that a call takes.
        stall_after: after so many words of the answer `STREAMED` no more come; 0: all of them do.
    """

    latency: float = 0.05
    stall_after: int = 0
    _log: CallLog = PrivateAttr()

    def __init__(self, log: CallLog, latency: float, stall_after: int = 0):
        super().__init__(latency=latency, stall_after=stall_after)  # type: ignore[call-arg]
        self._log = log

    @property
    def _llm_type(self) -> str:
        return "langgraph-resilient-demo"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        name, answer, _ = self._begin(messages)
        time.sleep(self.latency)
        self._end(name, answer)
        return ChatResult(generations=[ChatGeneration(message=answer)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        name, answer, given = self._begin(messages)
        # A server that goes on with a half answer gives it an id of its own.
        id = f"{answer.id}-continued" if given else answer.id
        for number, word in enumerate(_WORD.findall(str(answer.content)[len(given) :]), start=1):
            time.sleep(self.latency / _WORDS_A_CALL)
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=word, id=id))
            if run_manager:
                run_manager.on_llm_new_token(word, chunk=chunk)
            yield chunk
            if name == STREAMED and number == self.stall_after:
                threading.Event().wait()
        self._end(name, answer)
        last = AIMessageChunk(
            content="",
            id=id,
            tool_call_chunks=[
                tool_call_chunk(
                    name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=index
                )
                for index, call in enumerate(answer.tool_calls)
            ],
            usage_metadata=answer.usage_metadata,
            chunk_position="last",
        )
        yield ChatGenerationChunk(message=last)

    def _begin(self, messages: Sequence[BaseMessage]) -> tuple[str, AIMessage, str]:
        """A call begins: its name, the whole answer, and how much of it came along."""
        step = sum(isinstance(message, AIMessage) for message in messages)
        given = _half_answer(messages, step)
        if given:
            step, messages = step - 1, messages[:-1]
        name = MODEL_CALLS[step]
        self._log.write("model", name, STARTED)
        answer = _ANSWERS[step](messages)
        read = sum(_tokens(str(message.content)) for message in messages) + len(given) // 4
        written = _tokens(str(answer.content)[len(given) :] + json.dumps(answer.tool_calls))
        usage = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
        told = {"id": f"answer-{step + 1}", "usage_metadata": usage}
        return name, answer.model_copy(update=told), given

    def _end(self, name: str, answer: AIMessage) -> None:
        assert answer.usage_metadata is not None
        self._log.write("model", name, FINISHED, amount=answer.usage_metadata["total_tokens"])


def _half_answer(messages: Sequence[BaseMessage], step: int) -> str:
    """The beginning of an answer that stands as the last message; empty where none does."""
    last = messages[-1]
    if not isinstance(last, AIMessage) or last.tool_calls:
        return ""
    text = str(last.content)
    whole = str(_ANSWERS[step - 1](messages[:-1]).content)
    return text if len(text) < len(whole) and whole.startswith(text) else ""
