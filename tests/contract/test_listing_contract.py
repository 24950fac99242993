"""list(): order, paging, filters, and that it holds nothing while the caller works."""

from __future__ import annotations

import datetime
import gc
import json
import math
import threading
import uuid
from typing import Any

import pytest
from building import Thread, checkpoint, checkpoint_id_of, config, facts, ids
from conftest import SaverFactory
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base.id import uuid6

from langgraph_resilient import ResilientSaver


def fill(saver: ResilientSaver, count: int = 5, thread_id: str = "t", **metadata: Any) -> list[str]:
    """Put ``count`` checkpoints; the ids, oldest first."""
    thread = Thread(saver, thread_id)
    return [checkpoint_id_of(thread.put({"x": n}, metadata=metadata)) for n in range(count)]


# --- order and paging -----------------------------------------------------------------------


def test_newest_first(saver: ResilientSaver) -> None:
    stored = fill(saver)
    assert ids(saver.list(config())) == stored[::-1]


def test_what_was_written_last_comes_first_whatever_its_id(saver: ResilientSaver) -> None:
    thread = Thread(saver)
    order = ["1f500000-0000-6000-8000-000000000005", "1f500000-0000-6000-8000-000000000001"]
    order += ["1f500000-0000-6000-8000-000000000003"]
    for n, name in enumerate(order):
        thread.put({"x": n}, id=name)
    assert ids(saver.list(config())) == order[::-1]
    assert ids([saver.get_tuple(config())]) == [order[-1]]
    assert ids(saver.list(config(), before=config("t", order[2]))) == [order[1], order[0]]
    assert ids(saver.list(config(), before=config("t", order[1]), limit=1)) == [order[0]]


def test_order_survives_copy_and_reopen(saver_factory: SaverFactory) -> None:
    with saver_factory() as saver:
        thread = Thread(saver)
        for name in ("b", "c", "a"):
            thread.put({"x": name}, id=name)
        saver.copy_thread("t", "u")
        assert ids(saver.list(config("u"))) == ["a", "c", "b"]
    if saver_factory.persistent:
        with saver_factory() as saver:
            assert ids(saver.list(config("t"))) == ids(saver.list(config("u"))) == ["a", "c", "b"]


@pytest.mark.parametrize("limit", [0, 1, 3, 5, 6])
def test_limit(saver: ResilientSaver, limit: int) -> None:
    stored = fill(saver)
    assert ids(saver.list(config(), limit=limit)) == stored[::-1][:limit]
    assert len(list(saver.list(None, limit=limit))) == min(limit, 5)


def test_pages_give_each_checkpoint_once(saver: ResilientSaver) -> None:
    stored = fill(saver, 11)
    paged: list[str] = []
    before = None
    while page := list(saver.list(config(), before=before, limit=3)):
        paged += ids(page)
        before = page[-1].config
    assert paged == stored[::-1]


def test_pages_over_several_namespaces_give_each_checkpoint_once(saver: ResilientSaver) -> None:
    for ns in ("", "child:1", "child:2"):
        thread = Thread(saver, ns=ns)
        for n in range(4):
            thread.put({"x": n})
    everything = {"configurable": {"thread_id": "t"}}
    whole = [facts(item) for item in saver.list(everything)]
    paged: list[dict] = []
    before = None
    while page := list(saver.list(everything, before=before, limit=5)):
        paged += [facts(item) for item in page]
        before = page[-1].config
    assert len(whole) == 12
    assert paged == whole


def test_before_an_unknown_id_means_smaller_ids(saver: ResilientSaver) -> None:
    stored = fill(saver, 2)
    between = str(uuid6())
    stored += fill(saver, 2)
    found = ids(saver.list(config(), before=config("t", between)))
    assert found == stored[1::-1]


def test_before_without_an_id_is_no_bound(saver: ResilientSaver) -> None:
    stored = fill(saver, 3)
    assert ids(saver.list(config(), before=config("t"))) == stored[::-1]


def test_a_config_with_an_id_lists_that_one(saver: ResilientSaver) -> None:
    stored = fill(saver)
    assert ids(saver.list(config("t", stored[2]))) == [stored[2]]
    assert ids(saver.list(config("t", "no-such-id"))) == []


