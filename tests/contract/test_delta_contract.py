"""Delta channels: whatever is pruned, deleted or copied, the state that remains stays whole."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import pytest
from building import Thread, config, ids
from conftest import SaverFactory
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Overwrite, Send, interrupt
from typing_extensions import TypedDict

from langgraph_resilient import ResilientSaver


def extend(current: list | None, batches: Sequence[list]) -> list:
    return [*(current or []), *(item for batch in batches for item in batch)]


def fold_messages(current: list | None, batches: Sequence[Any]) -> list:
    folded = list(current or [])
    for batch in batches:
        folded = add_messages(folded, batch)
    return folded


def graph(saver: BaseCheckpointSaver, frequency: int = 1000) -> Any:
    """Each run adds an input, the two halves of a fan-out, and an answer."""

    class State(TypedDict, total=False):
        n: int
        log: Annotated[list, DeltaChannel(extend, snapshot_frequency=frequency)]
        messages: Annotated[
            list[AnyMessage], DeltaChannel(fold_messages, snapshot_frequency=frequency)
        ]

    def branch(state: dict) -> dict:
        return {"log": [f"{state['n']}-{state['side']}"]}

    def answer(state: State) -> dict:
        n = state["n"]
        return {"log": [f"{n}-answer"], "messages": [AIMessage(f"answer {n}", id=f"a{n}")]}

    builder = StateGraph(State)
    builder.add_node("start", lambda state: {"log": [f"{state['n']}-start"]})
    builder.add_node("branch", branch)
    builder.add_node("answer", answer)
    builder.add_edge(START, "start")
    builder.add_conditional_edges(
        "start",
        lambda state: [Send("branch", {"n": state["n"], "side": side}) for side in "zyx"],
        ["branch"],
    )
    builder.add_edge("branch", "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=saver)


def run(built: Any, n: int, thread_id: str = "t") -> dict:
    where = {**config(thread_id), "metadata": {"run_id": f"run{n}"}}
    inputs = {"n": n, "log": [f"{n}-in"], "messages": [HumanMessage(f"q {n}", id=f"h{n}")]}
    return built.invoke(inputs, where)


def expected_log(*runs: int) -> list[str]:
    return [f"{n}-{part}" for n in runs for part in ("in", "start", "z", "y", "x", "answer")]


def expected_messages(*runs: int) -> list:
    return [
        message
        for n in runs
        for message in (HumanMessage(f"q {n}", id=f"h{n}"), AIMessage(f"answer {n}", id=f"a{n}"))
    ]


def assert_state(built: Any, *runs: int, thread_id: str = "t") -> None:
    values = built.get_state(config(thread_id)).values
    assert values["log"] == expected_log(*runs)
    assert values["messages"] == expected_messages(*runs)


@pytest.mark.parametrize("frequency", [1, 2, 3, 1000])
def test_a_thread_reads_back_whole(saver: ResilientSaver, frequency: int) -> None:
    built = graph(saver, frequency)
    for n in range(4):
        run(built, n)
        assert_state(built, *range(n + 1))


@pytest.mark.parametrize("frequency", [1, 3, 1000])
def test_prune_keeps_the_state_and_drops_the_chain(saver: ResilientSaver, frequency: int) -> None:
    built = graph(saver, frequency)
    for n in range(3):
        run(built, n)
    saver.prune(["t"], strategy="keep_latest")
    assert len(list(saver.list(config()))) == 1
    assert_state(built, 0, 1, 2)
    run(built, 3)
    assert_state(built, 0, 1, 2, 3)


def test_prune_folds_the_history_into_the_checkpoint_it_keeps(saver: ResilientSaver) -> None:
    """No ancestor is left, and what the delta channel needs is still there."""
    built = graph(saver)
    for n in range(3):
        run(built, n)
    saver.prune(["t"])
    kept = saver.get_tuple(config())
    assert kept.parent_config is None or saver.get_tuple(kept.parent_config) is None
    found = saver.get_delta_channel_history(config=kept.config, channels=["log"])["log"]
    seed = found.get("seed")
    base = seed.value if isinstance(seed, _DeltaSnapshot) else seed
    assert extend(base, [value for _, _, value in found["writes"]]) == expected_log(0, 1, 2)


def test_prune_again_and_again(saver: ResilientSaver) -> None:
    built = graph(saver)
    for n in range(4):
        run(built, n)
        saver.prune(["t"])
        saver.prune(["t"])
        assert_state(built, *range(n + 1))
    assert len(list(saver.list(config()))) == 1


def test_prune_survives_a_reopen(saver_factory: SaverFactory) -> None:
    if not saver_factory.persistent:
        pytest.skip("an in-memory database ends with its saver")
    with saver_factory() as saver:
        built = graph(saver)
        for n in range(3):
            run(built, n)
        saver.prune(["t"])
    with saver_factory() as saver:
        built = graph(saver)
        assert_state(built, 0, 1, 2)
        run(built, 3)
        assert_state(built, 0, 1, 2, 3)


@pytest.mark.parametrize("gone", [[0], [1], [0, 1], [0, 2], [2]])
def test_deleting_older_runs_keeps_the_state(saver: ResilientSaver, gone: list[int]) -> None:
    built = graph(saver)
    for n in range(4):
        run(built, n)
    saver.delete_for_runs([f"run{n}" for n in gone])
    assert not [
        item
        for item in saver.list(config())
        if item.metadata.get("run_id") in {f"run{n}" for n in gone}
    ]
    assert_state(built, 0, 1, 2, 3)
    run(built, 4)
    assert_state(built, 0, 1, 2, 3, 4)


def test_deleting_the_newest_run_goes_back_to_the_one_before(saver: ResilientSaver) -> None:
    built = graph(saver)
    for n in range(3):
        run(built, n)
    saver.delete_for_runs(["run2"])
    assert_state(built, 0, 1)
    run(built, 3)
    assert_state(built, 0, 1, 3)


def test_the_older_states_of_kept_runs_stay_readable(saver: ResilientSaver) -> None:
    built = graph(saver)
    for n in range(3):
        run(built, n)
    before = {
        ids_of(state): state.values
        for state in built.get_state_history(config())
        if state.metadata["run_id"] != "run1"
    }
    saver.delete_for_runs(["run1"])
    after = {ids_of(state): state.values for state in built.get_state_history(config())}
    assert after == before


def ids_of(state: Any) -> str:
    return state.config["configurable"]["checkpoint_id"]


def test_a_copy_has_the_whole_state(saver: ResilientSaver) -> None:
    built = graph(saver)
    for n in range(3):
        run(built, n)
    saver.copy_thread("t", "u")
    assert_state(built, 0, 1, 2, thread_id="u")
    saver.delete_thread("t")
    assert_state(built, 0, 1, 2, thread_id="u")
    run(built, 3, "u")
    saver.prune(["u"])
    assert_state(built, 0, 1, 2, 3, thread_id="u")


def test_a_copy_of_a_pruned_thread_has_the_whole_state(saver: ResilientSaver) -> None:
    built = graph(saver)
    for n in range(3):
        run(built, n)
    saver.prune(["t"])
    saver.copy_thread("t", "u")
    saver.delete_thread("t")
    assert_state(built, 0, 1, 2, thread_id="u")


def test_the_history_equals_that_of_the_base_class(saver: ResilientSaver) -> None:
    built = graph(saver, 5)
    for n in range(4):
        run(built, n)
    channels = ["log", "messages", "n", "no-such-channel"]
    where = [item.config for item in saver.list(config())]
    for place in (*where, config(), config("t", "no-such-id"), config("nobody")):
        ours = saver.get_delta_channel_history(config=place, channels=channels)
        assert dict(ours) == BaseCheckpointSaver.get_delta_channel_history(
            saver, config=place, channels=channels
        )
        theirs = asyncio.run(saver.aget_delta_channel_history(config=place, channels=channels))
        assert theirs == ours
    assert saver.get_delta_channel_history(config=config(), channels=[]) == {}


def test_the_history_of_a_branch_follows_its_own_parents(saver: ResilientSaver) -> None:
    built = graph(saver)
    for n in range(2):
        run(built, n)
    fork = next(
        state.config
        for state in built.get_state_history(config())
        if state.metadata["run_id"] == "run0" and not state.next
    )
    built.update_state(fork, {"log": ["forked"]}, as_node="answer")
    values = built.get_state(config()).values
    assert values["log"] == [*expected_log(0), "forked"]
    head = saver.get_tuple(config()).config
    ours = saver.get_delta_channel_history(config=head, channels=["log"])
    assert ours == BaseCheckpointSaver.get_delta_channel_history(
        saver, config=head, channels=["log"]
    )
    saver.prune(["t"])
    assert built.get_state(config()).values == values


def test_an_overwrite_is_the_new_base(saver: ResilientSaver) -> None:
    built = graph(saver)
    run(built, 0)
    built.update_state(config(), {"log": Overwrite(["anew"])}, as_node="answer")
    run(built, 1)
    want = ["anew", *expected_log(1)]
    assert built.get_state(config()).values["log"] == want
    saver.prune(["t"])
    assert built.get_state(config()).values["log"] == want


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_waiting_interrupt_survives_prune(saver: ResilientSaver, durability: Any) -> None:
    class State(TypedDict, total=False):
        log: Annotated[list, DeltaChannel(extend, snapshot_frequency=1000)]

    builder = StateGraph(State)
    builder.add_node("one", lambda state: {"log": ["one"]})
    builder.add_node("ask", lambda state: {"log": [interrupt("?")]})
    builder.add_edge(START, "one")
    builder.add_edge("one", "ask")
    builder.add_edge("ask", END)
    built = builder.compile(checkpointer=saver)
    built.invoke({"log": ["in"]}, config(), durability=durability)
    saver.prune(["t"])
    state = built.get_state(config())
    assert state.values["log"] == ["in", "one"]
    assert [found.value for found in state.interrupts] == ["?"]
    built.invoke(Command(resume="yes"), config(), durability=durability)
    assert built.get_state(config()).values["log"] == ["in", "one", "yes"]


def test_prune_in_a_thread_with_subgraphs_keeps_each_namespace(saver: ResilientSaver) -> None:
    class State(TypedDict, total=False):
        log: Annotated[list, DeltaChannel(extend, snapshot_frequency=1000)]

    inner = StateGraph(State)
    inner.add_node("first", lambda state: {"log": ["inner"]})
    inner.add_node("ask", lambda state: {"log": [interrupt("?")]})
    inner.add_edge(START, "first")
    inner.add_edge("first", "ask")
    inner.add_edge("ask", END)
    outer = StateGraph(State)
    outer.add_node("sub", inner.compile())
    outer.add_edge(START, "sub")
    outer.add_edge("sub", END)
    built = outer.compile(checkpointer=saver)
    built.invoke({"log": ["in"]}, config())
    saver.prune(["t"])
    built.invoke(Command(resume="yes"), config())
    log = built.get_state(config()).values["log"]
    assert log[-2:] == ["inner", "yes"]
    assert log[0] == "in"


def test_a_plain_channel_that_became_a_delta_channel(saver: ResilientSaver) -> None:
    thread = Thread(saver)
    thread.put({"log": ["old"], "n": 0})
    built = graph(saver)
    run(built, 1)
    assert built.get_state(config()).values["log"] == ["old", *expected_log(1)]
    saver.prune(["t"])
    assert built.get_state(config()).values["log"] == ["old", *expected_log(1)]


def test_a_long_chain_is_read_whole(file_saver: ResilientSaver) -> None:
    class State(TypedDict, total=False):
        n: int
        log: Annotated[list, DeltaChannel(extend, snapshot_frequency=10_000)]

    builder = StateGraph(State)
    builder.add_node("tick", lambda state: {"n": state["n"] + 1, "log": [state["n"]]})
    builder.add_edge(START, "tick")
    builder.add_conditional_edges("tick", lambda state: "tick" if state["n"] < 300 else END)
    built = builder.compile(checkpointer=file_saver)
    built.invoke({"n": 0, "log": []}, {**config(), "recursion_limit": 1000})
    assert built.get_state(config()).values["log"] == list(range(300))
    file_saver.prune(["t"])
    assert built.get_state(config()).values["log"] == list(range(300))
    assert len(ids(file_saver.list(config()))) == 1
