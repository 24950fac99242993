"""LangGraph's own conformance suite, whole, on every backend and with every protection.

The suite's label "FULL" also covers savers of which parts were skipped, so the numbers are
counted here: eight capabilities, eighty-one tests, none failed and none skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from conftest import SaverFactory, combinations
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from serving import server_address

CAPABILITIES = 8
TESTS = 81


@pytest.mark.parametrize("kind", combinations())
def test_all_of_the_conformance_suite_passes(kind: tuple[str, str], tmp_path: Path) -> None:
    folders = iter(range(1000))
    if kind[0] == "postgres":
        server_address()  # skips where there is none; the suite would take that for a failure

    @checkpointer_test(name="-".join(kind))
    async def fresh() -> AsyncGenerator[BaseCheckpointSaver, None]:
        folder = tmp_path / str(next(folders))
        folder.mkdir()
        with SaverFactory(*kind, folder)() as saver:
            yield saver

    report = asyncio.run(validate(fresh))

    results = report.results
    assert {name: r.failures for name, r in results.items() if r.failures} == {}
    assert [name for name, r in results.items() if not r.detected] == []
    assert [name for name, r in results.items() if r.passed is not True] == []
    assert len(results) == CAPABILITIES
    assert sum(r.tests_passed for r in results.values()) == TESTS
    assert sum(r.tests_failed for r in results.values()) == 0
    assert sum(r.tests_skipped for r in results.values()) == 0
