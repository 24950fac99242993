"""Many threads and many processes at once on one saver, one file."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

from building import Thread, config, fork, ids, wait
from conftest import KEY, SaverFactory
from langchain_core.messages import HumanMessage

from langgraph_resilient import ResilientSaver
from langgraph_resilient.maintenance import verify


def in_threads(count: int, work: Any) -> None:
    """Run ``work(k)`` in ``count`` threads at once; the first error is raised here."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def body(k: int) -> None:
        try:
            start.wait(30)
            work(k)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(k,), daemon=True) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def test_each_thread_finds_its_own_state(saver: ResilientSaver) -> None:
    def work(k: int) -> None:
        thread = Thread(saver, f"t{k}")
        for n in range(8):
            where = thread.put({"x": [k, n], "m": [HumanMessage(f"{k}.{n}", id=f"{n}")]})
            saver.put_writes(where, [("x", n)], f"task{k}")
            found = saver.get_tuple(config(f"t{k}"))
            assert found.checkpoint["channel_values"]["x"] == [k, n]
            assert found.pending_writes == [(f"task{k}", "x", n)]

    in_threads(12, work)
    for k in range(12):
        found = list(saver.list(config(f"t{k}")))
        assert [item.checkpoint["channel_values"]["x"] for item in found] == [
            [k, n] for n in range(7, -1, -1)
        ]


def test_parallel_writes_to_one_checkpoint_all_stay(saver: ResilientSaver) -> None:
    where = Thread(saver).put({"x": 1})
    in_threads(24, lambda k: saver.put_writes(where, [("x", k), ("y", -k)], f"task{k:02}"))
    written = saver.get_tuple(where).pending_writes
    assert written == [
        write for k in range(24) for write in ((f"task{k:02}", "x", k), (f"task{k:02}", "y", -k))
    ]


def test_equal_values_put_at_once_are_all_readable(saver: ResilientSaver) -> None:
    shared = {"text": "shared " * 3000, "m": [HumanMessage("same" * 50, id="1")]}

    def work(k: int) -> None:
        for n in range(5):
            Thread(saver, f"t{k}").put({"x": shared, "n": n})
            if k % 3 == 0:
                saver.delete_thread(f"t{k}")
            elif k % 3 == 1:
                saver.prune([f"t{k}"])

    in_threads(9, work)
    for k in range(9):
        found = saver.get(config(f"t{k}"))
        assert (found is None) if k % 3 == 0 else found["channel_values"] == {"x": shared, "n": 4}


def test_a_failing_writer_takes_no_neighbour_with_it(saver: ResilientSaver) -> None:
    def work(k: int) -> None:
        for n in range(6):
            if k % 2:
                try:
                    Thread(saver, f"bad{k}").put({"x": lambda: None})
                except TypeError:
                    continue
                raise AssertionError("a lambda was stored")
            Thread(saver, f"good{k}-{n}").put({"x": n})

    in_threads(8, work)
    for k in (0, 2, 4, 6):
        for n in range(6):
            assert saver.get(config(f"good{k}-{n}"))["channel_values"] == {"x": n}


def test_what_fails_with_an_earlier_change_spoils_no_later_one(saver: ResilientSaver) -> None:
    Thread(saver, "t").put({"n": 1})
    engine = saver._engine
    state = engine.state("t")
    with state.lock:
        first, second = engine._draft(state), engine._draft(state)
        first.failed()
        assert not state.loaded
        later = engine._draft(state)
        second.failed()
        assert state.loaded, later
    engine.release(state)


