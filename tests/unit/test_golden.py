"""Databases of every format ever released stay readable, and writable, forever."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from building import checkpoint, config, fork, wait
from calling import call, make_unknown, run
from conftest import tried_now
from golden.make import GUARDS, HERE, Recorder, digest, history, make, mortal
from property.strategies import same

from langgraph_resilient import ResilientSaver
from langgraph_resilient.errors import CallNotFound, DatabaseReadOnly, ResilientError
from langgraph_resilient.maintenance import expire, stats, threads, verify
from langgraph_resilient.store import migrate

FORMATS = ("v1",)
FILES = [(version, guard) for version in FORMATS for guard in GUARDS]


def golden(version: str, guard: str, folder: Path) -> Path:
    """A copy of a golden file."""
    source = HERE / version / f"{guard}.bin"
    if not source.exists():
        pytest.skip(f"{version} is not released yet")
    return Path(shutil.copy(source, folder / "agent.db"))


def expected() -> Recorder:
    recorder = Recorder()
    history(recorder)
    return recorder


def check(saver: Any, wanted: Recorder) -> None:
    """Everything that was stored reads back, from every way of reading."""
    for (thread, ns), facts in wanted.facts.items():
        config = {"configurable": {"thread_id": thread, "checkpoint_ns": ns}}
        listed = list(saver.list(config))
        assert len(listed) == len(facts)
        for found, fact in zip(listed, facts, strict=True):
            agrees(found, fact, (thread, ns))
            agrees(saver.get_tuple(found.config), fact, (thread, ns))
        agrees(saver.get_tuple(config), facts[0], (thread, ns))
    assert len(list(saver.list(None))) == sum(map(len, wanted.facts.values()))


def agrees(found: Any, fact: dict[str, Any], where: Any) -> None:
    parent = found.parent_config
    assert (parent["configurable"]["checkpoint_id"] if parent else None) == fact["parent"], where
    for key, item in fact["checkpoint"].items():
        if key == "channel_values":
            for channel, value in item.items():
                assert same(found.checkpoint[key][channel], value), (where, channel)
        assert same(found.checkpoint[key], item), (where, key)
    assert same(found.metadata, fact["metadata"]), where
    writes = {(task, channel): value for task, channel, value in found.pending_writes}
    assert writes.keys() == fact["writes"].keys(), where
    for key, value in fact["writes"].items():
        assert same(writes[key], value), (where, key)


@pytest.mark.parametrize(("version", "guard"), FILES)
def test_a_golden_file_reads_back_and_can_be_continued(
    version: str, guard: str, tmp_path: Path
) -> None:
    path = golden(version, guard, tmp_path)
    wanted = expected()
    with ResilientSaver.from_conn_string(path, **GUARDS[guard]) as saver:
        check(saver, wanted)
        assert not verify(saver).findings
        wanted.saver = saver
        longer = [*wanted.facts["chat", ""][0]["checkpoint"]["channel_values"]["messages"], "more"]
        wanted.put("chat", {"messages": longer})
        wanted.put("new", {"messages": longer[:3]})
        wanted.delete("sharing")
        check(saver, wanted)
        assert not verify(saver).findings


@pytest.mark.parametrize("guard", GUARDS)
def test_a_compacted_golden_file_reads_back_and_can_be_continued(
    guard: str, tmp_path: Path
) -> None:
    path = golden("v3-compact", guard, tmp_path)
    wanted = expected()
    with ResilientSaver.from_conn_string(path, **GUARDS[guard]) as saver:
        check(saver, wanted)
        assert verify(saver).checked["unaddressed_blobs"] > 0
        wanted.saver = saver
        wanted.put("chat", {"messages": ["more"]})
        wanted.delete("sharing")
        check(saver, wanted)
        assert not verify(saver).findings


@pytest.mark.parametrize("guard", GUARDS)
def test_a_golden_file_with_lifetimes_and_counts_reads_back_and_can_be_continued(
    guard: str, tmp_path: Path
) -> None:
    path = golden("v4", guard, tmp_path)
    wanted = Recorder()
    mortal(wanted)
    with ResilientSaver.from_conn_string(path, **GUARDS[guard]) as saver:
        check(saver, wanted)
        [free, found] = threads(saver)
        assert (free.ttl, found.ttl, stats(saver).ttl_threads) == (None, 30 * 86_400, 1)
        assert found.expires_at == "2024-06-05T07:08:06.123000+00:00"
        assert stats(saver).snapshots == {"stored": 4, "skipped": 3, "bridged": 2}
        assert expire(saver, dry_run=True).threads == ["mortal"]
        saver.prune(["mortal"])
        saver.set_ttl("free", 60)
        assert (saver.get_ttl("free"), saver.get_ttl("mortal")) == (60, 30 * 86_400)
        assert stats(saver).snapshots == {"stored": 4, "skipped": 3, "bridged": 2}
        assert not verify(saver).findings


@pytest.mark.parametrize(("version", "guard"), FILES)
def test_the_threads_of_an_older_file_can_be_given_a_time_to_live(
    version: str, guard: str, tmp_path: Path
) -> None:
    path = golden(version, guard, tmp_path)
    wanted = expected()
    with ResilientSaver.from_conn_string(path, **GUARDS[guard]) as saver:
        assert {info.ttl for info in threads(saver)} == {None}
        saver.set_ttl("chat", 3600)
        check(saver, wanted)
        counted = stats(saver)
        assert counted.snapshots == {"stored": counted.checkpoints, "skipped": 0, "bridged": 0}
    with ResilientSaver.from_conn_string(path, **GUARDS[guard]) as saver:
        assert saver.get_ttl("chat") == 3600
        assert not verify(saver).findings


READ_ONLY = ("mode=ro", "immutable=1", "connection")


@contextmanager
def reading_only(path: Path, guard: str, way: str) -> Iterator[Any]:
    """A saver on a file that it cannot write."""
    if way == "connection":
        conn = sqlite3.connect(f"file:{path}?mode=ro", uri=True, check_same_thread=False)
        try:
            saver = ResilientSaver(conn, **GUARDS[guard])
            yield saver
            saver.close()
        finally:
            conn.close()
    else:
        target = f"file:{path}?{way}"
        with ResilientSaver.from_conn_string(target, **GUARDS[guard]) as saver:
            yield saver


@pytest.mark.parametrize("way", READ_ONLY)
@pytest.mark.parametrize("guard", tried_now(GUARDS, "plain", "cipher"))
@pytest.mark.parametrize("version", FORMATS)
def test_a_golden_file_that_cannot_be_written_is_read_as_it_is(
    version: str, guard: str, way: str, tmp_path: Path
) -> None:
    """Age is no absence: what its schema has not yet got is not there, all else is."""
    path = golden(version, guard, tmp_path)
    before = path.read_bytes()
    with reading_only(path, guard, way) as saver:
        check(saver, expected())
        assert saver.ledger.entries() == saver.ledger.entries("chat") == []
        assert saver.ledger.unknown() == saver.ledger.unknown("chat") == []
        with pytest.raises(CallNotFound):
            saver.ledger.get("00" * 16)
        report = verify(saver)
        assert report.ok, report.findings
        counted = stats(saver)
        assert (counted.schema, sum(counted.calls.values())) == (int(version[1:]), 0)
        assert {(info.calls, info.ttl) for info in threads(saver)} == {(0, None)}
        for write in (
            lambda: saver.put(config("chat"), checkpoint({"x": 1}), {}, {"x": 1}),
            lambda: run(saver, call("chat", body=lambda now: pytest.fail("it ran"))),
            lambda: saver.delete_thread("chat"),
        ):
            with pytest.raises(DatabaseReadOnly):
                write()
        check(saver, expected())
    assert path.read_bytes() == before


@pytest.mark.parametrize(("version", "guard"), FILES)
def test_a_reader_of_an_older_file_sees_when_somebody_has_upgraded_it(
    version: str, guard: str, tmp_path: Path
) -> None:
    path = golden(version, guard, tmp_path)
    with reading_only(path, guard, "mode=ro") as reader:
        assert reader.ledger.entries() == []
        with ResilientSaver.from_conn_string(path, **GUARDS[guard]) as saver:
            make_unknown(saver, call("chat"))
            assert [entry.state for entry in reader.ledger.unknown()] == ["unknown"]
            assert stats(reader).schema == migrate.newest()
        check(reader, expected())


@pytest.mark.parametrize("guard", tried_now(GUARDS, "plain"))
@pytest.mark.parametrize("version", FORMATS)
def test_processes_that_upgrade_a_file_at_once(version: str, guard: str, tmp_path: Path) -> None:
    path = golden(version, guard, tmp_path)
    read, write = os.pipe()

    def body() -> None:
        os.read(read, 1)
        with ResilientSaver.from_conn_string(path, **GUARDS[guard]) as saver:
            run(saver, call(f"thread {os.getpid()}"))
            check(saver, expected())

    children = [fork(body) for _ in range(4)]
    os.write(write, b"x" * len(children))
    assert [wait(child) for child in children] == [0] * 4
    os.close(read)
    os.close(write)
    with ResilientSaver.from_conn_string(path, **GUARDS[guard]) as saver:
        assert stats(saver).schema == migrate.newest()
        assert len(saver.ledger.entries()) == 4
        check(saver, expected())
        report = verify(saver)
        assert report.ok, report.findings


@pytest.mark.parametrize(("version", "guard"), FILES)
def test_who_has_not_the_keys_upgrades_nothing(version: str, guard: str, tmp_path: Path) -> None:
    path = golden(version, guard, tmp_path)
    for other, options in GUARDS.items():
        if other != guard:
            with pytest.raises(ResilientError):
                with ResilientSaver.from_conn_string(path, **options) as saver:
                    saver.ledger.entries()
    with closing(sqlite3.connect(path)) as conn:
        (found,) = conn.execute("SELECT number FROM resilient_meta WHERE name = 'schema'")
    assert found == (int(version[1:]),)


@pytest.mark.parametrize("way", [*READ_ONLY, "mode=rw"])
@pytest.mark.parametrize("guard", GUARDS)
def test_a_file_that_says_it_is_older_than_it_is_is_refused(
    guard: str, way: str, tmp_path: Path
) -> None:
    """Or its tool calls would read as not made."""
    path = tmp_path / "agent.db"
    with ResilientSaver.from_conn_string(path, **GUARDS[guard]) as saver:
        make_unknown(saver, call("chat"))
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("UPDATE resilient_meta SET number = 1 WHERE name = 'schema'")
        conn.commit()
    runs: list[int] = []
    with pytest.raises(ResilientError):
        with reading_only(path, guard, way) as saver:
            run(saver, call("chat", body=lambda now: runs.append(1)))
    assert runs == []


@pytest.mark.parametrize(("version", "guard"), FILES)
def test_a_golden_file_is_read_only_with_its_own_keys(
    version: str, guard: str, tmp_path: Path
) -> None:
    path = golden(version, guard, tmp_path)
    for other, options in GUARDS.items():
        if other != guard:
            with pytest.raises(ResilientError):
                with ResilientSaver.from_conn_string(path, **options) as saver:
                    saver.get_tuple({"configurable": {"thread_id": "chat"}})


@pytest.mark.parametrize("version", [*FORMATS, "v3-compact", "v4"])
def test_golden_files_are_never_made_again(version: str) -> None:
    sums = HERE / version / "SHA256SUMS"
    if not sums.exists():
        pytest.skip(f"{version} is not released yet")
    listed = dict(reversed(line.split()) for line in sums.read_text().splitlines())
    assert listed == {path.name: digest(path) for path in sums.parent.glob("*.bin")}
    with pytest.raises(SystemExit, match="never made again"):
        make(sums.parent)


@pytest.mark.parametrize("guard", GUARDS)
def test_what_this_release_writes_it_reads(guard: str, tmp_path: Path) -> None:
    """The history itself, so that golden files are made of something that works."""
    make(tmp_path / "now")
    with ResilientSaver.from_conn_string(
        tmp_path / "now" / f"{guard}.bin", **GUARDS[guard]
    ) as saver:
        check(saver, expected())
        assert not verify(saver).findings
