"""The number of this process, without asking the system each time."""

from __future__ import annotations

import os

_number = os.getpid()


def _forked() -> None:
    global _number
    _number = os.getpid()


# Python runs this in the child of every fork, before anything else.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def pid() -> int:
    """The number of this process; another one in a forked child."""
    return _number
