"""`durable(model)`: the same chat model, its calls journaled; a finished call is not made again.

A durable model is an instance of a subclass of the model's own class, so everything that asks for
its class, binds tools to it or builds on it works as before.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
)
from langchain_core.outputs import ChatGeneration, ChatResult

from langgraph_resilient import modelcalls
from langgraph_resilient.errors import ParametersDrifted, RunDiverged
from langgraph_resilient.integrations import streaming
from langgraph_resilient.integrations.locating import count, ordinal_path
from langgraph_resilient.integrations.parameters import Changes, changes, secrets_of
from langgraph_resilient.integrations.runtime import Place, logger, place_of, running_config
from langgraph_resilient.journal import JournalBook, Opened, Request
from langgraph_resilient.journal.book import Match, Spot
from langgraph_resilient.journal.matching import Found
from langgraph_resilient.journal.request import SAMPLING, difference, without_secrets
from langgraph_resilient.ledger import innermost
from langgraph_resilient.records import ModelCallRecord, ordinal
from langgraph_resilient.saver import ResilientSaver

M = TypeVar("M", bound=BaseChatModel)
T = TypeVar("T")
_NOT_SENT = frozenset(
    {"messages", "input", "contents", "prompt", "system"}
    | {"stream", "stream_options", "stream_usage"}
)
_MARK = "__resilient_model__"


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How the calls of a model are journaled.

    Attributes:
        seed: ``"auto"`` gives models that take a seed a stable one for each call.
        on_drift: what happens when the parameters were changed between a crash and the resume:
            go on with the ``"recorded"`` ones, call anew with the ``"current"`` ones, or ``"raise"``.
        on_divergence: what happens when a resumed run asks something else than was recorded at the
            same place: ``"call"`` the model, or ``"raise"``.
        saver: the saver, where the running graph's config does not tell.
        passthrough: call the model unrecorded in a graph without a `ResilientSaver`.
        stream: whether streamed answers are stored before they are shown.
        continuation: how an answer goes on that a crash cut: a `Strategy` or ``"auto"``.
        attempts: how often the model is called for one answer before it ends with what there is.
    """

    seed: Literal["auto"] | None = None
    on_drift: Literal["recorded", "current", "raise"] = "recorded"
    on_divergence: Literal["call", "raise"] = "call"
    saver: ResilientSaver | None = None
    passthrough: bool = True
    stream: bool = True
    continuation: str = "auto"
    attempts: int = 3


def durable(model: M, **options: Any) -> M:
    """The same model, its calls journaled in the database of the running graph's saver.

    Args:
        model: any chat model; it stays as it is.
        **options: see `ModelOptions`.

    Returns:
        A model of a subclass of its class: bind tools to it, stream it, give it fallbacks.
    """
    if hasattr(type(model), _MARK):
        return model
    clone = copy.copy(model)
    object.__setattr__(clone, "__class__", _subclass(type(model), ModelOptions(**options)))
    return clone


@lru_cache(maxsize=256)
def _subclass(cls: type, options: ModelOptions) -> type:
    body: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        _MARK: options,
        "_generate_with_cache": _generate_with_cache,
        "_agenerate_with_cache": _agenerate_with_cache,
    }
    # Whether a class can stream is told by whether it has a method of its own.
    if cls._stream is not BaseChatModel._stream:  # type: ignore[attr-defined]
        body["_stream"] = streaming.stream
    if cls._astream is not BaseChatModel._astream:  # type: ignore[attr-defined]
        body["_astream"] = streaming.astream
    return type(cls.__name__, (cls,), body)


# --- what is asked, and where -------------------------------------------------------------------


_open: ContextVar[ModelInvocation | None] = ContextVar("resilient_model_call", default=None)
"""The journaled call inside which a model's own methods run: they do not journal it again."""