def test_no_config_lists_all_threads(saver: ResilientSaver) -> None:
    stored = {name: fill(saver, 3, name) for name in ("a", "b")}
    found = list(saver.list(None))
    for name, want in stored.items():
        assert ids(i for i in found if i.config["configurable"]["thread_id"] == name) == want[::-1]
    assert len(found) == 6
    assert list(saver.list(None, limit=0)) == []


def test_no_config_lists_the_latest_written_first(saver: ResilientSaver) -> None:
    a, b = Thread(saver, "a"), Thread(saver, "b")
    order = [checkpoint_id_of(thread.put({"x": 1})) for thread in (a, b, b, a)]
    assert ids(saver.list(None)) == order[::-1]


def test_a_namespace_left_out_means_all_of_them(saver: ResilientSaver) -> None:
    Thread(saver, ns="").put({"x": 1})
    Thread(saver, ns="child").put({"x": 2})
    assert len(list(saver.list({"configurable": {"thread_id": "t"}}))) == 2
    assert len(list(saver.list(config()))) == 1


# --- what is handed out ---------------------------------------------------------------------


def test_a_listed_tuple_equals_the_one_that_get_tuple_gives(saver: ResilientSaver) -> None:
    thread = Thread(saver)
    for n in range(3):
        where = thread.put({"m": [HumanMessage(f"{k}", id=f"{k}") for k in range(n + 1)]})
        saver.put_writes(where, [("m", AIMessage("w", id="w"))], f"task{n}", "path")
    for item in saver.list(config()):
        assert facts(item) == facts(saver.get_tuple(item.config))


def test_results_are_independent_objects(saver: ResilientSaver) -> None:
    thread = Thread(saver)
    value = {"m": [HumanMessage("one", id="1")], "deep": {"a": [1, {"b": [2]}]}}
    where = thread.put(value, metadata={"tags": ["x"]})
    thread.put({"other": 1})
    saver.put_writes(where, [("deep", {"c": [3]})], "task")
    before = facts(saver.get_tuple(where))
    newer, older = list(saver.list(config()))
    for found in (newer, older, saver.get_tuple(where)):
        found.checkpoint["channel_values"]["m"][0].content = "changed"
        found.checkpoint["channel_values"]["m"].append("more")
        found.checkpoint["channel_values"]["deep"]["a"][1]["b"].append(9)
        found.checkpoint["channel_versions"]["m"] = 77
        found.checkpoint["versions_seen"].clear()
        found.metadata["tags"] = [*found.metadata.get("tags", []), "y"]
        for write in found.pending_writes:
            write[2]["c"].append(8)
    assert facts(saver.get_tuple(where)) == before
    assert facts(list(saver.list(config()))[1]) == before


def test_two_tuples_of_one_list_share_nothing_mutable(saver: ResilientSaver) -> None:
    thread = Thread(saver)
    thread.put({"m": [HumanMessage("one", id="1")], "d": {"k": [1]}})
    thread.put({"other": 1})
    newer, older = list(saver.list(config()))
    newer.checkpoint["channel_values"]["m"][0].content = "changed"
    newer.checkpoint["channel_values"]["d"]["k"].append(2)
    assert older.checkpoint["channel_values"]["m"][0].content == "one"
    assert older.checkpoint["channel_values"]["d"] == {"k": [1]}


def test_two_places_of_one_state_share_nothing_mutable(saver: ResilientSaver) -> None:
    message = HumanMessage("same", id="1")
    big = {"text": "x" * 5000, "list": [1]}
    Thread(saver).put({"m": [message, message], "n": [message], "big": [big, big]})
    values = saver.get(config())["channel_values"]
    values["m"][0].content = "changed"
    values["big"][0]["list"].append(2)
    assert values["m"][1].content == values["n"][0].content == "same"
    assert values["big"][1] == big


def test_what_is_stored_does_not_follow_the_callers_object(saver: ResilientSaver) -> None:
    message, items = HumanMessage("one", id="1"), [1]
    thread = Thread(saver)
    where = thread.put({"m": [message], "l": items})
    saver.put_writes(where, [("l", items)], "task")
    message.content = "changed"
    items.append(2)
    found = saver.get_tuple(where)
    assert found.checkpoint["channel_values"] == {"m": [HumanMessage("one", id="1")], "l": [1]}
    assert found.pending_writes == [("task", "l", [1])]


