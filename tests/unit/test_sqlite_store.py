"""Group commit, transactions and the driver's errors, on real SQLite files."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from langgraph_resilient.errors import (
    ConfigurationError,
    DatabaseCorrupt,
    DatabaseFull,
    DatabaseLocked,
    DatabaseReadOnly,
    DatabaseUnreachable,
    SaverClosed,
    StorageError,
)
from langgraph_resilient.options import Options
from langgraph_resilient.store.failures import Conflict, translated
from langgraph_resilient.store.session import Session
from langgraph_resilient.store.sqlite import SqliteDatabase
from langgraph_resilient.store.target import Target

Work = Callable[[Session], Any]


def opened(path: Path | str, **options: Any) -> SqliteDatabase:
    return SqliteDatabase(Target.parse(path), Options(**{"busy_timeout": 0.05, **options}))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def db(path: Path) -> Iterator[SqliteDatabase]:
    made = opened(path)
    made.write(lambda session: session.raw("CREATE TABLE t (x UNIQUE)"))
    yield made
    made.close()


def insert(value: Any, log: list[Any] | None = None) -> Work:
    def work(session: Session) -> Any:
        if log is not None:
            log.append(value)
        session.raw("INSERT INTO t VALUES (?)", value)
        return value

    return work


def then_raise(work: Work, error: BaseException) -> Work:
    def failing(session: Session) -> Any:
        work(session)
        raise error

    return failing


def stored(path: Path) -> list[Any]:
    """What another process would see, in the order of writing."""
    other = sqlite3.connect(path)
    try:
        return [row[0] for row in other.execute("SELECT x FROM t ORDER BY rowid")]
    finally:
        other.close()


# --- group commit -----------------------------------------------------------------------------


def test_whoever_commits_first_commits_what_all_queued_in_their_order(
    db: SqliteDatabase, path: Path
) -> None:
    first, second, third = (db.enqueue(insert(value)) for value in "cab")
    assert db.finish(third) == "b"
    assert stored(path) == ["c", "a", "b"]
    assert (first.done, second.done) == (True, True)
    assert (db.finish(first), db.finish(second)) == ("c", "a")
    assert stored(path) == ["c", "a", "b"]


def test_nothing_is_stored_before_somebody_commits(db: SqliteDatabase, path: Path) -> None:
    pending = db.enqueue(insert(1))
    assert stored(path) == []
    db.finish(pending)
    assert stored(path) == [1]


def test_an_interrupted_piece_is_not_done_by_anybody_later(db: SqliteDatabase, path: Path) -> None:
    told: list[str] = []
    struck = db.enqueue(then_raise(insert(1), KeyboardInterrupt()), lambda: told.append("failed"))
    with pytest.raises(KeyboardInterrupt):
        db.finish(struck)
    assert told == ["failed"]
    db.write(insert(2))
    assert stored(path) == [2]


def test_a_failing_piece_undoes_only_itself(db: SqliteDatabase, path: Path) -> None:
    trouble = ValueError("no")
    first = db.enqueue(insert(1))
    second = db.enqueue(then_raise(insert(2), trouble))
    third = db.enqueue(insert(3))
    assert db.finish(first) == 1
    assert db.finish(third) == 3
    with pytest.raises(ValueError, match="no") as caught:
        db.finish(second)
    assert caught.value is trouble
    assert stored(path) == [1, 3]


def test_a_failing_piece_that_is_alone_leaves_nothing_and_no_open_transaction(
    db: SqliteDatabase, path: Path
) -> None:
    with pytest.raises(ValueError):
        db.write(then_raise(insert(1), ValueError()))
    assert not db.connection.in_transaction
    db.write(insert(2))
    assert stored(path) == [2]


def test_a_failure_is_known_before_later_work_is_done(db: SqliteDatabase) -> None:
    log: list[Any] = []
    db.enqueue(insert(1, log), lambda: log.append("first failed"))
    db.enqueue(then_raise(insert(2, log), ValueError()), lambda: log.append("second failed"))
    db.finish(db.enqueue(insert(3, log), lambda: log.append("third failed")))
    assert log == [1, 2, "second failed", 3]


def test_a_row_that_is_there_already_is_a_conflict(db: SqliteDatabase, path: Path) -> None:
    db.write(insert(1))
    for _ in range(2):
        with pytest.raises(Conflict):
            db.write(insert(1))
    with pytest.raises(Conflict):  # beside others, too
        other, again = db.enqueue(insert(2)), db.enqueue(insert(1))
        db.finish(other)
        db.finish(again)
    assert stored(path) == [1, 2]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_ctrl_c_puts_the_work_of_others_back_into_the_queue(
    db: SqliteDatabase, path: Path, interrupt: type[BaseException]
) -> None:
    log: list[Any] = []
    first = db.enqueue(insert(1, log), lambda: log.append("failed"))
    struck = db.enqueue(then_raise(insert(2, log), interrupt()), lambda: log.append("struck"))
    third = db.enqueue(insert(3, log), lambda: log.append("failed"))
    with pytest.raises(interrupt):
        db.finish(struck)
    assert stored(path) == []
    assert not db.connection.in_transaction
    assert (first.done, third.done) == (False, False)
    assert db.finish(third) == 3
    assert db.finish(first) == 1
    assert stored(path) == [1, 3]
    assert log == [1, 2, "struck", 1, 3]  # only the struck piece is gone, and knows it


def test_a_commit_that_fails_fails_every_piece_and_tells_them(
    db: SqliteDatabase, path: Path
) -> None:
    db.write(
        lambda session: session.raw(
            "CREATE TABLE child (x REFERENCES t (x) DEFERRABLE INITIALLY DEFERRED)"
        )
    )
    db.connection.execute("PRAGMA foreign_keys = ON")
    told: list[str] = []
    first = db.enqueue(insert(1), lambda: told.append("first"))
    second = db.enqueue(
        lambda session: session.raw("INSERT INTO child VALUES (99)"), lambda: told.append("second")
    )
    for pending in (first, second):
        with pytest.raises(Conflict, match="FOREIGN KEY"):
            db.finish(pending)
    assert told == ["first", "second"]
    assert stored(path) == []
    assert not db.connection.in_transaction
    db.write(insert(2))
    assert stored(path) == [2]


def test_many_threads_each_get_their_own_result(db: SqliteDatabase, path: Path) -> None:
    results: dict[int, Any] = {}

    def work(number: int) -> None:
        for step in range(20):
            value = number * 100 + step
            if step % 7 == 3:
                with pytest.raises(ValueError, match=str(value)):
                    db.write(then_raise(insert(value), ValueError(str(value))))
            else:
                results[value] = db.write(insert(value))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {value: value for value in results}
    assert sorted(stored(path)) == sorted(results)
    assert len(results) == 8 * 17


# --- reading ----------------------------------------------------------------------------------


def test_a_reader_sees_one_state_while_others_write(db: SqliteDatabase) -> None:
    db.write(insert(1))
    with db.read() as session:
        before = session.raw("SELECT count(*) FROM t")
        db.write(insert(2))
        assert session.raw("SELECT count(*) FROM t") == before == [(1,)]
    with db.read() as session:
        assert session.raw("SELECT count(*) FROM t") == [(2,)]


def test_a_reader_cannot_write(db: SqliteDatabase, path: Path) -> None:
    with pytest.raises(DatabaseReadOnly):
        with db.read() as session:
            session.raw("INSERT INTO t VALUES (1)")
    assert stored(path) == []


def test_connections_of_readers_are_used_again_and_bounded(path: Path) -> None:
    db = opened(path, readers=2)
    with db.read() as first:
        pass
    with db.read() as second:
        assert second.connection is first.connection
        with db.read() as third, db.read() as fourth:
            assert len({item.connection for item in (second, third, fourth)}) == 3
    assert len(db._readers) == 2
    db.close()


def test_a_reader_that_failed_is_not_used_again(db: SqliteDatabase) -> None:
    with pytest.raises(ValueError), db.read() as session:
        raise ValueError
    with pytest.raises(SaverClosed):
        session.raw("SELECT 1")
    with db.read() as session:
        assert session.raw("SELECT 1") == [(1,)]


# --- the user's own connection ----------------------------------------------------------------


@pytest.fixture
def given(path: Path) -> Iterator[tuple[sqlite3.Connection, SqliteDatabase]]:
    connection = sqlite3.connect(path, check_same_thread=False)
    connection.execute("CREATE TABLE t (x UNIQUE)")
    connection.row_factory = sqlite3.Row
    options = Options(busy_timeout=0.05)
    yield connection, SqliteDatabase(Target.parse(":memory:"), options, connection)
    connection.close()


def test_a_transaction_that_the_user_has_open_is_joined_and_committed(
    given: tuple[sqlite3.Connection, SqliteDatabase], path: Path
) -> None:
    connection, db = given
    connection.execute("INSERT INTO t VALUES ('mine')")
    assert connection.in_transaction
    assert db.write(insert("ours")) == "ours"
    assert not connection.in_transaction
    assert stored(path) == ["mine", "ours"]


def test_a_failure_leaves_the_users_transaction_as_it_was(
    given: tuple[sqlite3.Connection, SqliteDatabase], path: Path
) -> None:
    connection, db = given
    connection.execute("INSERT INTO t VALUES ('mine')")
    for error in (ValueError(), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            db.write(then_raise(insert("ours"), error))
        assert connection.in_transaction
    assert stored(path) == []
    connection.commit()
    assert stored(path) == ["mine"]


def test_rows_are_tuples_whatever_factory_the_user_set(
    given: tuple[sqlite3.Connection, SqliteDatabase],
) -> None:
    connection, db = given
    db.write(insert(1))
    with db.read() as session:
        assert session.raw("SELECT x FROM t") == [(1,)]
        assert type(session.raw("SELECT x FROM t")[0]) is tuple
    assert connection.row_factory is sqlite3.Row


def test_the_users_connection_stays_open(
    given: tuple[sqlite3.Connection, SqliteDatabase],
) -> None:
    connection, db = given
    db.close()
    assert connection.execute("SELECT 1").fetchone()[0] == 1
    with pytest.raises(SaverClosed):
        db.write(insert(1))


# --- life -------------------------------------------------------------------------------------


def test_closing_finishes_what_was_queued_and_may_be_repeated(path: Path) -> None:
    db = opened(path)
    db.write(lambda session: session.raw("CREATE TABLE t (x)"))
    pending = db.enqueue(insert(1))
    db.close()
    db.close()
    assert db.closed
    assert db.finish(pending) == 1
    assert stored(path) == [1]
    for use in (lambda: db.write(insert(2)), lambda: db.read().__enter__(), lambda: db.connection):
        with pytest.raises(SaverClosed, match="open a new one"):
            use()
    assert not list(path.parent.glob("*-wal"))


def test_a_new_file_is_its_owners_alone_and_an_existing_one_keeps_its_mode(path: Path) -> None:
    db = opened(path)
    db.write(lambda session: session.raw("CREATE TABLE t (x)"))
    side_files = [path, *path.parent.glob("agent.db-*")]
    assert len(side_files) == 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in side_files} == {0o600}
    db.close()
    path.chmod(0o640)
    opened(path).connection.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("text", "name", "path", "single"),
    [
        (":memory:", ":memory:", None, True),
        ("", ":memory:", None, True),
        ("sqlite://", ":memory:", None, True),
        ("sqlite:///:memory:", ":memory:", None, True),
        ("file::memory:?cache=shared", "file::memory:?cache=shared", None, True),
        ("file:x?mode=memory", "file:x?mode=memory", None, True),
        ("agent.db", "agent.db", "agent.db", False),
        (Path("a/b.db"), "a/b.db", "a/b.db", False),
        ("sqlite:///a/b.db", "a/b.db", "a/b.db", False),
        ("sqlite:////a/b%20c.db", "/a/b c.db", "/a/b c.db", False),
        ("file:a%20b.db?mode=ro", "file:a%20b.db?mode=ro", "a b.db", False),
        ("file:///x/y.db", "file:///x/y.db", "/x/y.db", False),
    ],
)
def test_a_connection_string_leads_to(text: Any, name: str, path: str | None, single: bool) -> None:
    found = Target.parse(text)
    assert (found.name, found.single) == (name, single)
    assert found.path == (None if path is None else Path(path))


@pytest.mark.parametrize("text", ["postgresql+psycopg://user@host/db", "mysql://x", b"agent.db"])
def test_other_connection_strings_are_refused_without_showing_a_password(text: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Target.parse(text)
    assert "user@host" not in str(caught.value)


# --- errors of the driver ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (sqlite3.IntegrityError("UNIQUE constraint failed: t.x"), Conflict),
        (sqlite3.OperationalError("database is locked"), DatabaseLocked),
        (sqlite3.OperationalError("database table is locked: t"), DatabaseLocked),
        (sqlite3.OperationalError("database or disk is full"), DatabaseFull),
        (sqlite3.DataError("string or blob too big for the file"), DatabaseFull),
        (sqlite3.OperationalError("attempt to write a readonly database"), DatabaseReadOnly),
        (sqlite3.DatabaseError("database disk image is malformed"), DatabaseCorrupt),
        (sqlite3.DatabaseError("file is not a database"), DatabaseCorrupt),
        (sqlite3.ProgrammingError("Cannot operate on a closed database."), SaverClosed),
        (
            sqlite3.ProgrammingError(
                "SQLite objects created in a thread can only be used in that same thread."
            ),
            ConfigurationError,
        ),
        (sqlite3.OperationalError("unable to open database file"), DatabaseUnreachable),
        (sqlite3.OperationalError("disk I/O error"), DatabaseUnreachable),
        (sqlite3.OperationalError("interrupted"), StorageError),
        (sqlite3.OperationalError("no such table: t"), StorageError),
        (sqlite3.Warning("what"), StorageError),
    ],
)
def test_an_error_of_the_driver_becomes_one_of_ours(
    error: sqlite3.Error, kind: type[Exception]
) -> None:
    found = translated(error, "agent.db")
    assert type(found) is kind
    assert str(error) in str(found)
    if kind is not Conflict:
        assert "agent.db" in str(found)


def test_a_database_that_another_one_holds_is_locked_and_then_works(
    db: SqliteDatabase, path: Path
) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    told: list[int] = []
    with pytest.raises(DatabaseLocked, match="busy_timeout"):
        db.finish(db.enqueue(insert(1), lambda: told.append(1)))
    other.execute("COMMIT")
    other.close()
    assert told == [1]
    db.write(insert(2))
    assert stored(path) == [2]  # the refused work is not in the queue any more


def test_a_full_database_says_so_alone_and_beside_others(db: SqliteDatabase, path: Path) -> None:
    db.write(insert(1))
    pages = db.connection.execute("PRAGMA page_count").fetchone()[0]
    db.connection.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(DatabaseFull, match="free some space"):
        db.write(insert("x" * 50_000))
    small, large = db.enqueue(insert(2)), db.enqueue(insert("y" * 50_000))
    for pending in (large, small):  # SQLite undoes the whole transaction by itself
        with pytest.raises(DatabaseFull, match="free some space"):
            db.finish(pending)
    db.write(insert(3))
    assert stored(path) == [1, 3]


def test_a_file_opened_for_reading_only_refuses_to_write(db: SqliteDatabase, path: Path) -> None:
    reader = opened(f"file:{path}?mode=ro")
    with reader.read() as session:
        assert session.raw("SELECT count(*) FROM t") == [(0,)]
    with pytest.raises(DatabaseReadOnly, match="mode=ro"):
        reader.write(insert(1))
    reader.close()


def test_a_file_that_is_no_database_is_corrupt(path: Path) -> None:
    path.write_bytes(os.urandom(8192))
    db = opened(path)
    with pytest.raises(DatabaseCorrupt):
        db.write(insert(1))
    db.close()


def test_a_missing_folder_is_unreachable(tmp_path: Path) -> None:
    db = opened(tmp_path / "missing" / "agent.db")
    with pytest.raises(DatabaseUnreachable, match="folder exists"):
        db.write(insert(1))
    db.close()


def test_a_connection_bound_to_its_thread_says_how_to_open_it() -> None:
    connection = sqlite3.connect(":memory:")
    db = SqliteDatabase(Target.parse(":memory:"), Options(), connection)
    caught: list[BaseException] = []

    def work() -> None:
        try:
            db.write(lambda session: session.raw("SELECT 1"))
        except ConfigurationError as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "check_same_thread=False" in str(caught[0])
    connection.close()


# --- glances ----------------------------------------------------------------------------------


def test_a_glance_sees_one_state_and_leaves_the_writer_free(db: SqliteDatabase) -> None:
    db.write(insert(1))
    with db.glance() as session:
        assert session.connection is db.connection
        assert session.raw("SELECT x FROM t") == [(1,)]
    assert not db.connection.in_transaction
    db.write(insert(2))
    with db.glance() as session:
        assert session.raw("SELECT x FROM t") == [(1,), (2,)]


def test_a_glance_that_fails_leaves_no_transaction(db: SqliteDatabase) -> None:
    with pytest.raises(KeyError), db.glance():
        raise KeyError("the reader's own")
    with pytest.raises(StorageError), db.glance() as session:
        session.raw("SELECT nothing FROM nowhere")
    assert not db.connection.in_transaction
    db.write(insert(1))


def test_a_glance_never_looks_into_somebody_elses_transaction(db: SqliteDatabase) -> None:
    db.connection.execute("BEGIN")
    db.connection.execute("INSERT INTO t VALUES (1)")
    with db.glance() as session:
        assert session.connection is not db.connection
        assert session.raw("SELECT x FROM t") == []
    db.connection.rollback()


def test_a_glance_does_not_wait_for_a_writer(db: SqliteDatabase) -> None:
    found: list[Any] = []

    def look() -> None:
        with db.glance() as session:
            found.extend(session.raw("SELECT count(*) FROM t"))

    with db.lock:
        other = threading.Thread(target=look)
        other.start()
        other.join(timeout=30)
    assert found == [(0,)]
