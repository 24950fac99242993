"""Threads that nobody goes on with are deleted when they are old enough."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from building import config
from test_maintenance_prune import filled, listed, paying
from typer.testing import CliRunner

from langgraph_resilient import ResilientSaver
from langgraph_resilient.cli.app import app
from langgraph_resilient.errors import ConfigurationError
from langgraph_resilient.maintenance import expire, verify

AGE = timedelta(days=30)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "agent.db"
    with ResilientSaver.from_conn_string(made) as saver:
        filled(saver, "old", 3, days=60)
        filled(saver, "young", 50)
    return made


def test_only_old_threads_go(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        assert expire(saver, older_than=AGE, dry_run=True).threads == ["old"]
        assert len(listed(saver, "old")) == 3
        assert expire(saver, older_than=AGE, threads=["young"]).threads == []
        assert expire(saver, older_than=AGE).threads == ["old"]
        assert (listed(saver, "old"), len(listed(saver, "young"))) == ([], 50)
        assert expire(saver, older_than=AGE).threads == []
        assert verify(saver).ok


def test_a_thread_with_an_unknown_outcome_goes_only_by_force(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver:
        paying(saver).invoke({"messages": [("user", "pay")]}, config("t"))
        report = expire(saver, older_than=timedelta(0), threads=["t"])
        assert report.threads == []
        assert "charge" in report.skipped[0].reason
        assert expire(saver, older_than=timedelta(0), threads=["t"], force=True).threads == ["t"]
        assert saver.ledger.entries("t") == []


def test_an_age_in_the_future_is_refused(path: Path) -> None:
    with ResilientSaver.from_conn_string(path) as saver, pytest.raises(ConfigurationError):
        expire(saver, older_than=timedelta(days=-1))


def test_the_command_expires(path: Path) -> None:
    def command(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["expire", "--db", str(path), *arguments])

    assert json.loads(command("--older-than", "30d", "--dry-run", "--json").stdout)["threads"]
    assert command("--older-than", "30d").exit_code == 0
    assert json.loads(command("--older-than", "30d", "--json").stdout)["threads"] == []
    assert json.loads(command("--json").stdout)["threads"] == []  # none has a time of its own
