"""Brings a database to the schema of this release: numbered scripts, each with its record."""

from __future__ import annotations

from langgraph_resilient.errors import DatabaseCorrupt, SchemaTooNew
from langgraph_resilient.store import queries
from langgraph_resilient.store.session import Session


def version_of(session: Session) -> int:
    """The schema version of the database; 0 when it has none of our tables."""
    if "resilient_meta" not in session.relations():
        return 0
    row = session.raw("SELECT number FROM resilient_meta WHERE name = 'schema'")
    return int(row[0][0]) if row else 0


def newest() -> int:
    """The schema version this release writes."""
    return queries.migrations()[-1][0]


def check(version: int, where: str) -> None:
    """Refuse a schema that this release does not know.

    Raises:
        SchemaTooNew: the file was written by a newer release.
    """
    if version > newest():
        raise SchemaTooNew(
            f"{where} has schema version {version}, this release knows up to {newest()}; "
            "upgrade langgraph-resilient to open it"
        )


def missing(session: Session, version: int, where: str) -> frozenset[str]:
    """The queries that find nothing in a database of this schema version, for want of tables.

    Raises:
        DatabaseCorrupt: the tables are there, so its version is not what it says.
    """
    if version == newest():
        return frozenset()
    tables, about = queries.newer_than(version)
    for name in session.relations():
        if name in tables:
            raise DatabaseCorrupt(
                f"{where} says that its schema version is {version}, and has the table {name} of a "
                "newer one; restore a copy"
            )
    return about


def upgrade(session: Session, where: str) -> int:
    """Apply every missing script inside the caller's write transaction; the version reached.

    Two processes may do this at once: the write transaction makes the second one see the first
    one's work.
    """
    version = version_of(session)
    check(version, where)
    for number, script in queries.migrations():
        if number > version:
            for statement in session.upgrade_statements(script):
                session.raw(statement)
            session.run("meta_put", "schema", number, b"")
            version = number
    return version
