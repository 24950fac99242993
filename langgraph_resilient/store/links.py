"""Connections to a PostgreSQL server: how they are made, and what values look like on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.adapt import Dumper, Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Format, TransactionStatus
from psycopg.types.numeric import Int8BinaryDumper

from langgraph_resilient.errors import ConfigurationError
from langgraph_resilient.store.postgres_failures import translated

if TYPE_CHECKING:
    from psycopg.abc import Buffer

_OLDEST = 130_000
_TEXT = 25
"""PostgreSQL's number of the type TEXT."""
_ESCAPE = "\ufdd0"
"""PostgreSQL's texts hold no NUL, and no text of a human's holds this noncharacter of Unicode."""
_DEFAULTS = {
    "application_name": "langgraph-resilient",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
"""Unless the connection string says otherwise: a dead line is noticed within a minute."""


class Link(psycopg.Connection[Any]):
    """A connection in autocommit mode; transactions are begun and ended in words."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open on it."""
        return not self.closed and self.info.transaction_status is not TransactionStatus.IDLE


class _TextDumper(Dumper):
    """Any text without lone surrogates, NUL included."""

    oid = _TEXT

    def dump(self, obj: str) -> Buffer:
        if "\0" in obj or _ESCAPE in obj:
            obj = obj.replace(_ESCAPE, _ESCAPE + "1").replace("\0", _ESCAPE + "0")
        return obj.encode()


class _TextLoader(Loader):
    format = Format.BINARY

    def load(self, data: Buffer) -> str:
        text = bytes(data).decode()
        if _ESCAPE in text:
            text = text.replace(_ESCAPE + "0", "\0").replace(_ESCAPE + "1", _ESCAPE)
        return text


def _is_torn(text: str) -> bool:
    """Whether a part of a password would be taken for a host or a database, and shown."""
    place, _, query = text.partition("://")[2].partition("?")
    authority, _, database = place.partition("/")
    return authority.count("@") > 1 or "@" in database or "@" in query.partition("=")[0]


def _read(text: str) -> dict[str, Any] | None:
    try:
        return conninfo_to_dict(text)
    except psycopg.Error:  # its words quote the string
        return None


class Address:
    """Where a server's database is, from a connection string that may hold a password.

    Raises:
        ConfigurationError: the string is malformed.
    """

    def __init__(self, text: str):
        given = None if _is_torn(text) else _read(text)
        if given is None:
            raise ConfigurationError(
                "the PostgreSQL connection string cannot be read; its form is "
                "postgresql://user:password@host:5432/database?option=value, in which special "
                "characters of a password are percent-encoded"
            )
        defaults = dict(_DEFAULTS)
        if "," in (given.get("host") or given.get("hostaddr") or ""):
            # Readers must see what was written: all connections go to the one that writes.
            defaults["target_session_attrs"] = "primary"
        self._given = make_conninfo("", **{**defaults, **given})
        named = given.get("dbname") or given.get("user") or given.get("service") or "(default)"
        self.where = f"PostgreSQL database {named} on {given.get('host') or 'the default host'}"

    def connect(self) -> Link:
        """A new connection.

        Raises:
            DatabaseUnreachable: there is none to be had.
        """
        try:
            link = Link.connect(self._given, autocommit=True)
        except psycopg.Error as error:
            raise translated(error, self.where) from error
        if link.info.server_version < _OLDEST:
            link.close()
            raise ConfigurationError(f"{self.where}: PostgreSQL 13 or newer is needed")
        # One type for all integers: one plan for each query, and sums that cannot overflow.
        link.adapters.register_dumper(int, Int8BinaryDumper)
        link.adapters.register_dumper(str, _TextDumper)
        link.adapters.register_loader(_TEXT, _TextLoader)
        return link