def test_a_message_changed_in_place_is_stored_anew(saver: ResilientSaver) -> None:
    thread = Thread(saver)
    messages = [HumanMessage(f"message {n}", id=str(n)) for n in range(20)]
    first = thread.put({"m": messages})
    messages[3].content = "edited"
    messages[5].additional_kwargs["note"] = "added"
    second = thread.put({"m": messages})
    messages[7].response_metadata["x"] = [1]
    third = thread.put({"m": messages})
    messages[7].response_metadata["x"].append(2)
    fourth = thread.put({"m": messages})
    stored = [saver.get_tuple(w).checkpoint["channel_values"]["m"] for w in (first, second, third)]
    assert stored[0][3].content == "message 3"
    assert stored[0][5].additional_kwargs == {}
    assert stored[1][3].content == "edited"
    assert stored[1][5].additional_kwargs == {"note": "added"}
    assert stored[2][7].response_metadata == {"x": [1]}
    assert saver.get_tuple(fourth).checkpoint["channel_values"]["m"] == messages


# --- nothing is held while the caller works -------------------------------------------------


def test_any_method_may_be_called_inside_the_loop(saver: ResilientSaver) -> None:
    for name in ("a", "b", "c"):
        fill(saver, 3, name)
    for item in saver.list(None):
        name = item.config["configurable"]["thread_id"]
        saver.put_writes(item.config, [("x", 1)], "task")
        Thread(saver, "new-" + name).put({"x": 1})
        saver.get_tuple(item.config)
        if name == "b":
            saver.delete_thread("b")
    assert saver.get_tuple(config("b")) is None
    assert len(list(saver.list(config("new-a")))) >= 1


def test_a_checkpoint_deleted_under_a_reader_is_left_out_or_whole(saver: ResilientSaver) -> None:
    stored = fill(saver, 30)
    seen = []
    for item in saver.list(config()):
        seen.append(item)
        saver.prune(["t"], strategy="keep_latest")
    assert ids(seen)[0] == stored[-1]
    assert [i.checkpoint["channel_values"]["x"] for i in seen] == [29 - k for k in range(len(seen))]


@pytest.mark.parametrize("end", ["drop", "keep", "close"])
def test_an_abandoned_iterator_blocks_nobody(saver: ResilientSaver, end: str) -> None:
    fill(saver, 30)
    iterator = saver.list(config())
    next(iterator)
    if end == "drop":
        del iterator
        gc.collect()
    elif end == "close":
        iterator.close()
    done = threading.Event()

    def write() -> None:
        Thread(saver, "other").put({"x": 1})
        saver.delete_thread("t")
        done.set()

    worker = threading.Thread(target=write, daemon=True)
    worker.start()
    assert done.wait(20), "a write waited for an iterator that nobody reads"
    assert saver.get_tuple(config("t")) is None


def test_an_abandoned_async_iterator_blocks_nobody(saver: ResilientSaver) -> None:
    import asyncio

    fill(saver, 30)

    async def main() -> None:
        iterator = saver.alist(config())
        await iterator.__anext__()
        await asyncio.wait_for(Thread(saver, "other").aput({"x": 1}), 20)
        await iterator.aclose()

    asyncio.run(main())
    assert saver.get(config("other"))["channel_values"] == {"x": 1}


def test_list_is_lazy_and_may_be_called_on_nothing(saver: ResilientSaver) -> None:
    assert next(iter(saver.list(config())), None) is None
    iterator = saver.list(config("later"))
    fill(saver, 2, "later")
    assert len(list(iterator)) == 2


# --- metadata and filters -------------------------------------------------------------------

AWKWARD: dict[str, Any] = {
    "a.b": 1,
    "with space": "x",
    "co:lon": "x",
    'quo"te': "x",
    "it's": "x",
    "$": "x",
    "$.a[0]": "x",
    "ключ": "значение",
    "": "empty key",
    "x') OR 1=1 --": "x",
    "list": [1, "two", None],
    "nested": {"a": {"b": [1, {"c": "ü"}]}},
    "true": True,
    "float": 0.5,
    "big": 2**70,
    "null": None,
    "lone": "\ud800",
    "tuple": (1, 2),
    "when": datetime.datetime(2024, 1, 2, tzinfo=datetime.timezone.utc),
    "uuid": uuid.UUID(int=3),
    "bytes": b"\x00\xff",
    "message": HumanMessage("hi", id="1"),
}


