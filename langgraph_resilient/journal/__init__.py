"""The journal of model calls: no finished call is paid for twice.

`request` says what a call asks, `matching` which recorded call answers it, `book` holds the rows.
"""

from langgraph_resilient.journal.book import JournalBook, Opened
from langgraph_resilient.journal.journal import Journal, ModelCall
from langgraph_resilient.journal.request import Request

__all__ = ["Journal", "JournalBook", "ModelCall", "Opened", "Request"]
