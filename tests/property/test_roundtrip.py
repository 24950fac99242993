"""Every supported value through a real file: put, put_writes, Send arguments, nested dicts."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from building import Thread, config, observe
from conftest import SaverFactory, make_cipher
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import BaseMessage, HumanMessage
from langgraph.types import Command, Send
from property.strategies import messages, same, values

from langgraph_resilient import ResilientSaver
from langgraph_resilient.errors import ValueRefused

relaxed = settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@contextmanager
def new_file() -> Iterator[Any]:
    """A function that opens a saver on one new file; the file goes away at the end."""
    folder = tempfile.mkdtemp(prefix="resilient-")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        yield lambda **options: ResilientSaver.from_conn_string(
            Path(folder) / "agent.db", **options
        )


def stored_and_read(state: dict[str, Any], writes: list[tuple[str, Any]], **options: Any) -> Any:
    """Store a state and the writes of a task, reopen the file, and read both."""
    with new_file() as open_saver:
        with open_saver(**options) as saver:
            where = Thread(saver).put(state)
            saver.put_writes(where, writes, "task")
        with open_saver(**options) as saver:
            found = saver.get_tuple(config())
            listed = next(saver.list(config()))
    assert same(listed.checkpoint["channel_values"], found.checkpoint["channel_values"])
    return found.checkpoint["channel_values"], [value for _, _, value in found.pending_writes]


@relaxed
@given(values())
def test_a_value_comes_back_from_a_reopened_file(value: Any) -> None:
    state, writes = stored_and_read({"x": value}, [("x", value), ("y", [value])])
    assert same(state["x"], value)
    assert same(writes, [value, [value]])


@relaxed
@given(values(6))
def test_a_value_comes_back_with_a_cipher(value: Any) -> None:
    state, writes = stored_and_read({"x": value}, [("x", value)], cipher=make_cipher())
    assert same(state["x"], value)
    assert same(writes, [value])


@relaxed
@given(st.lists(messages(artifacts=values(3)), max_size=5))
def test_messages_come_back_wherever_they_sit(found: list[BaseMessage]) -> None:
    nested = {"deep": {"list": [found, (tuple(found), {"k": found})]}, "one": found[:1]}
    sends = [Send("node", {"messages": found, "n": 1}), Send("node", found)]
    command = Command(update={"messages": found}, goto=[Send("other", nested)])
    writes = [("messages", found), ("__pregel_tasks", sends[0]), ("x", [*sends, command])]
    state, written = stored_and_read({"messages": found, "x": nested}, writes)
    assert same(state, {"messages": found, "x": nested})
    assert same(written, [found, sends[0], [*sends, command]])


@relaxed
@given(values(6), values(6))
def test_an_unchanged_value_stays_what_it_was(first: Any, second: Any) -> None:
    """Later checkpoints, a copy and a prune leave each checkpoint's own value alone."""
    with new_file() as open_saver, open_saver() as saver:
        thread = Thread(saver)
        one = thread.put({"x": first, "same": first})
        two = thread.put({"x": second})
        saver.copy_thread("t", "u")
        assert same(saver.get_tuple(one).checkpoint["channel_values"], {"x": first, "same": first})
        saver.prune(["t"])
        kept = {"x": second, "same": first}
        assert same(saver.get_tuple(two).checkpoint["channel_values"], kept)
        assert same(saver.get(config("u"))["channel_values"], kept)


@relaxed
@given(values(6))
def test_metadata_of_any_kind_comes_back(value: Any) -> None:
    if isinstance(value, str):
        value = value.replace("\x00", "")  # LangGraph takes NULs out of metadata text
    with new_file() as open_saver:
        with open_saver() as saver:
            Thread(saver).put({"x": 1}, metadata={"note": value})
        with open_saver() as saver:
            assert same(saver.get_tuple(config()).metadata["note"], value)


@relaxed
@given(values(8))
def test_storing_leaves_the_value_alone(value: Any) -> None:
    try:
        before = copy.deepcopy(value)
    except Exception:
        return
    if not same(before, value):
        return
    with new_file() as open_saver, open_saver() as saver:
        Thread(saver).put({"x": value})
        assert same(before, value)


@relaxed
@given(st.lists(st.integers(0, 9), min_size=1, max_size=60))
def test_a_list_of_messages_in_any_order_and_number(order: list[int]) -> None:
    """References are stored as runs: repeats, gaps and reversals must come back."""
    known = [HumanMessage(f"message {n}", id=str(n)) for n in range(10)]
    with new_file() as open_saver, open_saver() as saver:
        Thread(saver, "all").put({"m": known})
        where = Thread(saver, "some").put({"m": [known[n] for n in order]})
        assert saver.get_tuple(where).checkpoint["channel_values"]["m"] == [known[n] for n in order]


# --- refusals -------------------------------------------------------------------------------


class Opaque:
    """Cannot be rebuilt from its state."""

    __slots__ = ()


NESTS: dict[str, Any] = {
    "plain": (lambda x: x, ""),
    "list": (lambda x: [1, x], "[1]"),
    "dict": (lambda x: {"rows": {"owner": x}}, "['rows']['owner']"),
    "tuple": (lambda x: (0, (1, x)), "[1][1]"),
    "send": (lambda x: Send("node", {"arg": x}), "arg"),
}


@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("through", ["put", "put_writes"])
def test_a_refusal_names_channel_path_and_type(
    file_factory: SaverFactory, nest: str, through: str
) -> None:
    wrap, path = NESTS[nest]
    with file_factory() as saver:
        thread = Thread(saver)
        where = thread.put({"good": 1})
        before = observe(saver, ["t"])
        with pytest.raises(ValueRefused) as refused:
            if through == "put":
                thread.put({"good": 2, "bad": wrap(Opaque())})
            else:
                saver.put_writes(where, [("good", 2), ("bad", wrap(Opaque()))], "task")
        assert refused.value.channel == "bad"
        assert path in refused.value.path
        assert refused.value.type_name.endswith("Opaque")
        assert "bad" in str(refused.value)
        assert "Opaque" in str(refused.value)
        assert observe(saver, ["t"]) == before
    with file_factory() as saver:
        assert observe(saver, ["t"]) == before


def test_a_refusal_in_metadata_names_the_key(file_saver: ResilientSaver) -> None:
    with pytest.raises(ValueRefused) as refused:
        Thread(file_saver).put({"x": 1}, metadata={"note": [Opaque()]})
    assert "note" in (refused.value.channel + refused.value.path)
    assert file_saver.get_tuple(config()) is None


def test_a_value_that_holds_itself_is_refused(file_saver: ResilientSaver) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueRefused) as refused:
        Thread(file_saver).put({"x": loop})
    assert refused.value.channel == "x"


def test_a_value_nested_too_deep_is_refused(file_saver: ResilientSaver) -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueRefused) as refused:
        Thread(file_saver).put({"x": deep})
    assert refused.value.channel == "x"
    assert file_saver.get_tuple(config()) is None


def test_a_value_nested_ninety_levels_comes_back(file_saver: ResilientSaver) -> None:
    deep: Any = {"end": (1, 2)}
    for n in range(90):
        deep = [deep] if n % 2 else {"k": deep}
    Thread(file_saver).put({"x": deep})
    assert same(file_saver.get(config())["channel_values"], {"x": deep})
