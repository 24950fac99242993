"""What the functions of maintenance are given: an open saver, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from langgraph_resilient.engine import Engine
from langgraph_resilient.errors import ConfigurationError

if TYPE_CHECKING:
    from langgraph_resilient.saver import ResilientSaver


def engine_of(saver: ResilientSaver) -> Engine:
    """The engine of a saver.

    Raises:
        ConfigurationError: it is a path or another checkpointer.
    """
    engine = getattr(saver, "_engine", None)
    if not isinstance(engine, Engine):
        kind = f"{type(saver).__module__}.{type(saver).__qualname__}"
        raise ConfigurationError(
            f"maintenance takes an open ResilientSaver, not a {kind.removeprefix('builtins.')}; "
            'open one: with ResilientSaver.from_conn_string("agent.db") as saver: …'
        )
    return engine


def keep_held(saver: ResilientSaver, thread_id: str | None = None) -> None:
    """Store what a snapshot policy holds back, of one thread or of all, before they are worked on.

    Raises:
        ConfigurationError: see `engine_of`.
    """
    engine_of(saver)
    saver._keep(thread_id)