class ModelInvocation:
    """One call of a durable model."""

    def __init__(
        self,
        place: Place,
        options: ModelOptions,
        model: BaseChatModel,
        messages: list[BaseMessage],
        stop: list[str] | None,
        kwargs: dict[str, Any],
    ):
        self.book: JournalBook = place.saver.journal.book
        self.options = options
        self._model = model
        self.messages = messages
        self._stop = stop
        self._kwargs = dict(kwargs)
        self.spot = _spot(place)
        self._place = place
        sent = _sent(model, messages, stop, self._kwargs)
        # OpenAI's Responses, which have "input" for "messages", take no seed.
        self._seeds = options.seed == "auto" and _seeds(model) and "input" not in sent
        self.request = _request(model, messages, stop, self._kwargs, sent)
        self.opened: Opened
        self._closing = threading.Lock()
        self._gone = False
        self.shown = False
        """Whether something of the answer was stored and shown."""
        self.answering = False
        """Whether its stream is under way: what the model's own stream calls is a part of it."""
        self.streamed: AIMessage | None = None
        """The answer as it was shown, where the model's own stream made it."""

    def _give_seed(self) -> None:
        """A seed for a new call: another one each time the thread asks the same.

        No part of it is a matter of chance or of the order of threads, but between equal questions
        of one node. It is recorded, so that an interrupted call goes on with it.
        """
        if not self._seeds or self.request.sent.get("seed") is not None:
            return
        spot, identity = self.spot, self.request.identity
        closed = self.book.closed_like(spot.thread_id, self.request)
        turn = count(self._place, ("seed", identity))
        node = spot.place.rpartition("#")[0]
        parts = (spot.thread_id, spot.parent.hex(), node, closed, turn, self._place.attempt)
        text = "\0".join(map(str, parts)).encode()
        digest = hashlib.blake2b(text, digest_size=4, key=identity).digest()
        seed = int.from_bytes(digest, "big") >> 1
        self._kwargs["seed"] = seed
        sent = {**self.request.sent, "seed": seed}
        self.request = replace(self.request, sent=sent, seeded=True)

    def open(self) -> Opened:
        """Find the call's recorded answer, or record that it is about to be made.

        Waits while another live process runs the thread. Blocking.

        Raises:
            ThreadBusy: it does so for longer than ``lease_wait``.
            ParametersDrifted: the parameters have changed, and the options say so.
            RunDiverged: the run asks something else than before, and the options say so.
        """
        opened = self.book.patiently(self.spot.thread_id, self._open)
        with self._closing:
            self.opened = opened
            gone = self._gone
        if gone:
            self.abandon()
        return opened

    async def aopen(self) -> Opened:
        """`open`, for coroutines; one that is cancelled meanwhile leaves no call that seems to run."""
        try:
            return await self.book.engine.waiting.run(self.open)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Nobody waits for the call any more: it is interrupted, now or as soon as it is open."""
        with self._closing:  # protects the two against `open` in another thread
            self._gone = True
            opened: Opened | None = getattr(self, "opened", None)
        if opened is not None and opened.answer is None:
            self.book.interrupt(opened.record)

    def _open(self) -> Opened:
        opened = None
        while opened is None:  # None: a call beside this one took what was found
            found = self.book.match(self.spot, self.request)
            if found.diverged is not None:
                self._report_divergence(ordinal(found.diverged.call))
            opened = self._opened(found)
        return opened

    def _opened(self, found: Found) -> Opened | None:
        record = found.record
        drift: dict[str, Any] = {}
        parameters: dict[str, Any] = {}
        if record is not None and (found.drifted or record.answerless):
            recorded = self._recorded(record)
            drift, parameters = self._compared(found, recorded)
            if found.drifted and not self._keeps(recorded, record):
                record, drift = None, {}
        if record is None:
            self._give_seed()
            made = self.book.begin(self.spot, self.request)
            return Opened(record=made, found=found)
        if record.answerless:
            again = self.book.reopen(self.spot, record, drift)
            if again is None:
                return None
            return Opened(record=again, found=found, parameters=parameters)
        answer = self.book.answer(self.spot, record)
        return None if answer is None else Opened(record=record, found=found, answer=answer)

    def _compared(self, found: Found, recorded: Request) -> tuple[dict[str, Any], dict[str, Any]]:
        """What has changed since a call was recorded, and what to send because of that."""
        drift = difference(recorded.parameters, self.request.parameters)
        parameters = {name: pair[0] for name, pair in drift.items() if name in SAMPLING}
        if "seed" in drift and not found.drifted:
            del drift["seed"]  # ours: the code has none
        if found.drifted and found.record is not None:
            self._report_drift(ordinal(found.record.call), drift)
        return drift, parameters

    def _keeps(self, recorded: Request, record: ModelCallRecord) -> bool:
        """Whether recorded parameters hold; another provider does not know them."""
        ours = record.provider == self.request.provider or not record.answerless
        return ours and self.options.on_drift == "recorded"

    def _recorded(self, record: ModelCallRecord) -> Request:
        with self.book.engine.reading() as session:
            sent = self.book.values(session, record, "sent").get("sent") or {}
        return Request(
            messages=self.messages, sent=sent, provider=record.provider, model=record.model
        )

    def _report_drift(self, number: int, drift: Mapping[str, Any]) -> None:
        shown = ", ".join(f"{name}: {old!r} -> {new!r}" for name, (old, new) in drift.items())
        if self.options.on_drift == "raise":
            raise ParametersDrifted(
                f"model call {number} of thread {self.spot.thread_id!r} was made with other "
                f"parameters than the code has now ({shown}); change them back, or say "
                'on_drift="recorded" or "current"'
            )
        logger.warning(
            "model call %d goes on after a crash with the %s parameters; they differ: %s",
            number,
            self.options.on_drift,
            shown,
        )

    def _report_divergence(self, number: int) -> None:
        if self.options.on_divergence == "raise":
            raise RunDiverged(
                f"thread {self.spot.thread_id!r}: at {self.spot.place} model call {number} asked "
                "something else before the crash than the resumed run asks now; make the code before "
                'it deterministic, or say on_divergence="call"'
            )
        logger.warning(
            "the resumed run asks something else at %s than recorded model call %d; it is made anew",
            self.spot.place,
            number,
        )

    # --- making it ----------------------------------------------------------------------------

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for the model's own methods."""
        return self._changes.arguments(self._kwargs)

    @property
    def stop(self) -> list[str] | None:
        """Stop sequences."""
        return self._changes.stop[0] if self._changes.stop else self._stop

    def model(self) -> BaseChatModel:
        """The model to call: with the interrupted call's parameters, where they are its fields."""
        changed = self._changes.fields
        return self._model.model_copy(update=changed) if changed else self._model

    @property
    def _changes(self) -> Changes:
        return changes(self._model, self._kwargs, self.opened.parameters or {})

    def end(self, answer: BaseMessage, *, streamed: bool) -> None:
        """Record the answer."""
        if answer.id is None:
            answer.id = self.opened.record.message_id
        self.book.end(self.opened.record, answer, streamed=streamed)

    async def aend(self, answer: BaseMessage, *, streamed: bool) -> None:
        """`end`, for coroutines: an answer that is paid for is recorded, cancelled or not."""
        try:
            await self.book.engine.waiting.run(partial(self.end, answer, streamed=streamed))
        except Exception:
            raise
        except BaseException:
            self.end(answer, streamed=streamed)  # it may never have begun; twice changes nothing
            raise

    def fail(self, error: BaseException) -> None:
        """Record that there is none; one that was cut in the middle stays open, to go on.

        So does one that was cancelled: that is no answer of the provider's.
        """
        if not isinstance(error, Exception) or (self.shown and modelcalls.is_transient(error)):
            self.book.interrupt(self.opened.record)
            return
        self.book.fail(self.opened.record, error, secrets_of(self._model))


