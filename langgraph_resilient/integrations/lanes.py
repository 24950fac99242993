"""Questions to humans, each with an id of its own: the right call gets the right answer.

LangGraph tells the interrupts of one task apart by their order. The calls of a plain `ToolNode`
run side by side in one task, so their order is chance. Here each call is a lane of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import xxhash
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphInterrupt
from langgraph.types import Interrupt

from langgraph_resilient.integrations.runtime import RESUME_MAP, SCRATCHPAD, SEND, Place
from langgraph_resilient.ledger import SPENT
from langgraph_resilient.ledger.keys import digest_of

_RESUME = "__resume__"
_SUBGRAPHS = 1000
"""How many sub-graphs one call may run before their names meet those of the next call."""
_SPENT = (
    "the answer without an id that is there was given before this question was put; "
    "answer with the question's id, or say something else, such as another reason"
)


class Lane:
    """One call's questions.

    Args:
        place: where the call runs.
        key: the call's key in hexadecimal.
        my_turn: whether no earlier call of the same task waits for an answer, so that an answer
            that names no question is for this one.
        position: which of its task's calls this is.
    """

    def __init__(self, place: Place, key: str, my_turn: Callable[[], bool], position: int = 0):
        self._place = place
        self._key = key
        self._my_turn = my_turn
        self._position = position

    def ask(self, question: dict[str, Any]) -> Any:
        """The human's answer to the ledger's own question.

        Args:
            question: what to show, and under `SPENT` the digests of answers without an id that are
                none to this question; None when it was not put yet, so that only an answer with
                its id can be one.

        Raises:
            GraphInterrupt: it was not answered yet.
        """
        spent = question.pop(SPENT)
        id = self._id(f"unknown {question['key']} {question['attempt']}")
        if "problem" not in question:
            answers = self._place.configurable.get(RESUME_MAP) or {}
            if id in answers:
                return answers[id]
            if spent is not None and (given := self.bare()) is not None:
                if given in spent:
                    question = {**question, "problem": _SPENT}
                elif (answer := self._unnamed(True)) is not None:
                    return answer
        raise GraphInterrupt((Interrupt(value=question, id=id),))

    def bare(self) -> str | None:
        """The digest of the answer without an id that LangGraph shows to this task, or None."""
        scratchpad = self._place.scratchpad
        answer = None if scratchpad is None else scratchpad.get_null_resume(False)
        return None if answer is None else digest_of(answer).hex()

    def config(self, answers: list[Any]) -> RunnableConfig:
        """A config in which ``interrupt()`` asks and answers for this call alone.

        Sub-graphs have names of their own in it, too: LangGraph numbers those of one task in the
        order in which they begin, which is chance, and a resume would mix them up.

        Args:
            answers: what was answered in earlier runs; new answers are appended.
        """
        place, scratchpad = self._place, self._place.scratchpad
        if scratchpad is None:
            return place.config
        named = place.configurable.get(RESUME_MAP) or {}

        def next_answer(consume: bool = False) -> Any:
            id = self._id(len(answers))
            return named[id] if id in named else self._unnamed(consume)

        lane = replace(
            scratchpad,
            interrupt_counter=itertools.count().__next__,
            get_null_resume=next_answer,
            resume=answers,
            subgraph_counter=itertools.count(self._position * _SUBGRAPHS).__next__,
        )
        send = place.configurable.get(SEND)

        def without_answers(writes: Any) -> None:
            kept = [write for write in writes if write[0] != _RESUME]
            if kept and send is not None:
                send(kept)

        configurable = {**place.configurable, SCRATCHPAD: lane, SEND: without_answers}
        return {**place.config, "configurable": configurable}

    def renamed(self, error: GraphInterrupt, answered: int) -> GraphInterrupt:
        """The same interrupt with this call's id instead of the task's."""
        theirs = _task_id(self._place.checkpoint_ns, answered)
        interrupts = error.args[0] if error.args else ()
        return GraphInterrupt(
            tuple(
                replace_id(one, self._id(answered)) if one.id == theirs else one
                for one in interrupts
            )
        )

    def _unnamed(self, consume: bool) -> Any:
        scratchpad = self._place.scratchpad
        if scratchpad is None or scratchpad.get_null_resume(False) is None:
            return None
        return scratchpad.get_null_resume(consume) if self._my_turn() else None

    def _id(self, what: int | str) -> str:
        text = f"{self._place.checkpoint_ns}|resilient {self._key} {what}"
        return xxhash.xxh3_128_hexdigest(text.encode())


def replace_id(interrupt: Interrupt, id: str) -> Interrupt:
    """An interrupt with another id."""
    made = Interrupt(value=interrupt.value, id=id)
    schema = getattr(interrupt, "response_schema", None)
    if schema is not None:
        made.response_schema = schema
    return made


def _task_id(checkpoint_ns: str, answered: int) -> str:
    """The id that LangGraph gives a task's next interrupt."""
    text = f"{checkpoint_ns}|{answered}" if answered else checkpoint_ns
    return xxhash.xxh3_128_hexdigest(text.encode())
