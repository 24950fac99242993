"""Test tools that ship with the package: prove your own agent crash-safe.

Nothing is loaded before it is used, so that the pytest plugin costs nothing where it is idle.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langgraph_resilient.testing.databases import failing, slow
    from langgraph_resilient.testing.effects import EffectLog, LoggedEffect
    from langgraph_resilient.testing.factories import amake_saver, make_saver
    from langgraph_resilient.testing.faults import POINTS, Faults, fault_point
    from langgraph_resilient.testing.report import Kill, SweepReport
    from langgraph_resilient.testing.sweep import assert_crash_safe, crash_sweep

__all__ = [
    "POINTS",
    "EffectLog",
    "Faults",
    "Kill",
    "LoggedEffect",
    "SweepReport",
    "amake_saver",
    "assert_crash_safe",
    "crash_sweep",
    "failing",
    "fault_point",
    "make_saver",
    "slow",
]
_MODULES = {
    "databases": ("failing", "slow"),
    "effects": ("EffectLog", "LoggedEffect"),
    "factories": ("amake_saver", "make_saver"),
    "faults": ("POINTS", "Faults", "fault_point"),
    "report": ("Kill", "SweepReport"),
    "sweep": ("assert_crash_safe", "crash_sweep"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """A public name, from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
