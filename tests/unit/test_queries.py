"""The catalogue of SQL: every query is valid, used, and free of formatted values."""

from __future__ import annotations

import ast
import re
import sqlite3
from collections.abc import Iterator
from importlib import resources
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from serving import fresh_address

from langgraph_resilient.errors import SchemaTooNew
from langgraph_resilient.store import dialect, migrate, queries
from langgraph_resilient.store.sqlite import SqliteSession

ROOT = Path(__file__).parents[2] / "langgraph_resilient"
MODULES = sorted(ROOT.rglob("*.py"))
QUERIES = queries.load()
RUNNERS = {"all", "one", "run", "insert", "many"}
ONCE_A_STEP = [
    "clock",
    "thread_by_id",
    "thread_by_hash",
    "namespace",
    "checkpoint_by_id",
    "checkpoint_by_seq",
    "writes_of",
    "writes_one",
    "checkpoints_page",
    "blob_by_digest",
    "blob_parts",
    "blob_last",
    "template",
    "templates_of",
    "template_kinds",
    "namespace_move",
    "tombstone",
    "tombstones",
]
"""What every step or every read of a graph runs: it must never walk a table."""


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    made = sqlite3.connect(":memory:")
    migrate.upgrade(SqliteSession(made, "the database"), "the database")
    yield made
    made.close()


def plan(connection: sqlite3.Connection, sql: str) -> list[str]:
    rows = connection.execute(f"EXPLAIN QUERY PLAN {sql}", [None] * sql.count("?"))
    return [row[3] for row in rows]


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_is_valid_on_a_fresh_database(
    connection: sqlite3.Connection, name: str
) -> None:
    connection.execute(f"EXPLAIN {QUERIES[name]}", [None] * QUERIES[name].count("?"))


@pytest.mark.parametrize("name", ONCE_A_STEP)
def test_what_runs_at_every_step_uses_an_index(connection: sqlite3.Connection, name: str) -> None:
    walked = [step for step in plan(connection, QUERIES[name]) if step.startswith("SCAN")]
    assert all("CONSTANT ROW" in step for step in walked), walked


# --- on PostgreSQL ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    """A connection to a schema with our tables, on which a plan that walks a table is the last resort."""
    from langgraph_resilient import ResilientSaver

    with ResilientSaver.from_conn_string(fresh_address()) as saver:
        saver.conn.execute("SET enable_seqscan = off")
        saver.conn.execute("SET enable_bitmapscan = off")
        yield saver.conn


def planned(server: Any, name: str) -> list[str]:
    """The plan of a query for values that are not known yet."""
    numbers = count(1)
    text = re.sub("%s", lambda _: f"${next(numbers)}", dialect.catalogue()[name].decode())
    rows = server.execute(f"EXPLAIN (GENERIC_PLAN) {text}".encode()).fetchall()
    return [row[0] for row in rows]


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_is_valid_on_a_server(server: Any, name: str) -> None:
    planned(server, name)


@pytest.mark.parametrize("name", ONCE_A_STEP)
def test_what_runs_at_every_step_uses_an_index_on_a_server(server: Any, name: str) -> None:
    walked = [step for step in planned(server, name) if "Seq Scan" in step]
    assert walked == []


def test_what_differs_on_a_server_is_there_for_sqlite_too() -> None:
    different = queries.load("postgres")
    tables, _ = queries.newer_than(0)
    assert set(different) - set(QUERIES) - tables == set()
    words = re.compile(r"OR REPLACE|typeof|NOT INDEXED|\bBLOB\b|LIMIT -1")
    assert [
        name for name in different.keys() & QUERIES.keys() if words.search(different[name])
    ] == []


def test_a_migration_is_translated_column_by_column() -> None:
    script = """
CREATE TABLE resilient_x (
    name TEXT PRIMARY KEY,
    number INTEGER NOT NULL,
    value BLOB
) WITHOUT ROWID;
CREATE INDEX resilient_x_number ON resilient_x (number)
WHERE number < 4;
"""
    table, index = dialect.statements(script)
    assert '    name TEXT COLLATE "C" PRIMARY KEY,' in table
    assert "    number BIGINT NOT NULL," in table
    assert table.endswith("    value BYTEA\n)")
    assert index.startswith("CREATE INDEX")


# --- the catalogue as a whole -----------------------------------------------------------------


def texts() -> tuple[set[str], set[str]]:
    """Whole strings of the package, and the ends of the formatted ones that name a query."""
    whole, ends = set(), set()
    for module in MODULES:
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                whole.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                last = node.values[-1]
                if isinstance(last, ast.Constant) and re.fullmatch(r"_\w+", str(last.value)):
                    ends.add(str(last.value))
    return whole, ends


def test_every_query_is_used_somewhere() -> None:
    whole, ends = texts()
    unused = {name for name in QUERIES if name not in whole and not name.endswith(tuple(ends))}
    assert not unused