@pytest.mark.parametrize("key", AWKWARD, ids=repr)
def test_any_metadata_comes_back_and_can_be_filtered_by(saver: ResilientSaver, key: str) -> None:
    plain = Thread(saver, "plain").put({"x": 1})
    where = Thread(saver, "odd").put({"x": 1}, metadata={key: AWKWARD[key]})
    found = saver.get_tuple(where).metadata[key]
    assert found == AWKWARD[key]
    assert type(found) is type(AWKWARD[key])
    matches = ids(saver.list(None, filter={key: AWKWARD[key]}))
    assert checkpoint_id_of(where) in matches
    if AWKWARD[key] is not None:
        assert checkpoint_id_of(plain) not in matches
    assert ids(saver.list(None, filter={key: "something else"})) == []


def test_a_filter_with_all_awkward_keys_at_once(saver: ResilientSaver) -> None:
    where = Thread(saver).put({"x": 1}, metadata=AWKWARD)
    Thread(saver).put({"x": 2}, metadata={"a.b": 1})
    assert ids(saver.list(None, filter=AWKWARD)) == [checkpoint_id_of(where)]


def test_nested_objects_match_whatever_the_key_order(saver: ResilientSaver) -> None:
    where = Thread(saver).put({"x": 1}, metadata={"user": {"id": 1, "name": "José", "t": [1, 2]}})
    same = {"user": {"t": [1, 2], "name": "José", "id": 1}}
    assert ids(saver.list(None, filter=same)) == [checkpoint_id_of(where)]
    for other in ({"id": 1}, {"id": 2, "name": "José", "t": [1, 2]}, {}, None, "José", [1, 2]):
        assert ids(saver.list(None, filter={"user": other})) == []


def test_equal_text_and_numbers_are_told_apart(saver: ResilientSaver) -> None:
    fill(saver, 1, number=1)
    fill(saver, 1, number="1")
    assert len(list(saver.list(None, filter={"number": 1}))) == 1
    assert len(list(saver.list(None, filter={"number": "1"}))) == 1


def test_nan_in_one_threads_metadata_breaks_no_filter(saver: ResilientSaver) -> None:
    where = Thread(saver, "nan").put({"x": 1}, metadata={"score": math.nan, "inf": math.inf})
    stored = fill(saver, 3, "t", score=0.5)
    assert ids(saver.list(None, filter={"score": 0.5})) == stored[::-1]
    assert len(list(saver.list(None, filter={"source": "loop"}))) == 4
    assert ids(saver.list(None, filter={"inf": math.inf})) == [checkpoint_id_of(where)]
    assert math.isnan(saver.get_tuple(where).metadata["score"])


def test_filters_combine_with_before_and_limit(saver: ResilientSaver) -> None:
    thread = Thread(saver)
    stored = [checkpoint_id_of(thread.put({"x": n}, metadata={"k": n % 2})) for n in range(10)]
    assert ids(saver.list(config(), filter={"k": 0}, limit=2)) == [stored[8], stored[6]]
    before = config("t", stored[6])
    assert ids(saver.list(config(), filter={"k": 0}, before=before)) == stored[4::-2]
    assert ids(saver.list(config(), filter={"k": 0, "step": 3})) == [stored[4]]


def test_an_empty_filter_is_no_filter(saver: ResilientSaver) -> None:
    assert len(fill(saver, 3)) == len(list(saver.list(config(), filter={})))


def test_run_metadata_of_the_config_is_kept(saver: ResilientSaver) -> None:
    where = config()
    where["metadata"] = {"tenant": "acme", "tags2": ["a"], "flags": {"beta": True}, "no": None}
    where["configurable"]["user_id"] = "u1"
    where = saver.put(where, checkpoint({"x": 1}), {"source": "loop", "step": 0}, {"x": 1})
    metadata = saver.get_tuple(where).metadata
    kept = {key: metadata[key] for key in ("tenant", "tags2", "flags", "no", "user_id")}
    want = {"tenant": "acme", "tags2": ["a"], "flags": {"beta": True}, "no": None, "user_id": "u1"}
    assert kept == want
    assert "thread_id" not in metadata
    json.dumps(kept)
