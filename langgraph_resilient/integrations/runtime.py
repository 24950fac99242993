"""What a running graph's config tells: its saver, its thread, where in the graph this is.

The only module that knows the names of LangGraph's internal config keys.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config

from langgraph_resilient._aio import in_task
from langgraph_resilient.errors import NoSaver
from langgraph_resilient.ledger import Asked
from langgraph_resilient.saver import ResilientSaver

logger = logging.getLogger(__name__)

CHECKPOINTER = "__pregel_checkpointer"
SCRATCHPAD = "__pregel_scratchpad"
SEND = "__pregel_send"
READ = "__pregel_read"
READ_STATE = "__pregel_read_state"
RESUME_MAP = "__pregel_resume_map"
DURABILITY = "__pregel_durability"
TASK_ID = "__pregel_task_id"
RUNTIME = "__pregel_runtime"
PUSH = "__pregel_push"
CALL = "__pregel_call"
OPTIONS = "resilient"
"""Key in ``config["configurable"]`` under which a run may say things, such as ``reexecute``."""

_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class Place:
    """A task of a running graph, seen through its config."""

    config: RunnableConfig
    saver: ResilientSaver

    @property
    def configurable(self) -> Mapping[str, Any]:
        """The config's ``configurable``."""
        return self.config.get("configurable") or {}

    @property
    def thread_id(self) -> str:
        """The thread that runs."""
        return str(self.configurable.get("thread_id", ""))

    @property
    def task_id(self) -> str:
        """The task; it may be another one after a crash."""
        return str(self.configurable.get(TASK_ID, ""))

    @property
    def checkpoint_ns(self) -> str:
        """The task's namespace."""
        return str(self.configurable.get("checkpoint_ns", ""))

    @property
    def graph_ns(self) -> str:
        """The namespace of the graph that the task belongs to.

        A task that another one calls (functional API) is a part of the namespace, and of no graph
        of its own.
        """
        parts, path = self.checkpoint_ns.split("|")[:-1], self.path
        while len(path) > 1 and path[0] == PUSH and isinstance(path[1], tuple):
            parts, path = parts[:-1], path[1]
        return "|".join(parts)

    @property
    def path(self) -> tuple[Any, ...]:
        """Where in its step the task stands; no part of it changes in a crash."""
        return tuple((self.config.get("metadata") or {}).get("langgraph_path") or ())

    @property
    def step(self) -> Any:
        """The step of its graph."""
        return (self.config.get("metadata") or {}).get("langgraph_step")

    @property
    def scratchpad(self) -> Any:
        """LangGraph's notes for this run of the task, or None."""
        return self.configurable.get(SCRATCHPAD)

    @property
    def attempt(self) -> int:
        """Which try of the node this is, counting LangGraph's own retries."""
        info = getattr(self.configurable.get(RUNTIME), "execution_info", None)
        return int(getattr(info, "node_attempt", 1) or 1)

    @property
    def asked(self) -> Asked | None:
        """The checkpoint that holds the request; None when nothing is stored before the end."""
        if self.configurable.get(DURABILITY) == "exit":
            warn_once(
                "exit",
                'durability="exit" stores no checkpoint before the end of a run, so an external '
                "tool call starts before its request is durable; the ledger keeps it from running twice "
                "only where the model's calls are journaled, so that the same message asks again. "
                'Use "sync" or "async" where calls matter',
            )
            return None
        ids = self.configurable.get("checkpoint_map") or {}
        # A graph compiled with checkpointer=False runs within one that is stored: that one's
        # checkpoint is what a resume begins from.
        ns = self.graph_ns if self._is_stored else ""
        id = ids.get(ns)
        return Asked(checkpoint_ns=ns, checkpoint_id=str(id)) if id else None

    @property
    def is_single_call(self) -> bool:
        """Whether the task was made by ``Send`` for one tool call, as `create_agent` does."""
        path = self.path
        if len(path) < 2 or path[0] != PUSH or not isinstance(path[1], int):
            return False
        task = self._running("args", 0)
        given = getattr(task() if callable(task) else None, "input", None)
        if isinstance(given, list):
            return len(given) == 1 and isinstance(given[0], dict)
        return isinstance(given, dict) and given.get("__type") == "tool_call_with_context"

    @property
    def _is_stored(self) -> bool:
        """Whether the graph that the task belongs to stores checkpoints at all.

        No key of the config says so: those of a graph without a saver show its parent's saver.
        """
        loop = getattr(self._running("keywords", "schedule_task"), "__self__", None)
        return loop is None or getattr(loop, "checkpointer", loop) is not None

    def _running(self, part: str, which: Any) -> Any:
        """What LangGraph bound to the function by which a task calls others, or None."""
        try:
            return getattr(self.configurable.get(CALL), part)[which]
        except (AttributeError, LookupError):
            return None

    def reexecute(self, *names: str) -> bool:
        """Whether this run wants a call of one of these names run anew."""
        options = self.configurable.get(OPTIONS) or {}
        wanted = options.get("reexecute") or ()
        return any(name in wanted for name in names)

    def state(self) -> Any:
        """The state of the graph, for who was not given it; None outside a graph's task."""
        read_state = self.configurable.get(READ_STATE)
        if read_state is not None:
            return read_state()
        read = self.configurable.get(READ)
        try:
            return None if read is None else read(list(read.args[1]), True)
        except (AttributeError, IndexError, TypeError):
            return None


def place_of(
    config: RunnableConfig | None, saver: ResilientSaver | None, *, passthrough: bool
) -> Place | None:
    """Where a config leads; None when there is no resilient saver and that is allowed.

    Raises:
        NoSaver: there is none, and it is not allowed.
    """
    configurable = (config or {}).get("configurable") or {}
    found = configurable.get(CHECKPOINTER)
    if isinstance(found, ResilientSaver):
        saver = found
    if saver is not None and "thread_id" in configurable and config is not None:
        return Place(config, saver)
    if passthrough:
        return None
    what = "has none" if found is None else f"has a {type(found).__name__}"
    raise NoSaver(
        f"a recorded tool needs the graph to be compiled with a ResilientSaver; this one {what}. "
        "Compile it with checkpointer=ResilientSaver.from_conn_string(...) and give a thread_id, "
        "or pass passthrough=True to run tools unrecorded there"
    )


def running_config() -> RunnableConfig | None:
    """The config of the task that this code runs in; None outside a graph.

    LangGraph hands it to coroutines from Python 3.11 on only.
    """
    try:
        return get_config()
    except RuntimeError:
        if sys.version_info < (3, 11) and in_task():
            warn_once(
                "blind",
                "on Python 3.10 LangGraph does not tell coroutines which graph they run in, so what "
                "async nodes ask of models is not journaled, and is paid for again after a crash; use "
                "Python 3.11 or later, or invoke instead of ainvoke",
            )
        return None


def warn_once(key: str, message: str, *arguments: Any) -> None:
    """Log a warning the first time in this process."""
    if key not in _warned:
        _warned.add(key)
        logger.warning(message, *arguments)
