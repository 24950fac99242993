"""A durable model's streams: stored before they are shown, going on where a crash cut them.

Written once for sync and async but for the two loops that pull the model's own chunks.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    message_chunk_to_message,
)
from langchain_core.messages.ai import add_ai_message_chunks
from langchain_core.outputs import ChatGenerationChunk

from langgraph_resilient.integrations import native
from langgraph_resilient.integrations.runtime import logger
from langgraph_resilient.stream import Strategy, StreamBuffer, choose
from langgraph_resilient.stream.ahead import abatches, batches
from langgraph_resilient.stream.buffer import chunks_of, plain_text, stored
from langgraph_resilient.stream.continuation import is_refusal, prompt, text_of, trimmer

if TYPE_CHECKING:
    from langgraph_resilient.integrations.models import ModelInvocation

REPLAYED = {"resilient_replayed": True}
RESET = {"resilient_reset": True}
"""In a chunk's ``response_metadata``: it was shown before the crash; forget what was shown."""


def stream(
    self: Any,
    messages: list[BaseMessage],
    stop: list[str] | None = None,
    run_manager: Any = None,
    **kwargs: Any,
) -> Iterator[ChatGenerationChunk]:
    """``_stream`` of a durable model; LangChain gives the run manager by its place, too."""
    return _stream(self, messages, stop, kwargs, _managed(run_manager))


def astream(
    self: Any,
    messages: list[BaseMessage],
    stop: list[str] | None = None,
    run_manager: Any = None,
    **kwargs: Any,
) -> AsyncIterator[ChatGenerationChunk]:
    """``_astream`` of a durable model."""
    return _astream(self, messages, stop, kwargs, _managed(run_manager))


def _managed(run_manager: Any) -> dict[str, Any]:
    return {} if run_manager is None else {"run_manager": run_manager}


def _stream(
    self: Any, messages: list[BaseMessage], stop: Any, kwargs: dict[str, Any], more: dict[str, Any]
) -> Iterator[ChatGenerationChunk]:
    from langgraph_resilient.integrations.models import class_of, current, invocation, within

    call = current() or invocation(self, messages, stop, kwargs)
    if call is None or call.answering:
        yield from super(class_of(self), self)._stream(messages, stop=stop, **kwargs, **more)
        return
    own = current() is None
    answer = call.open().answer if own else None
    if answer is not None:
        yield whole_chunk(answer)
        return
    call.answering = True
    try:
        answering = Answering(call)
        yield from answering.replayed()
        for strategy in answering.strategies:
            if strategy is Strategy.KEEP_PARTIAL:
                yield answering.kept()
                break
            try:
                source = within(call, answering.source(strategy, more))
                for chunks in batches(source, ahead=answering.stores and not more):
                    yield from answering.shown_together(chunks)
                yield from answering.rest()
                break
            except Exception as error:
                if not answering.steps_on(strategy, error):
                    raise
    except BaseException as error:
        if own:
            call.fail(error)
        raise
    finally:
        call.answering = False
    answering.finish()
    if own and call.streamed is not None:
        call.end(call.streamed, streamed=True)
    yield from answering.closed()


async def _astream(
    self: Any, messages: list[BaseMessage], stop: Any, kwargs: dict[str, Any], more: dict[str, Any]
) -> AsyncIterator[ChatGenerationChunk]:
    from langgraph_resilient.integrations.models import awithin, class_of, current, invocation

    call = current() or invocation(self, messages, stop, kwargs)
    if call is None or call.answering:
        above = super(class_of(self), self)._astream
        async for chunk in above(messages, stop=stop, **kwargs, **more):
            yield chunk
        return
    own = current() is None
    answer = (await call.aopen()).answer if own else None
    if answer is not None:
        yield whole_chunk(answer)
        return
    call.answering = True
    try:
        answering = await call.book.engine.waiting.run(partial(Answering, call))
        for piece in answering.replayed():
            yield piece
        for strategy in answering.strategies:
            if strategy is Strategy.KEEP_PARTIAL:
                yield answering.kept()
                break
            try:
                source = awithin(call, answering.source(strategy, more, asynchronous=True))
                ahead = answering.stores and not more
                async with aclosing(abatches(source, ahead=ahead)) as several:
                    async for chunks in several:
                        # Tens of microseconds: a hop to another thread would cost more than that.
                        for piece in answering.shown_together(chunks):
                            yield piece
                for piece in answering.rest():
                    yield piece
                break
            except Exception as error:
                if not answering.steps_on(strategy, error):
                    raise
    except BaseException as error:
        if own:
            call.fail(error)
        raise
    finally:
        call.answering = False
    answering.finish()
    if own and call.streamed is not None:
        await call.aend(call.streamed, streamed=True)
    for piece in answering.closed():
        yield piece