def test_a_cancelled_call_leaves_the_saver_usable(saver: ResilientSaver) -> None:
    async def main() -> None:
        tasks = [asyncio.ensure_future(Thread(saver, f"t{k}").aput({"x": k})) for k in range(20)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    for k in range(1, 20, 2):
        assert saver.get(config(f"t{k}"))["channel_values"] == {"x": k}
    for k in range(0, 20, 2):
        assert saver.get(config(f"t{k}")) is None or saver.get(config(f"t{k}"))[
            "channel_values"
        ] == {"x": k}
    Thread(saver, "after").put({"x": 1})


def test_readers_see_only_whole_states_while_others_write(saver: ResilientSaver) -> None:
    thread = Thread(saver)
    thread.put({"a": 0, "b": 0})
    stop = threading.Event()

    def work(k: int) -> None:
        if k == 0:
            try:
                for n in range(1, 40):
                    thread.put({"a": n, "b": n})
            finally:
                stop.set()
            return
        while not stop.is_set():
            values = saver.get(config())["channel_values"]
            assert values["a"] == values["b"]
            listed = [item.checkpoint["channel_values"]["a"] for item in saver.list(config())]
            assert listed == list(range(listed[0], -1, -1))

    in_threads(3, work)


def test_processes_write_and_read_one_file_at_once(file_factory: SaverFactory) -> None:
    shared = [HumanMessage("shared " * 400, id="s")]

    def worker(k: int) -> None:
        with file_factory() as saver:
            thread = Thread(saver, f"p{k}")
            for n in range(10):
                thread.put({"x": [k, n], "m": shared})
                assert saver.get(config(f"p{k}"))["channel_values"]["x"] == [k, n]
                saver.delete_thread(f"p{k}-gone")
                Thread(saver, f"p{k}-gone").put({"m": shared})

    children = [fork(lambda k=k: worker(k)) for k in range(5)]
    assert [wait(pid) for pid in children] == [0] * 5
    with file_factory() as saver:
        for k in range(5):
            assert len(ids(saver.list(config(f"p{k}")))) == 10
            assert saver.get(config(f"p{k}"))["channel_values"] == {"x": [k, 9], "m": shared}


def test_a_number_that_another_process_was_faster_to_take_misleads_nobody(
    file_factory: SaverFactory,
) -> None:
    """What stands under it belongs to the other one's thread: checkpoints, or a busy owner."""
    with file_factory() as ours, file_factory() as theirs:
        Thread(ours, "source").put({"x": 1})
        begun = ours._engine.state("copy")  # a first change of it has got as far as its number
        with ours._engine.db.read() as session:
            begun.load(session, ours._engine)
        Thread(theirs, "other").put({"x": 2})
        ours.copy_thread("source", "copy")
        for thread, value in (("source", 1), ("copy", 1), ("other", 2)):
            for saver in (ours, theirs):
                found = saver.get_tuple(config(thread))
                assert found.checkpoint["channel_values"] == {"x": value}


def test_readers_beside_a_writer_see_no_rollback(
    file_factory: SaverFactory, tmp_path: Path
) -> None:
    """A commit may come between a look at the database and one at its anchor."""
    options = {"integrity_key": KEY, "rollback_anchor": tmp_path / "anchor"}
    with file_factory(**options) as saver:
        writer, ended = Thread(saver), threading.Event()
        writer.put({"n": 0})

        def write() -> None:
            for n in range(150):
                writer.put({"n": n})
            ended.set()

        thread = threading.Thread(target=write)
        thread.start()
        while not ended.is_set():
            assert saver.get_tuple(config("t")) is not None
            assert verify(saver).ok
        thread.join()
    with file_factory(**options) as saver:
        assert saver.get_tuple(config("t")).checkpoint["channel_values"] == {"n": 149}


def test_a_value_collected_by_another_process_is_stored_again(file_factory: SaverFactory) -> None:
    shared = {"text": "shared " * 3000}
    with file_factory() as saver:
        Thread(saver, "a").put({"x": shared})

        def collector() -> None:
            with file_factory() as other:
                other.delete_thread("a")

        assert wait(fork(collector)) == 0
        Thread(saver, "b").put({"x": shared})
    with file_factory() as saver:
        assert saver.get(config("b"))["channel_values"] == {"x": shared}
        assert saver.get(config("a")) is None
