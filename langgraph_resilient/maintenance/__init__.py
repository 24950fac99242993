"""Plain functions that look after a database: count, verify, migrate, export, make smaller.

Each takes an open saver, works in short sessions beside running agents, and can be interrupted at
any moment without leaving a half-done change.
"""

from langgraph_resilient.maintenance.compaction import compact
from langgraph_resilient.maintenance.duplicating import copy_thread
from langgraph_resilient.maintenance.expiring import expire, expires_at
from langgraph_resilient.maintenance.exporting import export
from langgraph_resilient.maintenance.garbage import gc
from langgraph_resilient.maintenance.inventory import stats, threads
from langgraph_resilient.maintenance.migration import migrate
from langgraph_resilient.maintenance.pruning import all_threads, prune
from langgraph_resilient.maintenance.rekeying import RekeyReport, rekey
from langgraph_resilient.maintenance.repairing import repair
from langgraph_resilient.maintenance.reports import (
    CompactReport,
    CopyReport,
    ExpireReport,
    ExportReport,
    Finding,
    GcReport,
    Lossy,
    Lost,
    MigrateReport,
    OnProgress,
    Progress,
    PruneReport,
    RepairReport,
    Skipped,
    Stats,
    ThreadInfo,
    VerifyReport,
)
from langgraph_resilient.maintenance.verification import verify

__all__ = [
    "CompactReport",
    "CopyReport",
    "ExpireReport",
    "ExportReport",
    "Finding",
    "GcReport",
    "Lossy",
    "Lost",
    "MigrateReport",
    "OnProgress",
    "Progress",
    "PruneReport",
    "RekeyReport",
    "RepairReport",
    "Skipped",
    "Stats",
    "ThreadInfo",
    "VerifyReport",
    "all_threads",
    "compact",
    "copy_thread",
    "expire",
    "expires_at",
    "export",
    "gc",
    "migrate",
    "prune",
    "rekey",
    "repair",
    "stats",
    "threads",
    "verify",
]
