"""Small local servers that speak model providers' wire formats, for real clients on real sockets.

`server` knows HTTP, the log, the script and the faults; `openai_wire` and `anthropic_wire` know the
formats; `clients` makes the clients. None of them knows the package under test.
"""

from __future__ import annotations

from wire.server import Asked, Reply, Server, Story, Tool, last_said, reply

__all__ = ["Asked", "Reply", "Server", "Story", "Tool", "last_said", "reply"]
