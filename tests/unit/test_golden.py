"""Databases of every format ever released stay readable, and writable, forever."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from golden.make import GUARDS, HERE, Recorder, digest, history, make
from property.strategies import same

from langgraph_resilient import ResilientSaver
from langgraph_resilient.errors import ResilientError
from langgraph_resilient.maintenance import verify

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


@pytest.mark.parametrize("version", FORMATS)
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
