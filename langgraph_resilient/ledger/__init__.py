"""The tool ledger: no finished call ever runs twice, no unknown outcome is guessed.

`decision` holds the rule, `flow` a call's way, `book` the rows, `outcome` what exceptions mean,
`policy` what a user may say about a tool.
"""

from langgraph_resilient.ledger.book import Book, ThreadHeld
from langgraph_resilient.ledger.context import current_call, innermost, running
from langgraph_resilient.ledger.entry import Entry
from langgraph_resilient.ledger.flow import tool_flow, unknown_text
from langgraph_resilient.ledger.invocation import SPENT, Asked, CurrentCall, Invocation
from langgraph_resilient.ledger.ledger import Ledger
from langgraph_resilient.ledger.lookup import Reading
from langgraph_resilient.ledger.policy import (
    Done,
    NotDone,
    ToolPolicy,
    effect,
    policy_of,
    resolved,
)

__all__ = [
    "SPENT",
    "Asked",
    "Book",
    "CurrentCall",
    "Done",
    "Entry",
    "Invocation",
    "Ledger",
    "NotDone",
    "Reading",
    "ThreadHeld",
    "ToolPolicy",
    "current_call",
    "effect",
    "innermost",
    "policy_of",
    "resolved",
    "running",
    "tool_flow",
    "unknown_text",
]