def test_every_query_that_is_named_exists() -> None:
    for module in MODULES:
        for node in ast.walk(ast.parse(module.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            session = ast.unparse(node.func.value).rsplit(".", 1)[-1].endswith("session")
            if session and node.func.attr in RUNNERS and isinstance(node.args[0], ast.Constant):
                name = node.args[0].value
                assert name in QUERIES, f"{module.name}:{node.lineno}: {name}"


# --- values never stand in the text of a statement --------------------------------------------

CONSTANTS = {"table", "columns", "marks", "names", "path", "name", "_MESSAGES"}
"""Names of tables, columns and pragmas out of our own code; see where they are used."""


def statements(module: Path) -> Iterator[tuple[int, ast.expr]]:
    for node in ast.walk(ast.parse(module.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("raw", "execute", "executemany", "executescript")
            and node.args
        ):
            yield node.lineno, node.args[0]


def formatted(text: ast.AST) -> Iterator[ast.expr]:
    """What is put into a text, by an f-string, an operator or ``format``."""
    if isinstance(text, ast.FormattedValue):
        yield text.value
    elif isinstance(text, ast.BinOp) or (
        isinstance(text, ast.Call) and ast.unparse(text.func).endswith(".format")
    ):
        yield text
    else:
        for part in ast.iter_child_nodes(text):
            yield from formatted(part)


def is_harmless(value: ast.expr, text: str) -> bool:
    source = ast.unparse(value)
    if source.startswith("int("):
        return True
    if "PRAGMA" in text:
        return source in CONSTANTS | {"self.options.synchronous"}
    return source in CONSTANTS or source == "' AND '.join(clauses)"


def test_no_value_is_formatted_into_sql() -> None:
    for module in MODULES:
        for line, text in statements(module):
            for value in formatted(text):
                source = ast.unparse(text)
                assert is_harmless(value, source), f"{module.name}:{line}: {ast.unparse(value)}"


def test_no_script_commits_behind_our_back() -> None:
    """``executescript`` commits the open transaction first."""
    for module in MODULES:
        assert ".executescript(" not in module.read_text(), module.name


# --- files ------------------------------------------------------------------------------------


def files() -> list[tuple[str, str]]:
    folder = resources.files("langgraph_resilient.store") / "sql"
    return [(f.name, f.read_text("utf-8")) for f in folder.iterdir() if f.name.endswith(".sql")]


def test_a_name_stands_for_one_query_only() -> None:
    names = [name for _, text in files() for name in re.findall(r"^-- name: (\w+)$", text, re.M)]
    assert len(names) == len(set(names)) == len(QUERIES)
    with pytest.raises(ValueError, match="defined twice"):
        queries.parse("-- name: a\nSELECT 1\n\n-- name: a\nSELECT 2\n")


@pytest.mark.parametrize(("file", "text"), files(), ids=lambda item: item[:16])
def test_every_query_has_a_comment_and_keywords_in_upper_case(file: str, text: str) -> None:
    for block in re.split(r"^-- name: ", text, flags=re.M)[1:]:
        name, comment, *rest = block.splitlines()
        assert comment.startswith("-- "), name
        assert rest[0].split()[0] in ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH"), name
        assert "*" not in "".join(rest).replace("count(*)", ""), f"{name}: name the columns"
        assert not re.search(r"['\"]?%s|\{\w*\}", "\n".join(rest)), name


# --- migrations -------------------------------------------------------------------------------


def test_migrations_are_numbered_without_gaps() -> None:
    numbers = [number for number, _ in queries.migrations()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert migrate.newest() == numbers[-1]


def test_a_migration_is_split_into_its_statements() -> None:
    script = "-- one; comment\nCREATE TABLE a (x);\n\n  -- two\nCREATE TABLE b (y);\n"
    assert queries.statements(script) == ["CREATE TABLE a (x)", "CREATE TABLE b (y)"]


def test_an_upgraded_database_is_left_alone_and_a_newer_one_refused(
    connection: sqlite3.Connection,
) -> None:
    session = SqliteSession(connection, "the database")
    tables = connection.execute("SELECT sql FROM sqlite_master").fetchall()
    assert migrate.upgrade(session, "the database") == migrate.newest()
    assert connection.execute("SELECT sql FROM sqlite_master").fetchall() == tables
    session.run("meta_put", "schema", migrate.newest() + 1, b"")
    with pytest.raises(SchemaTooNew, match="upgrade langgraph-resilient"):
        migrate.upgrade(session, "the database")


def test_a_foreign_database_has_version_zero() -> None:
    made = sqlite3.connect(":memory:")
    made.execute("CREATE TABLE checkpoints (x)")
    assert migrate.version_of(SqliteSession(made, "x")) == 0
    made.close()
