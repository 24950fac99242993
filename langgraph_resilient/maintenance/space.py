"""The database as a whole: how large it is, and giving its free space back."""

from __future__ import annotations

from langgraph_resilient.engine import Engine


def file_bytes(engine: Engine) -> int:
    """The bytes of the database's pages, those included that are still in the write-ahead log."""
    with engine.db.read() as session:
        size, pages, _ = session.pages()
    return size * pages


def vacuum(engine: Engine) -> str:
    """Give the free space back; why not, or nothing when it is done.

    Never waits for another process that writes, and changes nothing then.
    """
    return engine.db.shrink()
