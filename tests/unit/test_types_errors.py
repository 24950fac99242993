"""Exceptions are never refused: they come back as what they were, or say what they cannot."""

from __future__ import annotations

import dataclasses
import sys
import threading
from typing import Any

import pytest
from langgraph.errors import GraphInterrupt
from langgraph.types import Interrupt
from property.strategies import decode, encode, roundtrip, same

from langgraph_resilient.codec.types import (
    DEGRADED,
    StandInError,
    TypePolicy,
    Unsupported,
    degrade_exception,
    restore,
)

STRICT = TypePolicy(strict=True)


class Odd(Exception):
    def __init__(self, code: int, *, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclasses.dataclass
class DataError(Exception):
    reason: str


def _caught(raiser: Any) -> BaseException:
    try:
        raiser()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def _chained() -> None:
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise Odd(3, text="outer") from error


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad row 7", 3),
        KeyError("k"),
        Odd(4, text="boom"),
        DataError("why"),
        SystemExit(3),
        StopIteration(5),
        ImportError("no", name="m", path="p"),
        GraphInterrupt((Interrupt(1, id="i"),)),
        _caught(lambda: open("/no/such/file")),  # noqa: SIM115
        _caught(lambda: b"\xff".decode("utf-8")),
        _caught(lambda: compile("a b", "f", "exec")),
        _caught(lambda: {}["x"]),
        _caught(lambda: None.foo),  # type: ignore[attr-defined]
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_comes_back_with_class_arguments_text_and_attributes(error: Any) -> None:
    back = roundtrip(error)
    assert same(back, error)
    for name in ("filename", "errno", "name", "path", "lineno", "value", "code", "reason"):
        assert getattr(back, name, None) == getattr(error, name, None)


def test_an_exception_keeps_notes_cause_and_context_but_no_traceback() -> None:
    error = _caught(_chained)
    error.__notes__ = ["seen by a test"]  # type: ignore[attr-defined]
    back = roundtrip(error)
    assert same(back.__cause__, KeyError("inner"))
    assert back.__context__ is back.__cause__
    assert back.__suppress_context__
    assert back.__notes__ == ["seen by a test"]
    assert back.__traceback__ is None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="new in Python 3.11")
def test_a_group_of_exceptions_comes_back() -> None:
    group = ExceptionGroup("g", [ValueError(1), Odd(2, text="t")])  # noqa: F821
    back = roundtrip(group)
    assert same(back, group)
    assert same(back.exceptions, group.exceptions)


def test_a_chain_of_exceptions_is_cut_also_when_it_is_a_ring() -> None:
    a, b = ValueError("a"), ValueError("b")
    a.__cause__, b.__cause__ = b, a
    assert str(roundtrip(a).__cause__) == "b"


def test_a_degraded_exception_keeps_plain_parts_and_says_so() -> None:
    error = Odd(5, text="t")
    error.args = ("t", threading.Lock(), [1, {"a": object}])
    error.client = object()  # type: ignore[attr-defined]
    with pytest.raises(Unsupported):
        encode(error)
    code, payload = degrade_exception(error)
    back = restore(code, decode(encode(payload)), TypePolicy())
    assert type(back) is Odd
    assert back.args[0] == "t"
    assert "lock" in back.args[1]
    assert back.args[2][0] == 1
    assert back.code == 5
    assert back.client.startswith("<object")
    assert getattr(back, DEGRADED) is True
    assert same(roundtrip(back), back)


class Grumpy:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_degrading_an_exception_never_fails() -> None:
    class Bad(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    code, payload = degrade_exception(Bad(Grumpy(), 2**100, (Grumpy(),)))
    assert encode(payload)
    assert isinstance(restore(code, payload, TypePolicy()), Bad)


def test_an_exception_of_a_missing_class_is_an_exception_and_is_stored_unchanged() -> None:
    data = encode(Odd(1, text="boom")).replace(b"Odd", b"Old")
    back = decode(data)
    assert isinstance(back, StandInError)
    assert str(back) == "boom"
    assert "Old" in repr(back)
    assert encode(back) == data


def test_strict_mode_gives_a_stand_in_for_an_exception_it_does_not_know() -> None:
    back = decode(encode([ValueError("v"), Odd(1, text="boom")]), STRICT)
    assert same(back[0], ValueError("v"))
    assert isinstance(back[1], StandInError)
    assert str(back[1]) == "boom"
