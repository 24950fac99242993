"""put, put_writes and deletion: replacement, order, atomicity and late arrivals."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from building import Thread, checkpoint, checkpoint_id_of, config, facts, ids, observe
from conftest import SaverFactory
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import writes_sort_key
from langgraph.types import Interrupt, Send

from langgraph_resilient import ResilientSaver
from langgraph_resilient.errors import ValueRefused


def written(saver: ResilientSaver, where: dict) -> list[tuple]:
    return [tuple(write) for write in saver.get_tuple(where).pending_writes]


# --- writes ---------------------------------------------------------------------------------


def test_writes_of_parallel_tasks_come_in_writes_sort_key_order(saver: ResilientSaver) -> None:
    where = Thread(saver).put({"x": 1})
    tasks = [("~2", "task-a"), ("~10", "task-c"), ("", "task-z"), ("~2", "task-b"), ("~1", "t")]
    expected = []
    for path, task in tasks:
        saver.put_writes(where, [("x", f"{task}{n}") for n in range(12)], task, path)
        expected += [(writes_sort_key(path, task, n), (task, "x", f"{task}{n}")) for n in range(12)]
    assert written(saver, where) == [write for _, write in sorted(expected)]
    assert written(saver, where) == [tuple(w) for w in next(saver.list(config())).pending_writes]


def test_repeated_put_writes_changes_nothing(saver: ResilientSaver) -> None:
    where = Thread(saver).put({"x": 1})
    for _ in range(3):
        saver.put_writes(where, [("x", 1), ("y", [2])], "task", "path")
    assert written(saver, where) == [("task", "x", 1), ("task", "y", [2])]


def test_the_first_value_of_an_ordinary_write_stays(saver: ResilientSaver) -> None:
    where = Thread(saver).put({"x": 1})
    saver.put_writes(where, [("x", "first")], "task")
    saver.put_writes(where, [("x", "second"), ("y", "new")], "task")
    assert written(saver, where) == [("task", "x", "first"), ("task", "y", "new")]


@pytest.mark.parametrize("special", ["__error__", "__interrupt__", "__resume__", "__scheduled__"])
def test_a_special_channel_holds_the_newest_value(saver: ResilientSaver, special: str) -> None:
    where = Thread(saver).put({"x": 1})
    saver.put_writes(where, [(special, "old"), ("x", 1)], "task")
    saver.put_writes(where, [(special, "new"), ("x", 2)], "task")
    saver.put_writes(where, [(special, "newest")], "task")
    assert {c: v for _, c, v in written(saver, where)} == {special: "newest", "x": 1}


def test_special_writes_come_before_the_tasks_others(saver: ResilientSaver) -> None:
    where = Thread(saver).put({"x": 1})
    saver.put_writes(where, [("x", 1)], "task")
    saver.put_writes(where, [("__interrupt__", (Interrupt("ask", id="i"),))], "task")
    assert [channel for _, channel, _ in written(saver, where)] == ["__interrupt__", "x"]


def test_two_special_writes_in_one_call_both_stay(saver: ResilientSaver) -> None:
    where = Thread(saver).put({"x": 1})
    saver.put_writes(where, [("__error__", "e"), ("__resume__", ["r"])], "task")
    assert {c: v for _, c, v in written(saver, where)} == {
        "__error__": "e",
        "__resume__": ["r"],
    }


def test_sends_keep_their_arguments(saver: ResilientSaver) -> None:
    where = Thread(saver).put({"x": 1})
    send = Send("node", {"deep": [1, {"k": [2, 3]}]})
    saver.put_writes(where, [("__pregel_tasks", send)], "task")
    assert written(saver, where) == [("task", "__pregel_tasks", send)]


def test_writes_may_arrive_before_their_checkpoint(saver: ResilientSaver) -> None:
    thread = Thread(saver)
    thread.put({"x": 1})
    saver.put_writes(config("t", "early"), [("x", 2)], "task")
    assert "early" not in ids(saver.list(config()))
    where = thread.put({"x": 3}, id="early")
    assert written(saver, where) == [("task", "x", 2)]


def test_writes_may_arrive_before_the_threads_first_checkpoint(saver: ResilientSaver) -> None:
    saver.put_writes(config("t", "early"), [("x", 2)], "task")
    assert list(saver.list(config())) == []
    where = Thread(saver).put({"x": 3}, id="early")
    assert written(saver, where) == [("task", "x", 2)]


def test_writes_belong_to_one_namespace(saver: ResilientSaver) -> None:
    root = Thread(saver).put({"x": 1}, id="same")
    child = Thread(saver, ns="child").put({"x": 1}, id="same")
    saver.put_writes(root, [("x", "root")], "task")
    saver.put_writes(child, [("x", "child")], "task")
    assert written(saver, root) == [("task", "x", "root")]
    assert written(saver, child) == [("task", "x", "child")]


def test_no_writes_are_no_writes(saver: ResilientSaver) -> None:
    where = Thread(saver).put({"x": 1})
    saver.put_writes(where, [], "task")
    assert written(saver, where) == []


# --- put ------------------------------------------------------------------------------------


def test_put_again_replaces_the_checkpoint(saver: ResilientSaver) -> None:
    thread = Thread(saver)
    first = thread.put({"x": 1})
    saver.put(config(), checkpoint({"x": 2}, id=checkpoint_id_of(first)), {"k": 1}, {"x": 1})
    found = list(saver.list(config()))
    assert len(found) == 1
    assert found[0].checkpoint["channel_values"] == {"x": 2}
    assert found[0].metadata["k"] == 1


def test_put_with_the_same_id_in_two_threads(saver: ResilientSaver) -> None:
    Thread(saver, "a").put({"x": "a"}, id="same")
    Thread(saver, "b").put({"x": "b"}, id="same")
    assert saver.get(config("a"))["channel_values"] == {"x": "a"}
    assert saver.get(config("b"))["channel_values"] == {"x": "b"}


def test_an_envelope_comes_back_whole(saver: ResilientSaver) -> None:
    body = {
        "v": 4,
        "id": "one",
        "ts": "2024-07-31T20:14:19.804150+00:00",
        "channel_values": {"a": 1, "__start__": {"x": [1]}, "empty": None},
        "channel_versions": {"a": 3, "b": "00000000000000000002.0.123", "c": 1.5, "empty": 1},
        "versions_seen": {"__input__": {}, "node": {"a": 2}, "ünï": {"b": "x"}},
        "updated_channels": ["a", "b"],
        "something_new": {"k": [1]},
    }
    where = saver.put(
        config(), body, {"source": "input", "step": -1, "parents": {"": "p"}}, {"a": 3}
    )
    assert saver.get_tuple(where).checkpoint == body


def test_values_without_new_versions_are_stored_too(saver: ResilientSaver) -> None:
    body = checkpoint({"x": 1, "y": [2]})
    where = saver.put(config(), body, {}, {})
    assert saver.get_tuple(where).checkpoint["channel_values"] == {"x": 1, "y": [2]}


def test_a_branch_has_its_own_values(saver: ResilientSaver) -> None:
    thread = Thread(saver)
    root = thread.put({"x": "root", "shared": "s" * 3000})
    left = thread.put({"x": "left"})
    right = saver.put(
        root,
        checkpoint({"x": "right", "shared": "s" * 3000}, versions={"x": 2, "shared": 1}),
        {},
        {"x": 2},
    )
    assert saver.get_tuple(left).checkpoint["channel_values"]["x"] == "left"
    assert saver.get_tuple(right).checkpoint["channel_values"]["x"] == "right"
    assert saver.get_tuple(left).parent_config == saver.get_tuple(right).parent_config == root


class Unstorable:
    """No model, no dataclass, no state: nothing can rebuild it."""

    __slots__ = ()


@pytest.mark.parametrize(
    "value", [Unstorable(), lambda: 1, (x for x in ())], ids=["instance", "lambda", "generator"]
)
def test_a_refused_value_is_named_and_nothing_is_stored(
    file_saver: ResilientSaver, value: Any
) -> None:
    thread = Thread(file_saver)
    where = thread.put({"good": 1})
    before = observe(file_saver, ["t"])
    with pytest.raises(ValueRefused) as refused:
        thread.put({"good": 2, "rows": [{"owner": (0, value)}]})
    assert refused.value.channel == "rows"
    assert "owner" in refused.value.path
    assert refused.value.type_name.endswith(type(value).__qualname__)
    for part in ("rows", "owner", type(value).__name__):
        assert part in str(refused.value)
    with pytest.raises(ValueRefused) as refused:
        file_saver.put_writes(where, [("good", 3), ("rows", {"owner": value})], "task")
    assert refused.value.channel == "rows"
    assert observe(file_saver, ["t"]) == before


def test_what_came_with_a_refused_value_can_be_stored_afterwards(saver: ResilientSaver) -> None:
    """A refusal must not leave a memory of values that were never stored."""
    thread = Thread(saver)
    where = thread.put({"x": 1})
    good = {"m": [HumanMessage("new " * 300, id="1")], "d": {"text": "long " * 900}}
    with pytest.raises(TypeError):
        saver.put(*Thread(saver).prepare({**good, "bad": lambda: 1}, None, None))
    written = [("m", [HumanMessage("other " * 300, id="2")]), ("bad", lambda: 1)]
    with pytest.raises(TypeError):
        saver.put_writes(where, written, "task")
    where = thread.put({**good, "w": written[0][1]})
    assert saver.get_tuple(where).checkpoint["channel_values"] == {
        **good,
        "x": 1,
        "w": written[0][1],
    }


# --- deletion and late arrivals -------------------------------------------------------------


def test_delete_thread_leaves_no_row_of_it(file_factory: SaverFactory) -> None:
    with file_factory() as saver:
        for name in ("gone", "stays"):
            for ns in ("", "child:1"):
                where = Thread(saver, name, ns=ns).put({"x": [name, ns]})
                saver.put_writes(where, [("x", name + "-written")], "task")
        saver.delete_thread("gone")
        assert observe(saver, ["gone"]) == {}
        assert len(observe(saver, ["stays"])["stays"]) == 2
        with saver.cursor() as cursor:
            tables = cursor.execute("SELECT name FROM sqlite_master WHERE type='table'").fetchall()
            for (table,) in tables:
                columns = [row[1] for row in cursor.execute(f"PRAGMA table_info('{table}')")]
                if "thread_id" in columns:
                    rows = cursor.execute(f"SELECT * FROM '{table}'").fetchall()
                    assert not [row for row in rows if "gone" in row], table


def test_a_late_put_does_not_bring_a_deleted_thread_back(saver: ResilientSaver) -> None:
    thread = Thread(saver)
    thread.put({"x": 1})
    thread.put({"x": 2})
    saver.delete_thread("t")
    thread.put({"x": 3})
    assert observe(saver, ["t"]) == {}


def test_late_writes_do_not_bring_a_deleted_thread_back(saver: ResilientSaver) -> None:
    thread = Thread(saver)
    where = thread.put({"x": 1})
    saver.delete_thread("t")
    saver.put_writes(where, [("x", 2)], "task")
    assert observe(saver, ["t"]) == {}
    assert list(saver.list(None)) == []


def test_late_arrivals_stay_out_after_a_reopen(saver_factory: SaverFactory) -> None:
    if not saver_factory.persistent:
        pytest.skip("an in-memory database ends with its saver")
    with saver_factory() as saver:
        thread = Thread(saver)
        thread.put({"x": 1})
        saver.delete_thread("t")
    with saver_factory() as saver:
        thread.saver = saver
        where = thread.put({"x": 2})
        saver.put_writes(where, [("x", 3)], "task")
        assert observe(saver, ["t"]) == {}


def test_a_whole_late_run_stays_out(saver: ResilientSaver) -> None:
    thread = Thread(saver)
    thread.put({"x": 1})
    saver.delete_thread("t")
    for n in range(3):
        where = thread.put({"x": n})
        saver.put_writes(where, [("x", n)], f"task{n}")
    assert observe(saver, ["t"]) == {}


def test_a_fresh_run_on_a_deleted_thread_works(saver: ResilientSaver) -> None:
    late = Thread(saver)
    gone = late.put({"x": "old"})
    saver.delete_thread("t")
    fresh = Thread(saver)
    where = fresh.put({"x": "new"})
    saver.put_writes(gone, [("x", "late")], "late-task")
    late.put({"x": "late"})
    saver.put_writes(where, [("x", "w")], "task")
    seen = observe(saver, ["t"])["t"]
    assert [item["values"] for item in seen] == [{"x": "new"}]
    assert seen[0]["writes"] == [("task", "x", "w")]
    fresh.put({"x": "newer"})
    assert [item["values"]["x"] for item in observe(saver, ["t"])["t"]] == ["newer", "new"]


def test_a_copy_may_take_a_deleted_threads_name(saver: ResilientSaver) -> None:
    Thread(saver, "a").put({"x": 1})
    Thread(saver, "b").put({"x": 2})
    saver.delete_thread("b")
    saver.copy_thread("a", "b")
    assert saver.get(config("b"))["channel_values"] == {"x": 1}


def test_delete_for_runs_takes_only_those_runs(saver: ResilientSaver) -> None:
    thread = Thread(saver)
    for n in range(6):
        where = thread.put({"x": n}, metadata={"run_id": f"r{n % 3}"})
        saver.put_writes(where, [("x", n)], "task")
    other = Thread(saver, "other").put({"x": 1}, metadata={"run_id": "r1"})
    saver.delete_for_runs(["r1", "r2"])
    assert [item["values"]["x"] for item in observe(saver, ["t"])["t"]] == [3, 0]
    assert saver.get_tuple(other) is None
    saver.delete_for_runs([])
    saver.delete_for_runs(["no-such-run"])
    assert len(observe(saver, ["t"])["t"]) == 2


def test_delete_for_runs_with_many_ids(saver: ResilientSaver) -> None:
    Thread(saver).put({"x": 1}, metadata={"run_id": "r4999"})
    saver.delete_for_runs([f"r{n}" for n in range(5000)])
    assert saver.get_tuple(config()) is None


def test_prune_with_many_threads(saver: ResilientSaver) -> None:
    thread = Thread(saver)
    thread.put({"x": 1})
    thread.put({"x": 2})
    saver.prune([f"t{n}" for n in range(5000)] + ["t"])
    assert [item["values"]["x"] for item in observe(saver, ["t"])["t"]] == [2]


def test_prune_keeps_the_newest_of_each_namespace_whole(saver: ResilientSaver) -> None:
    kept = {}
    for ns in ("", "child:1"):
        thread = Thread(saver, ns=ns)
        for n in range(5):
            where = thread.put({"x": [ns, n], "same": "s" * 2000})
            saver.put_writes(where, [("x", n)], "task")
        kept[ns] = facts(saver.get_tuple(where))
    saver.prune(["t"], strategy="keep_latest")
    seen = observe(saver, ["t"])["t"]
    for item in (*seen, *kept.values()):
        del item["parent"]
    assert seen == [kept[""], kept["child:1"]]


def test_prune_takes_the_threads_named_and_no_other(saver: ResilientSaver) -> None:
    for name in ("a", "b", "c"):
        thread = Thread(saver, name)
        thread.put({"x": 1})
        thread.put({"x": 2})
    saver.prune(["a"])
    saver.prune(["b"], strategy="delete")
    seen = observe(saver, ["a", "b", "c"])
    assert {name: len(items) for name, items in seen.items()} == {"a": 1, "c": 2}


def test_prune_with_an_unknown_strategy_is_refused(saver: ResilientSaver) -> None:
    thread = Thread(saver)
    thread.put({"x": 1})
    thread.put({"x": 2})
    with pytest.raises(ValueError, match="keep_newest"):
        saver.prune(["t"], strategy="keep_newest")
    assert len(observe(saver, ["t"])["t"]) == 2


def test_a_pruned_thread_goes_on(saver: ResilientSaver) -> None:
    thread = Thread(saver)
    for n in range(4):
        thread.put({"x": n, "same": "s" * 2000})
    saver.prune(["t"])
    where = thread.put({"x": 4})
    saver.put_writes(where, [("x", 5)], "task")
    assert [item["values"]["x"] for item in observe(saver, ["t"])["t"]] == [4, 3]


def test_copy_thread_copies_everything(saver: ResilientSaver) -> None:
    for ns in ("", "child:1"):
        thread = Thread(saver, "a", ns=ns)
        for n in range(4):
            where = thread.put({"x": [ns, n]}, metadata={"run_id": f"r{n}"})
            saver.put_writes(where, [("x", n)], "task", "path")
    saver.copy_thread("a", "b")
    seen = observe(saver, ["a", "b"])
    assert [{**item, "thread": "a"} for item in seen["b"]] == seen["a"]
    saver.delete_thread("a")
    assert observe(saver, ["b"])["b"] == seen["b"]


def test_a_copy_and_its_source_go_separate_ways(saver: ResilientSaver) -> None:
    source = Thread(saver, "a")
    source.put({"x": 1})
    saver.copy_thread("a", "b")
    source.put({"x": 2})
    assert saver.get(config("b"))["channel_values"] == {"x": 1}
    saver.prune(["a"])
    saver.delete_for_runs(["none"])
    assert saver.get(config("b"))["channel_values"] == {"x": 1}


def test_copying_a_missing_thread_changes_nothing(saver: ResilientSaver) -> None:
    Thread(saver, "b").put({"x": 1})
    saver.copy_thread("missing", "c")
    assert set(observe(saver, ["b", "c", "missing"])) == {"b"}


def test_copying_a_thread_onto_itself_loses_nothing(saver: ResilientSaver) -> None:
    Thread(saver, "a").put({"x": 1})
    before = observe(saver, ["a"])
    with contextlib.suppress(ValueError):
        saver.copy_thread("a", "a")
    assert observe(saver, ["a"]) == before


def test_deleting_one_thread_leaves_shared_values_to_the_others(saver: ResilientSaver) -> None:
    shared = {"text": "shared " * 2000, "bytes": b"\x01" * 9000}
    for name in ("a", "b", "c"):
        Thread(saver, name).put({"x": shared})
    saver.delete_thread("a")
    saver.prune(["b"], strategy="delete")
    Thread(saver, "d").put({"x": shared})
    assert saver.get(config("c"))["channel_values"] == {"x": shared}
    assert saver.get(config("d"))["channel_values"] == {"x": shared}


def test_old_and_new_values_together_after_a_deletion(saver: ResilientSaver) -> None:
    """What a deletion made the saver forget is found again, beside values that are new."""
    old, new = HumanMessage("old " * 300, id="1"), HumanMessage("new " * 300, id="2")
    Thread(saver, "gone").put({"x": 1})
    thread = Thread(saver)
    thread.put({"m": [old]})
    saver.delete_thread("gone")
    where = thread.put({"m": [new, old]})
    assert saver.get_tuple(where).checkpoint["channel_values"]["m"] == [new, old]
    for n in range(5):
        thread.put({"m": [HumanMessage(f"later {n} " * 200, id=str(n))]})
    assert saver.get_tuple(where).checkpoint["channel_values"]["m"] == [new, old]


def test_a_thread_lives_on_after_changes_that_did_nothing(saver: ResilientSaver) -> None:
    """Copying nothing, or a write that came too late, must not count as having made the thread."""
    saver.copy_thread("missing", "t")
    thread = Thread(saver)
    thread.put({"x": 1})
    assert saver.get(config())["channel_values"] == {"x": 1}
    late = Thread(saver, "t", ns="child")
    late.put({"x": 1})
    saver.delete_thread("t")
    late.put({"x": 2})
    Thread(saver, "t", ns="child").put({"x": 3})
    assert saver.get(config(ns="child"))["channel_values"] == {"x": 3}
