"""The resume guard: what has changed since a run stopped, and going on with runs that a crash has left.

`environment` says what a graph is made of, `comparing` what differs, `waiting` what a run was about to do,
`guarding` puts it before a graph, `stopped` and `recovering` find and resume what is left.
"""

from langgraph_resilient.guard.comparing import Change
from langgraph_resilient.guard.guarding import guarded
from langgraph_resilient.guard.preconditions import Precondition
from langgraph_resilient.guard.recovering import Recovery, arecover, recover
from langgraph_resilient.guard.stopped import Unfinished, aunfinished, unfinished

__all__ = [
    "Change",
    "Precondition",
    "Recovery",
    "Unfinished",
    "arecover",
    "aunfinished",
    "guarded",
    "recover",
    "unfinished",
]
