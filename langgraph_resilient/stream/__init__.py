"""Streams: what a user has seen of an answer survives, and goes on where it stopped.

`buffer` stores chunks before they are shown, `continuation` decides how an interrupted answer goes
on, `reading` serves clients that come back.
"""

from langgraph_resilient.stream.buffer import StreamBuffer
from langgraph_resilient.stream.continuation import (
    Continuation,
    Strategy,
    choose,
    register_strategies,
)
from langgraph_resilient.stream.emitting import Emitter
from langgraph_resilient.stream.reading import StreamChunk, StreamReader

__all__ = [
    "Continuation",
    "Emitter",
    "Strategy",
    "StreamBuffer",
    "StreamChunk",
    "StreamReader",
    "choose",
    "register_strategies",
]
