"""Walks through tables in pages, past rows that cannot be read. Knows no values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from langgraph_resilient.engine import Engine
from langgraph_resilient.errors import DatabaseCorrupt
from langgraph_resilient.store import rows
from langgraph_resilient.store.session import Row, Session

PAGE = 1000
_INDEX = (1 << rows.PART_BITS) - 1


@contextmanager
def snapshot(engine: Engine) -> Iterator[Session]:
    """A session whose queries see one state, also on a connection that the user gave."""
    engine.open()
    with engine.db.read() as session:
        begun = engine.db.single and not session.connection.in_transaction
        if begun:
            session.raw("BEGIN")
        try:
            yield session
        finally:
            if begun and session.connection.in_transaction:
                session.raw("ROLLBACK")


@dataclass(slots=True)
class Page:
    """Rows behind a key, and how to go on.

    Attributes:
        rows: what was read.
        unreadable: keys of rows that SQLite could not give, each with its error.
        after: the last key looked at.
        done: whether nothing comes behind it.
    """

    rows: list[Row]
    after: tuple[Any, ...]
    done: bool
    unreadable: list[tuple[tuple[Any, ...], Exception]] = field(default_factory=list)


def page(
    session: Session, name: str, after: tuple[Any, ...], bounds: Sequence[Any], size: int = PAGE
) -> Page:
    """The next rows of the query ``<name>_page``; a bad row is left out and named.

    Raises:
        DatabaseCorrupt: not even the keys can be walked from here on.
    """
    try:
        found = session.all(f"{name}_page", *after, *bounds, size)
    except DatabaseCorrupt:
        return _one(session, name, after, bounds)
    last = tuple(found[-1][: len(after)]) if found else after
    return Page(found, last, len(found) < size)


def _one(session: Session, name: str, after: tuple[Any, ...], bounds: Sequence[Any]) -> Page:
    key = session.one(f"{name}_key", *after, *bounds)
    if key is None:
        return Page([], after, True)
    try:
        found = session.all(f"{name}_page", *after, *bounds, 1)
    except DatabaseCorrupt as error:
        return Page([], tuple(key), False, [(tuple(key), error)])
    return Page(found, tuple(key), False)


# --- contents ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Content:
    """A content as it stands in its parts.

    Attributes:
        blob: its number.
        address: what stands in the column of the digest; None for one in an archive.
        stored: the sealed frame, or None when the parts do not fit each other.
    """

    blob: int
    address: Any
    stored: bytes | None


def contents(session: Session, after: tuple[Any, ...], last: int) -> tuple[list[Content], Page]:
    """The next whole contents up to part `last`, and the page they were on.

    Raises:
        DatabaseCorrupt: not even the keys can be walked from here on.
    """
    try:
        rows_ = session.all("parts_page", *after, last, PAGE)
    except DatabaseCorrupt:
        found = _one_content(session, after, last)
    else:
        found = Page(rows_, (rows_[-1][0],) if rows_ else after, len(rows_) < PAGE)
    groups: dict[int, list[Row]] = {}
    for row in found.rows:
        groups.setdefault(row[0] >> rows.PART_BITS, []).append(row)
    if not found.done and len(groups) > 1:
        cut, _ = groups.popitem()  # its other parts may be on the next page
        found.after = ((cut << rows.PART_BITS) - 1,)
    return [_content(blob, parts) for blob, parts in groups.items()], found


def _one_content(session: Session, after: tuple[Any, ...], last: int) -> Page:
    key = session.one("parts_key", *after, last)
    if key is None:
        return Page([], after, True)
    blob = key[0] >> rows.PART_BITS
    first, end = rows.part_bounds(blob, blob)
    try:
        return Page(session.all("blob_parts", first, end), (end,), False)
    except DatabaseCorrupt as error:
        return Page([], (end,), False, [((blob,), error)])


def _content(blob: int, parts: list[Row]) -> Content:
    fits = all(
        row[0] & _INDEX == index and not (index and row[1] is not None) and type(row[2]) is bytes
        for index, row in enumerate(parts)
    )
    return Content(blob, parts[0][1], b"".join(row[2] for row in parts) if fits else None)
