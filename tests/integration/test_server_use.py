"""Agents on a PostgreSQL server as applications run them: coroutines, policies, forks, many at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from building import config, fork, in_child, wait
from crashable import INPUT, Factory
from serving import fresh_address

from langgraph_resilient import AfterTools, EveryRounds, ResilientSaver
from langgraph_resilient.maintenance import gc, prune, verify
from langgraph_resilient.testing import EffectLog


@pytest.fixture
def address() -> str:
    return fresh_address()


@pytest.fixture
def log(tmp_path: Path) -> EffectLog:
    return EffectLog(tmp_path / "effects")


def agent(saver: Any, log: EffectLog) -> Any:
    return Factory(log=log, is_agent=True)(saver)


def test_coroutines_of_many_threads_share_a_saver(address: str, log: EffectLog) -> None:
    async def main() -> None:
        async with ResilientSaver.from_conn_string(address) as saver:
            built = agent(saver, log)
            ends = await asyncio.gather(*(built.ainvoke(INPUT, config(f"t{n}")) for n in range(6)))
            assert {end["messages"][-1].content for end in ends} == {"It is sent."}
            assert [item async for item in saver.alist(config("t3"), limit=1)]

    asyncio.run(main())
    assert len(log.entries()) == 6
    with ResilientSaver.from_conn_string(address) as saver:
        assert verify(saver).ok
        assert {entry.state for entry in saver.ledger.entries()} == {"succeeded"}


def test_tokens_are_streamed_and_their_pieces_go_with_the_checkpoint(
    address: str, log: EffectLog
) -> None:
    async def main() -> str:
        async with ResilientSaver.from_conn_string(address) as saver:
            stream = agent(saver, log).astream(INPUT, config(), stream_mode="messages")
            shown = [piece.content async for piece, _ in stream if piece.type == "AIMessageChunk"]
            assert {chunk.kind async for chunk in saver.astream("t")} == {"end"}
            return "".join(shown)

    assert asyncio.run(main()) == "It is sent."


@pytest.mark.parametrize("policy", [AfterTools(), EveryRounds(2)])
def test_a_policy_stores_fewer_checkpoints(address: str, log: EffectLog, policy: Any) -> None:
    with ResilientSaver.from_conn_string(address, policy=policy) as saver:
        end = agent(saver, log).invoke(INPUT, config())
        assert saver.snapshots.skipped > 0
    with ResilientSaver.from_conn_string(address) as saver:
        assert agent(saver, log).get_state(config()).values == end
        assert verify(saver).ok


def test_a_forked_child_goes_on_with_connections_of_its_own(address: str, log: EffectLog) -> None:
    with ResilientSaver.from_conn_string(address) as saver:
        built = agent(saver, log)
        built.invoke(INPUT, config("parent"))
        assert in_child(lambda: built.invoke(INPUT, config("child"))) == 0
        built.invoke({"messages": [("user", "again")]}, config("parent"))
        assert len(built.get_state(config("child")).values["messages"]) == 4
        assert verify(saver).ok


def test_processes_write_beside_upkeep_and_lose_nothing(address: str, log: EffectLog) -> None:
    def write(name: str) -> None:
        with ResilientSaver.from_conn_string(address) as saver:
            built = agent(saver, log)
            for _ in range(3):
                built.invoke(INPUT, config(name))

    def keep_up() -> None:
        with ResilientSaver.from_conn_string(address) as saver:
            for _ in range(4):
                prune(saver, keep=1)
                gc(saver)
                saver.copy_thread("t0", "copy")
                saver.delete_thread("copy", force=True)

    with ResilientSaver.from_conn_string(address) as saver:
        saver.setup()
    workers = [fork(lambda n=n: write(f"t{n}")) for n in range(3)] + [fork(keep_up)]
    assert [wait(pid) for pid in workers] == [0] * 4
    with ResilientSaver.from_conn_string(address) as saver:
        assert verify(saver).ok
        for n in range(3):
            assert len(agent(saver, log).get_state(config(f"t{n}")).values["messages"]) >= 8
