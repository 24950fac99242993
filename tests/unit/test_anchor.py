"""The rollback anchor: a database that is behind it is refused."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from langgraph_resilient.anchor import Anchor
from langgraph_resilient.errors import ConfigurationError, TamperDetected

SCOPE, KEY = b"s" * 16, b"k" * 32


def anchor(path: Path, scope: bytes = SCOPE, key: bytes = KEY) -> Anchor:
    return Anchor(path, scope, key)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "anchor"


def test_a_database_as_new_as_its_anchor_or_newer_is_believed(path: Path) -> None:
    anchor(path).note(7)
    for commits in (7, 8, 1 << 40):
        anchor(path).check(commits, "db")


def test_a_database_behind_its_anchor_is_refused_and_says_how_far(path: Path) -> None:
    anchor(path).note(7)
    with pytest.raises(TamperDetected, match=r"db is older than it was: 6 commits.*has seen 7"):
        anchor(path).check(6, "db")


def test_a_first_start_and_a_removed_anchor_are_believed(path: Path) -> None:
    anchor(path).check(0, "db")
    anchor(path).check(5, "db")
    assert not path.exists()


def test_an_open_anchor_remembers_without_its_file(path: Path) -> None:
    opened = anchor(path)
    opened.note(7)
    path.unlink()
    with pytest.raises(TamperDetected):
        opened.check(6, "db")


def test_what_was_checked_counts_as_seen(path: Path) -> None:
    opened = anchor(path)
    opened.check(7, "db")
    with pytest.raises(TamperDetected):
        opened.check(6, "db")


def test_an_older_commit_noted_late_does_not_move_it_back(path: Path) -> None:
    opened = anchor(path)
    opened.note(7)
    opened.note(5)
    with pytest.raises(TamperDetected):
        anchor(path).check(6, "db")


def test_a_removed_file_is_written_again_by_the_next_note(path: Path) -> None:
    opened = anchor(path)
    opened.note(7)
    path.unlink()
    opened.note(7)
    assert path.exists()


def test_every_edit_of_the_file_is_noticed(path: Path) -> None:
    anchor(path).note(7)
    good = path.read_bytes()
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes((good[at] ^ 1,)) + good[at + 1 :])
        with pytest.raises(TamperDetected):
            anchor(path).check(100, "db")
        path.write_bytes(good[:at])
        with pytest.raises(TamperDetected):
            anchor(path).check(100, "db")
    path.write_bytes(good + b"\0")
    with pytest.raises(TamperDetected):
        anchor(path).check(100, "db")


def test_an_anchor_of_another_database_or_key_is_refused(path: Path) -> None:
    anchor(path).note(7)
    for stranger in (anchor(path, scope=b"o" * 16), anchor(path, key=b"o" * 32)):
        with pytest.raises(TamperDetected, match="another database"):
            stranger.check(100, "db")


def test_the_file_is_the_owners_alone_and_nothing_is_left_beside_it(path: Path) -> None:
    opened = anchor(path)
    for commits in range(3):
        opened.note(commits)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_an_anchor_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the change itself is stored"):
        anchor(tmp_path / "missing" / "anchor").note(1)
