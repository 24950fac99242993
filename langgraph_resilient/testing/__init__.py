"""Test tools that ship with the package."""

from langgraph_resilient.testing.factories import amake_saver, make_saver

__all__ = ["amake_saver", "make_saver"]
