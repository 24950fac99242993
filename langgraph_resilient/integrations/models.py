"""`durable(model)`: the same chat model, its calls journaled; a finished call is not made again.

A durable model is an instance of a subclass of the model's own class, so everything that asks for
its class, binds tools to it or builds on it works as before.
"""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
)
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.config import get_config

from langgraph_resilient import modelcalls
from langgraph_resilient.errors import ParametersDrifted, RunDiverged
from langgraph_resilient.integrations import streaming
from langgraph_resilient.integrations.locating import ordinal_path
from langgraph_resilient.integrations.runtime import Place, logger, place_of
from langgraph_resilient.journal import JournalBook, Opened, Request
from langgraph_resilient.journal.book import Match, Spot
from langgraph_resilient.journal.request import SAMPLING, difference, without_secrets
from langgraph_resilient.ledger import innermost
from langgraph_resilient.saver import ResilientSaver

M = TypeVar("M", bound=BaseChatModel)
T = TypeVar("T")
_NOT_SENT = ("messages", "input", "contents", "prompt", "system", "stream", "stream_options")
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
        if options.seed == "auto":
            self._give_seed()
        self.request = _request(model, messages, stop, self._kwargs)
        self.opened: Opened
        self.shown = False
        """Whether something of the answer was stored and shown."""
        self.streamed: AIMessage | None = None
        """The answer as it was shown, where the model's own stream made it."""

    def _give_seed(self) -> None:
        fields = type(self._model).model_fields
        given = getattr(self._model, "seed", None) is not None or "seed" in self._kwargs
        if "seed" in fields and not given:
            text = f"{self.spot.thread_id}\0{self.spot.place}\0{self.spot.parent.hex()}"
            digest = hashlib.blake2b(text.encode(), digest_size=4).digest()
            self._kwargs["seed"] = int.from_bytes(digest, "big") >> 1

    def open(self) -> Opened:
        """Find the call's recorded answer, or record that it is about to be made.

        Raises:
            ParametersDrifted: the parameters have changed, and the options say so.
            RunDiverged: the run asks something else than before, and the options say so.
        """
        found = self.book.match(self.spot, self.request)
        record = found.record
        if found.diverged is not None:
            self._report_divergence(found.diverged.call)
        parameters: dict[str, Any] | None = None
        drift: dict[str, Any] = {}
        if record is not None and found.drifted:
            recorded = self._sent(record)
            drift = difference(recorded.parameters, self.request.parameters)
            self._report_drift(record.call, drift)
            if self.options.on_drift == "recorded":
                wanted = {n: pair[0] for n, pair in drift.items() if n in SAMPLING}
                parameters = {name: value for name, value in wanted.items() if value is not None}
            else:
                record, drift = None, {}
        if record is not None and found.match is Match.ANSWERED:
            answer = self.book.answer(self.spot, record)
            if answer is not None:
                self.opened = Opened(record=record, found=found, answer=answer)
                return self.opened
        if record is not None and record.answerless:
            made = self.book.reopen(self.spot, record, drift)
        else:
            made = self.book.begin(self.spot, self.request)
        self.opened = Opened(record=made, found=found, parameters=parameters)
        return self.opened

    def _sent(self, record: Any) -> Request:
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
        return {**self._kwargs, **self._changed(kwargs=True)}

    @property
    def stop(self) -> list[str] | None:
        """Stop sequences."""
        recorded = (self.opened.parameters or {}).get("stop")
        return self._stop if recorded is None else recorded

    def model(self) -> BaseChatModel:
        """The model to call: with the interrupted call's parameters, where they are its fields."""
        changed = self._changed(kwargs=False)
        return self._model.model_copy(update=changed) if changed else self._model

    def _changed(self, *, kwargs: bool) -> dict[str, Any]:
        parameters = self.opened.parameters or {}
        fields = type(self._model).model_fields
        names = {"model": "model_name"} if "model_name" in fields else {}
        found = {}
        for name, value in parameters.items():
            if name == "stop":
                continue
            own = names.get(name, name)
            if (name in self._kwargs or own not in fields) is kwargs:
                found[name if kwargs else own] = value
        return found

    def end(self, answer: BaseMessage, *, streamed: bool) -> None:
        """Record the answer."""
        if answer.id is None:
            answer.id = self.opened.record.message_id
        self.book.end(self.opened.record, answer, streamed=streamed)

    def fail(self, error: BaseException) -> None:
        """Record that there is none; one that was cut in the middle stays open, to go on."""
        if self.shown and modelcalls.is_transient(error):
            return
        self.book.fail(self.opened.record, error)


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
    try:
        config = get_config()
    except RuntimeError:
        config = None
    place = place_of(config, options.saver, passthrough=options.passthrough)
    if place is None or place.scratchpad is None:
        return None
    return ModelInvocation(place, options, model, messages, stop, kwargs)


def _request(
    model: BaseChatModel,
    messages: list[BaseMessage],
    stop: list[str] | None,
    kwargs: dict[str, Any],
) -> Request:
    """What the provider is really sent, by its own names."""
    known: Mapping[str, Any] = model._get_ls_params(stop=stop, **kwargs)
    payload = getattr(model, "_get_request_payload", None)
    if payload is not None:
        sent = dict(payload(messages, stop=stop, **kwargs))
    else:
        sent = {**model._identifying_params, **kwargs}
        sent |= {name: getattr(model, name) for name in SAMPLING if _is_set(model, name)}
        if stop:
            sent["stop"] = stop
    name = str(sent.get("model") or known.get("ls_model_name") or "")
    return Request(
        messages=messages,
        sent=without_secrets({k: v for k, v in sent.items() if k not in _NOT_SENT}),
        provider=str(known.get("ls_provider") or model._llm_type),
        model=name,
    )


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
    hop = call.book.engine.waiting.run
    opened = await hop(call.open)
    if opened.answer is not None:
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
    await hop(partial(call.end, answer, streamed=call.streamed is not None))
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
        try:
            config = get_config()
        except RuntimeError:
            config = None
        place = place_of(config, saver, passthrough=passthrough)
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
        record = book.begin(spot, request)
        try:
            given = function(prompt, **parameters)
        except BaseException as error:
            book.fail(record, error)
            raise
        book.end(record, given, streamed=False)
        return given

    return wrapper
