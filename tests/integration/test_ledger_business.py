"""Business keys: what the user says is one request is done once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from agents import KINDS, MODES, answers, asking, begin, built, call, calling, said, script, where
from langchain_core.messages import AIMessage
from langchain_core.tools import tool

from langgraph_resilient import BusinessKeyReused, ResilientSaver, effect

ran: list[Any] = []


@pytest.fixture
def saver(db_path: str) -> Iterator[ResilientSaver]:
    ran.clear()
    with ResilientSaver.from_conn_string(db_path) as opened:
        yield opened


def ordering(**policy: Any) -> Any:
    @tool
    @effect("external", key=lambda args: f"order:{args['no']}", **policy)
    def order(no: int, amount: int = 1) -> str:
        """Order."""
        ran.append(no)
        return f"order {no} of {amount}"

    return order


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_one_business_key_is_one_call_whichever_message_asks(
    mode: str, kind: str, saver: Any
) -> None:
    replies = [calling(call("order", "a", no=7)), calling(call("order", "b", no=7))]
    made = built(kind, script(*replies, AIMessage("done")), [ordering()], saver)
    first, second = answers(begin(mode, made))
    assert (first.content, first.tool_call_id) == ("order 7 of 1", "a")
    assert (second.content, second.tool_call_id) == ("order 7 of 1", "b")
    assert first.id != second.id
    assert ran == [7]
    begin(mode, built(kind, asking(call("order", no=7)), [ordering()], saver), where("other"))
    assert ran == [7, 7]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_global_key_holds_for_all_threads(mode: str, kind: str, saver: Any) -> None:
    for thread in ("t", "other"):
        made = built(kind, asking(call("order", no=7)), [ordering(scope="global")], saver)
        assert said(begin(mode, made, where(thread))) == ["order 7 of 1"]
    assert ran == [7]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_key_with_other_arguments_is_refused(mode: str, kind: str, saver: Any) -> None:
    replies = [calling(call("order", "a", no=7)), calling(call("order", "b", no=7, amount=2))]
    made = built(kind, script(*replies, AIMessage("done")), [ordering()], saver)
    with pytest.raises(BusinessKeyReused, match="order:7"):
        begin(mode, made)
    assert ran == [7]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_equal_keys_in_one_message_run_once(mode: str, kind: str, saver: Any) -> None:
    calls = [call("order", str(number), no=7) for number in range(3)]
    state = begin(mode, built(kind, asking(*calls), [ordering()], saver))
    assert said(state) == ["order 7 of 1"] * 3
    assert [m.tool_call_id for m in answers(state)] == ["0", "1", "2"]
    assert ran == [7]
