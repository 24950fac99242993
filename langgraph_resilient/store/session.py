"""What the domain speaks to: named queries inside a transaction that somebody else opened."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from langgraph_resilient.store.cache import Cache

Row = tuple[Any, ...]


class Session(ABC):
    """Runs named queries on one connection; each database has a class of its own.

    Args:
        missing: queries that find nothing, for want of tables.
    """

    def __init__(self, missing: frozenset[str] = frozenset()):
        self._missing = missing
        self.addresses: Cache | None = None
        """Where a reader may note which content it found where; nowhere by default."""
        self.bare = False
        """Whether our tables are missing: then every query of ours finds nothing."""

    @property
    @abstractmethod
    def connection(self) -> Any:
        """The connection, for a reader of foreign tables; transactions stay the opener's."""

    @abstractmethod
    def all(self, name: str, *parameters: Any) -> list[Row]:
        """Every row of a query."""

    @abstractmethod
    def one(self, name: str, *parameters: Any) -> Row | None:
        """The first row of a query, or None."""

    @abstractmethod
    def run(self, name: str, *parameters: Any) -> int:
        """Run a statement; how many rows it changed."""

    @abstractmethod
    def insert(self, name: str, *parameters: Any) -> int:
        """Run an INSERT; the number of the new row."""

    @abstractmethod
    def many(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each row."""

    @abstractmethod
    def raw(self, sql: str, *parameters: Any) -> list[Row]:
        """Run a statement that is not in the catalogue, with ``?`` for each parameter."""

    @abstractmethod
    def upgrade_statements(self, script: str) -> list[str]:
        """The statements of a migration script, as this database takes them."""

    @abstractmethod
    def relations(self) -> set[str]:
        """The names of our tables and indexes that are there."""

    @abstractmethod
    def pages(self) -> tuple[int, int, int]:
        """The size of a page in bytes, how many pages there are, and how many of them are free."""

    @abstractmethod
    def complaints(self, limit: int) -> list[str]:
        """What the database itself finds wrong with tables and indexes, so many findings at most."""