def _spot(place: Place) -> Spot:
    """Where in a graph a model is called."""
    above = innermost()
    ids = place.configurable.get("checkpoint_map") or {}
    return Spot(
        thread_id=place.thread_id,
        parent=b"" if above is None else bytes.fromhex(above.current.key),
        task=place.checkpoint_ns.split("|")[0].rpartition(":")[2],
        root=str(ids.get("", "")),
        place=ordinal_path(place, "model"),
    )


def invocation(
    model: BaseChatModel,
    messages: list[BaseMessage],
    stop: list[str] | None,
    kwargs: dict[str, Any],
) -> ModelInvocation | None:
    """The call to journal; None inside one that is journaled, and outside a resilient graph."""
    if _open.get() is not None:
        return None
    options: ModelOptions = getattr(type(model), _MARK)
    place = place_of(running_config(), options.saver, passthrough=options.passthrough)
    if place is None or place.scratchpad is None:
        return None
    return ModelInvocation(place, options, model, messages, stop, kwargs)


def _sent(
    model: BaseChatModel,
    messages: list[BaseMessage],
    stop: list[str] | None,
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """What the provider is really sent, by its own names."""
    payload = getattr(model, "_get_request_payload", None)
    if payload is not None:
        found = dict(payload(messages, stop=stop, **kwargs))
        # The clients send it as a part of the body.
        more = found.pop("extra_body", None)
        return {**found, **more} if isinstance(more, Mapping) else found
    sent = {**model._identifying_params, **kwargs}
    sent |= {name: getattr(model, name) for name in SAMPLING if _is_set(model, name)}
    return {**sent, "stop": stop} if stop else sent


def _request(
    model: BaseChatModel,
    messages: list[BaseMessage],
    stop: list[str] | None,
    kwargs: dict[str, Any],
    sent: Mapping[str, Any],
) -> Request:
    """What is asked, without secrets."""
    known: Mapping[str, Any] = model._get_ls_params(stop=stop, **kwargs)
    name = str(sent.get("model") or known.get("ls_model_name") or "")
    return Request(
        messages=messages,
        sent=without_secrets({k: v for k, v in sent.items() if k not in _NOT_SENT}),
        provider=str(known.get("ls_provider") or model._llm_type),
        model=name,
    )


def _seeds(model: BaseChatModel) -> bool:
    """Whether a model takes a seed."""
    return "seed" in type(model).model_fields


def _is_set(model: BaseChatModel, name: str) -> bool:
    return name in type(model).model_fields and getattr(model, name, None) is not None


def current() -> ModelInvocation | None:
    """The journaled call inside which this runs, if any."""
    return _open.get()


@contextmanager
def inside(call: ModelInvocation) -> Iterator[None]:
    token = _open.set(call)
    try:
        yield
    finally:
        _open.reset(token)


def within(call: ModelInvocation, source: Iterator[T]) -> Iterator[T]:
    """The same items, each step inside the call: a model whose stream uses its other methods."""
    step = iter(source).__next__
    try:
        while True:
            token = _open.set(call)
            try:
                item = step()
            except StopIteration:
                return
            finally:
                _open.reset(token)
            yield item
    finally:
        if hasattr(source, "close"):
            source.close()


async def awithin(call: ModelInvocation, source: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    """`within`, of an asynchronous iterator."""
    iterator = source.__aiter__()
    try:
        while True:
            token = _open.set(call)
            try:
                item = await iterator.__anext__()
            except StopAsyncIteration:
                return
            finally:
                _open.reset(token)
            yield item
    finally:
        if hasattr(iterator, "aclose"):
            await iterator.aclose()


# --- whole answers ------------------------------------------------------------------------------


def _generate_with_cache(
    self: Any,
    messages: list[BaseMessage],
    stop: list[str] | None = None,
    run_manager: Any = None,
    **kwargs: Any,
) -> ChatResult:
    above = super(class_of(self), self)._generate_with_cache
    call = invocation(self, messages, stop, kwargs)
    if call is None:
        return above(messages, stop=stop, run_manager=run_manager, **kwargs)  # type: ignore[no-any-return]
    opened = call.open()
    if opened.answer is not None:
        if self._should_stream(async_api=False, run_manager=run_manager, **kwargs):
            chunk = streaming.whole_chunk(opened.answer)
            run_manager.on_llm_new_token(chunk.text, chunk=chunk)
        return _replayed(opened.answer)
    try:
        with inside(call):
            model = call.model()
            above = super(class_of(model), model)._generate_with_cache
            result: ChatResult = above(
                messages, stop=call.stop, run_manager=run_manager, **call.arguments
            )
    except BaseException as error:
        call.fail(error)
        raise
    call.end(_answer(call, result), streamed=call.streamed is not None)
    return result


async def _agenerate_with_cache(
    self: Any,
    messages: list[BaseMessage],
    stop: list[str] | None = None,
    run_manager: Any = None,
    **kwargs: Any,
) -> ChatResult:
    above = super(class_of(self), self)._agenerate_with_cache
    call = invocation(self, messages, stop, kwargs)
    if call is None:
        return await above(messages, stop=stop, run_manager=run_manager, **kwargs)  # type: ignore[no-any-return]
    opened = await call.aopen()
    if opened.answer is not None:
        if self._should_stream(async_api=True, run_manager=run_manager, **kwargs):
            chunk = streaming.whole_chunk(opened.answer)
            await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
        return _replayed(opened.answer)
    try:
        with inside(call):
            model = call.model()
            above = super(class_of(model), model)._agenerate_with_cache
            result: ChatResult = await above(
                messages, stop=call.stop, run_manager=run_manager, **call.arguments
            )
    except BaseException as error:
        call.fail(error)  # at once: a cancelled coroutine waits for nothing
        raise
    answer = _answer(call, result)
    await call.aend(answer, streamed=call.streamed is not None)
    return result


def class_of(model: Any) -> Any:
    """The durable subclass in a model's classes: ``super`` starts behind it."""
    return next(cls for cls in type(model).__mro__ if _MARK in vars(cls))


def _answer(call: ModelInvocation, result: ChatResult) -> BaseMessage:
    """The answer; one that went on after a crash is what was shown, and no more."""
    generation = result.generations[0]
    if call.streamed is not None:
        generation.message = call.streamed
    return generation.message


def _replayed(answer: BaseMessage) -> ChatResult:
    """A recorded answer; a trace shows that it was one."""
    note = {"resilient_replayed": True}
    return ChatResult(
        generations=[ChatGeneration(message=answer, generation_info=note)], llm_output=dict(note)
    )


# --- models that are only functions -------------------------------------------------------------


def journaled(
    function: Callable[..., T], *, saver: ResilientSaver | None = None, passthrough: bool = False
) -> Callable[..., T]:
    """Journal a function that asks a model by itself: ``function(prompt, **parameters)``.

    Args:
        function: gives an answer that can be stored.
        saver: the saver, where the running graph's config does not tell.
        passthrough: call it unrecorded where there is no `ResilientSaver`.
    """
    name = getattr(function, "__qualname__", type(function).__name__)

    @functools.wraps(function)
    def wrapper(prompt: Any, **parameters: Any) -> T:
        place = place_of(running_config(), saver, passthrough=passthrough)
        if place is None:
            return function(prompt, **parameters)
        book, spot = place.saver.journal.book, _spot(place)
        messages = prompt if isinstance(prompt, list) else [HumanMessage(str(prompt))]
        request = Request(
            messages=messages, sent=without_secrets(parameters), provider="function", model=name
        )
        found = book.match(spot, request)
        if found.match is Match.ANSWERED and found.record is not None:
            answer = book.answer(spot, found.record)
            if answer is not None:
                return answer  # type: ignore[no-any-return]
        record = book.patiently(spot.thread_id, lambda: book.begin(spot, request))
        try:
            given = function(prompt, **parameters)
        except BaseException as error:
            book.fail(record, error)
            raise
        book.end(record, given, streamed=False)
        return given

    return wrapper