class Answering:
    """One answer on its way to the user.

    Args:
        call: the journaled call.
    """

    def __init__(self, call: ModelInvocation):
        self._call = call
        record = call.opened.record
        self._id = record.message_id
        items = []
        if record.attempt > 1:
            with call.book.engine.reading() as session:
                items = list(stored(call.book, session, record))
        self._partial: list[AIMessageChunk] = chunks_of((i for _, i in items), self._id)
        position = items[-1][0] + 1 if items else 0
        self._buffer = (
            StreamBuffer(call.book.engine, record, call.book.reading(), position)
            if call.options.stream
            else None
        )
        self._parts: list[AIMessageChunk | str] = []
        """What was shown; of chunks that are nothing but text, the text."""
        self._generation: dict[str, Any] = {}
        self._told: frozenset[str] = frozenset()
        """Names in the metadata of what was shown before."""
        self._known: dict[str, Any] = {}
        """What the new answer has told of them: it counts when it replaces what was shown."""
        self.messages: list[BaseMessage] = call.messages
        self.strategies: Sequence[Strategy] = (Strategy.RESTART,)
        self.native = ""
        """The provider's id of an answer that it goes on generating."""
        self._shown = ""
        self._trim: Any = None
        if self._partial:
            self._id = self._partial[0].id or self._id
            self._told = frozenset(name for c in self._partial for name in c.response_metadata)
            call.shown = True
            self._plan()

    def _plan(self) -> None:
        call = self._call
        plan = choose(
            self._partial,
            provider=call.request.provider,
            model=call.request.model,
            structured=call.request.structured,
            wanted=call.options.continuation,
            attempts=call.opened.record.attempt - 1,
            budget=call.options.attempts,
        )
        self.strategies, self._shown = plan.strategies, plan.shown
        self.native = native.response_id(self._partial, call.request.sent) or ""
        if self.native and call.options.continuation == "auto" and self._shown and plan.strategies:
            self.strategies = (Strategy.NATIVE, *self.strategies)
        self._parts.extend(chunk.model_copy() for chunk in self._partial)

    def replayed(self) -> Iterator[ChatGenerationChunk]:
        """What was shown before the crash, flagged."""
        for chunk in self._partial:
            told = {**chunk.response_metadata, **REPLAYED}
            shown = chunk.model_copy(update={"response_metadata": told, "id": chunk.id or self._id})
            yield ChatGenerationChunk(message=shown)

    def source(
        self, strategy: Strategy, more: dict[str, Any], *, asynchronous: bool = False
    ) -> Any:
        """The model's own chunks of an answer that goes on by a strategy."""
        from langgraph_resilient.integrations.models import class_of

        model, arguments = self.begin(strategy, more)
        if strategy is Strategy.NATIVE:
            return (native.afetch if asynchronous else native.fetch)(model, self.native)
        own: Any = super(class_of(model), model)
        begun = own._astream if asynchronous else own._stream
        return begun(self.messages, stop=self._call.stop, **arguments)

    def begin(self, strategy: Strategy, more: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The model to call, and its arguments; `messages` is what to send."""
        call = self._call
        self.messages = prompt(strategy, call.messages, self._shown)
        self._trim = trimmer(strategy, self._shown) if self._partial else None
        if self._partial and strategy is Strategy.RESTART and not self._shown:
            self._parts, self._told = [], frozenset()  # what comes is the whole answer
            self._pending_reset = text_of(self._partial) is None
        return call.model(), {**call.arguments, **more}

    _pending_reset = False
    """What was shown cannot be compared (half a tool call): the new answer replaces it."""

    @property
    def stores(self) -> bool:
        """Whether chunks are stored before they are shown."""
        return self._buffer is not None

    def shown_together(self, chunks: list[ChatGenerationChunk]) -> Iterable[ChatGenerationChunk]:
        """What to show of chunks of the model's, stored before the first of it is handed out."""
        if len(chunks) == 1 or self._buffer is None:
            return chain.from_iterable(map(self._shown_of, chunks))
        with self._buffer.together():
            return [piece for chunk in chunks for piece in self._shown_of(chunk)]

    def _shown_of(self, generated: ChatGenerationChunk) -> Iterator[ChatGenerationChunk]:
        message = generated.message
        assert isinstance(message, AIMessageChunk)
        if not self._partial and not self._parts:
            self._id = message.id or self._id
        if message.id != self._id:  # some providers name an answer in its first chunk only
            if message.id is None:  # as langchain-core does; a copy costs as much as storing it
                message.id = self._id
            else:
                message = message.model_copy(update={"id": self._id})
        if self._told:
            message = message.model_copy(update={"response_metadata": self._news(message)})
        if self._pending_reset:
            self._pending_reset = False
            yield self._reset()
        said = text_of([message])
        if message.tool_call_chunks:
            yield from self._shorter()
        if self._trim is None or not said:
            yield self._store(message, generated)
            return
        text = self._trim(said)
        if text is None:
            text = self._trim.matched + said
            self._trim = None
            yield self._reset()
            metadata = {**self._known, **message.response_metadata}
            message = message.model_copy(update={"response_metadata": metadata})
        if text or message.usage_metadata or message.chunk_position:
            yield self._store(saying(message, text), generated)

    def _news(self, message: AIMessageChunk) -> dict[str, Any]:
        """What a chunk tells that was not told before: langchain-core joins names it hears twice."""
        news: dict[str, Any] = {}
        known = self._known
        for name, value in message.response_metadata.items():
            kept = known if name in self._told and isinstance(value, str) else news
            kept[name] = value
        return news

    def rest(self) -> Iterator[ChatGenerationChunk]:
        """What was held back and is new after all."""
        held = getattr(self._trim, "rest", lambda: "")()
        if held:
            yield self._store(AIMessageChunk(content=held, id=self._id), None)
        yield from self._shorter()

    def _shorter(self) -> Iterator[ChatGenerationChunk]:
        """A new answer whose text ends before what was shown does is another answer."""
        if not getattr(self._trim, "left", ""):
            return
        matched, said = self._trim.matched, self._merged()
        self._trim = None
        yield self._reset()
        again = AIMessageChunk(content=matched, id=self._id)
        if said is not None:
            again.response_metadata = said.response_metadata
            again.usage_metadata = said.usage_metadata
        yield self._store(again, None)

    def kept(self) -> ChatGenerationChunk:
        """The end of an answer that ends with what there is."""
        told = {"finish_reason": "interrupted"}
        last = AIMessageChunk(content="", id=self._id, response_metadata=told)
        return self._store(last, None)

    def steps_on(self, strategy: Strategy, error: Exception) -> bool:
        """Whether the next strategy is to be tried, because the provider refused this one."""
        refused = bool(self._partial) and is_refusal(error) and strategy is not self.strategies[-1]
        if refused:
            logger.info("the provider refused to go on by %s: %s", strategy.value, type(error))
        return refused

    def finish(self) -> None:
        """The answer is whole."""
        whole = self._merged()
        if whole is not None:
            answer: AIMessage = message_chunk_to_message(whole)  # type: ignore[assignment]
            metadata = {**self._generation, **answer.response_metadata}
            self._call.streamed = answer.model_copy(update={"response_metadata": metadata})

    def closed(self) -> Iterator[ChatGenerationChunk]:
        """The end of an answer, where the model told none: langchain-core's own has another id."""
        whole = self._merged()
        if whole is not None and whole.chunk_position != "last":
            content: Any = "" if isinstance(whole.content, str) else []
            yield ChatGenerationChunk(
                message=AIMessageChunk(content=content, id=whole.id, chunk_position="last")
            )

    def _reset(self) -> ChatGenerationChunk:
        if self._buffer is not None:
            self._buffer.reset()
        self._parts, self._told = [], frozenset()
        chunk = AIMessageChunk(content="", id=self._id, response_metadata=dict(RESET))
        return ChatGenerationChunk(message=chunk)

    def _store(
        self, message: AIMessageChunk, generated: ChatGenerationChunk | None
    ) -> ChatGenerationChunk:
        text = plain_text(message)
        if self._buffer is not None:
            self._buffer.chunk(message, text)
            self._call.shown = True
        # Whoever shows it may change it.
        self._parts.append(message.model_copy() if text is None else text)
        info = None if generated is None else generated.generation_info
        if info:
            self._generation.update(info)
        if generated is not None and generated.message is message:
            return generated
        return ChatGenerationChunk(message=message, generation_info=info)

    def _merged(self) -> AIMessageChunk | None:
        """What was shown so far as one chunk. Merging at once costs a fraction of one by one."""
        parts: list[AIMessageChunk] = []
        for kind, group in groupby(self._parts, type):
            several: Any = group
            if kind is str:
                several = [AIMessageChunk(content="".join(several), id=self._id)]
            parts.extend(several)
        if len(parts) > 1:
            first, *others = parts
            parts = [add_ai_message_chunks(first, *others)]
        self._parts = [*parts]
        return parts[0] if parts else None


def saying(message: AIMessageChunk, text: str) -> AIMessageChunk:
    """The same chunk with another text: a string, or the text of its one block of text."""
    content: Any = text
    if isinstance(message.content, list):
        content = []
        for block in message.content:
            if isinstance(block, str):
                block, text = text, ""
            elif block.get("type") in ("text", "text_delta") and "text" in block:
                block, text = {**block, "text": text}, ""
            content.append(block)
    return message.model_copy(update={"content": content})


def whole_chunk(answer: BaseMessage) -> ChatGenerationChunk:
    """A whole recorded answer as one chunk, flagged."""
    fields = {k: v for k, v in answer.__dict__.items() if k in AIMessageChunk.model_fields}
    for name in ("type", "invalid_tool_calls", "tool_call_chunks"):
        fields.pop(name, None)
    pieces: Any = [
        {
            "name": call["name"],
            "args": json.dumps(call["args"], ensure_ascii=False),
            "id": call["id"],
            "index": index,
        }
        for index, call in enumerate(fields.pop("tool_calls", None) or [])
    ]
    fields["response_metadata"] = {**answer.response_metadata, **REPLAYED}
    message = AIMessageChunk(**fields, tool_call_chunks=pieces, chunk_position="last")
    return ChatGenerationChunk(message=message)
