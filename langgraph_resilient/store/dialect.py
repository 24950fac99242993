"""The catalogue of queries and the schema in PostgreSQL's words: translated once, when it is loaded.

Most of the text is the portable one. What truly differs stands in ``sql/postgres/*.sql``.
"""

from __future__ import annotations

import re
from functools import lru_cache

from langgraph_resilient.store import queries

_TABLE = re.compile(r"CREATE TABLE (\w+)")
_TYPES = {"INTEGER": "BIGINT", "BLOB": "BYTEA", "TEXT": 'TEXT COLLATE "C"'}
_COLUMN = re.compile(rf"^(    \w+) ({'|'.join(_TYPES)})\b", re.MULTILINE)
_IGNORE = "INSERT OR IGNORE INTO"


@lru_cache(maxsize=1)
def catalogue() -> dict[str, bytes]:
    """Every query by name, with the driver's placeholders."""
    different = queries.load("postgres")
    return {
        name: query(different.get(name, text)).encode() for name, text in queries.load().items()
    }


def query(text: str) -> str:
    """One query: placeholders, and two words that only SQLite has."""
    text = text.replace(" NOT INDEXED", "")
    if text.startswith(_IGNORE):
        text = f"INSERT INTO{text.removeprefix(_IGNORE)}\nON CONFLICT DO NOTHING"
    return text.replace("%", "%%").replace("?", "%s")


def statements(script: str) -> list[str]:
    """The statements of a migration script; texts are ordered by their bytes, as in SQLite."""
    different = queries.load("postgres")
    found = []
    for text in queries.statements(script):
        table = _TABLE.match(text)
        text = different.get(table[1], text) if table else text
        text = _COLUMN.sub(lambda part: f"{part[1]} {_TYPES[part[2]]}", text)
        found.append(text.removesuffix(" WITHOUT ROWID"))
    return found


RELATIONS = """
SELECT c.relname::text
FROM pg_class AS c
WHERE c.relnamespace = coalesce(
        (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('resilient_meta')),
        to_regnamespace(quote_ident(current_schema()))
    )
    AND c.relkind IN ('r', 'p', 'i')
    AND c.relname LIKE 'resilient\\_%'
    AND NOT EXISTS (SELECT 1 FROM pg_constraint AS k WHERE k.conindid = c.oid)
"""
"""Our tables and indexes, without those that make a key unique."""

FACTS = """
SELECT current_setting('transaction_read_only'),
    coalesce(
        (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('resilient_meta')),
        to_regnamespace(quote_ident(current_schema()))
    )::oid::int8,
    current_setting('synchronous_commit'),
    pg_postmaster_start_time()::text,
    extract(epoch FROM clock_timestamp())::float8
"""
"""What a writer must know of its server: may it write, which schema, how durable, since when."""

PAGES = """
SELECT current_setting('block_size')::int8,
    (
        SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::int8
        FROM pg_class
        WHERE relkind = 'r'
            AND relname LIKE 'resilient\\_%'
            AND relnamespace = (
                SELECT relnamespace FROM pg_class WHERE oid = to_regclass('resilient_meta')
            )
    ) / current_setting('block_size')::int8
"""
"""The size of a page, and how many our tables have with their indexes."""
