"""The only module that imports asyncio: moves one call onto the engine's own threads."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Offload:
    """Threads that do blocking work for coroutines of any event loop.

    No loop is captured, so one saver serves several loops, one after another or at once.
    """

    def __init__(self, threads: int):
        self._threads = threads
        self._executor: ThreadPoolExecutor | None = None

    async def run(self, function: Callable[[], T]) -> T:
        """Call `function` on a thread, the caller's context variables carried along.

        A cancelled caller does not stop the call: what was begun is finished, as a whole.
        """
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix="resilient")
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, context.run, function)

    def close(self) -> None:
        """Let the threads end when their work is done."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None
