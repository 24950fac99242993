"""What maintenance reports: frozen values, ready to be printed or turned into JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a long piece of work has come.

    Attributes:
        done: units done.
        total: units there are, or None when that is not known.
        what: what is being done, for a person.
    """

    done: int
    total: int | None
    what: str


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadInfo:
    """One thread.

    Attributes:
        thread_id: its name.
        checkpoints: how many there are in all its namespaces.
        namespaces: how many namespaces it has.
        writes: tasks whose writes are stored.
        bytes: stored bytes of the thread's own rows; contents it shares count for their maker.
        first_ts: time of the checkpoint written first (ISO 8601), None if it cannot be read.
        last_ts: time of the one written last.
        source: ``"resilient"``, or ``"sqlite"`` for one that is only in ``SqliteSaver``'s tables.
        calls: tool calls that the ledger has of it.
        unknown_calls: those of them whose outcome nobody knows, or can read.
        model_calls: model calls that the journal has of it.
        snapshots: checkpoints ``stored`` so far, pruned ones included, ``skipped`` by a policy, and
            ``bridged``: stored with a parent link that leads over skipped ones.
        ttl: seconds it lives after it was last written to; None for ever.
        expires_at: when that is over (ISO 8601), if nobody goes on with it.
    """

    thread_id: str
    checkpoints: int
    namespaces: int
    writes: int
    bytes: int
    first_ts: str | None
    last_ts: str | None
    source: str
    calls: int = 0
    unknown_calls: int = 0
    model_calls: int = 0
    snapshots: dict[str, int] = field(default_factory=dict)
    ttl: float | None = None
    expires_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What a database holds and what it takes. Sizes are bytes.

    Attributes:
        path: the file, or a word for a database without one.
        file_bytes: size of the file (of the pages, for a database in memory).
        wal_bytes: size of the write-ahead log beside it.
        ttl_threads: threads with a time to live of their own.
        snapshots: checkpoints of the threads that are there: ``stored`` so far, pruned ones
            included, ``skipped`` by a policy, and ``bridged`` over skipped ones. What a killed process
            had skipped since it last stored one is not counted.
        blobs: distinct contents.
        blob_bytes: what they take, compressed and sealed.
        blob_raw_bytes: what they hold.
        shared_blobs: contents that more than one thread uses.
        template_bytes: what contents and envelopes are compressed against.
        envelope_bytes: checkpoints without their contents.
        write_bytes: pending writes without their contents.
        calls: tool calls by their state (``started``, ``unknown``, ``suspended``, ``failed``,
            ``succeeded``); one whose process died counts as unknown.
        call_bytes: what they take, without their contents.
        model_calls: model calls by their state (``started``, ``ended``, ``interrupted``,
            ``retired``, ``failed``, ``discarded``).
        model_call_bytes: what they take, without their contents.
        stream_bytes: what streams have shown whose answers' checkpoints are not durable yet.
        free_bytes: inside the file, free for new rows; ``VACUUM`` gives them back.
        old_threads: threads that are only in ``SqliteSaver``'s tables.
        mode: how rows are sealed: ``checksum``, ``keyed`` or ``cipher``.
        schema: the schema version.
    """

    path: str
    file_bytes: int
    wal_bytes: int
    threads: int
    ttl_threads: int
    namespaces: int
    checkpoints: int
    snapshots: dict[str, int]
    writes: int
    blobs: int
    blob_bytes: int
    blob_raw_bytes: int
    shared_blobs: int
    templates: int
    template_bytes: int
    envelope_bytes: int
    write_bytes: int
    calls: dict[str, int]
    call_bytes: int
    model_calls: dict[str, int]
    model_call_bytes: int
    stream_bytes: int
    page_size: int
    free_bytes: int
    old_threads: int
    mode: str
    schema: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it was written.

    Attributes:
        kind: where it is: ``file``, ``schema``, ``clock``, ``rollback``, ``thread``,
            ``namespace``, ``checkpoint``, ``writes``, ``call``, ``lease``, ``journal``,
            ``stream``, ``blob``, ``template``, ``share``, ``orphan``.
        message: what is wrong, for a person.
        thread_id: the thread that is hit, where known.
        checkpoint_id: the checkpoint that is hit, where known.
        channel: the channel that is hit, where known.
    """

    kind: str
    message: str
    thread_id: str | None = None
    checkpoint_id: str | None = None
    channel: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What a verification came to.

    Attributes:
        ok: whether there is no finding.
        checked: how many of each there were. ``unreachable_blobs`` are contents that nothing
            names any more, which is no damage; ``not_restored`` are values whose class strict mode
            refuses; ``opaque`` are values of a serializer that was not given.
        findings: everything that was found.
    """

    ok: bool
    checked: dict[str, int]
    findings: list[Finding]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A thread that was left out, and why."""

    thread_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrateReport:
    """What a migration came to.

    Attributes:
        threads: threads moved by this run.
        checkpoints: their checkpoints.
        writes: their pending writes.
        verified: threads whose every tuple reads the same from both tables, those that an earlier
            run moved included.
        dropped: threads whose old rows were deleted.
        skipped: threads that were left as they are, each with the reason.
    """

    threads: int
    checkpoints: int
    writes: int
    verified: int
    dropped: int
    skipped: list[Skipped]


@dataclass(frozen=True, slots=True)
class Lossy:
    """A value that ``SqliteSaver`` does not give back as it is.

    Attributes:
        thread_id: the thread.
        channel: the channel, or the key of the metadata.
        type_name: what holds the difference.
    """

    thread_id: str
    channel: str
    type_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What an export came to.

    Attributes:
        threads: threads written.
        checkpoints: checkpoints written, those added for pruned threads included.
        writes: pending writes written.
        bytes: size of the new file.
        lossy: values that ``SqliteSaver`` gives back changed, one entry a thread, channel and type.
        skipped: threads that ``SqliteSaver`` cannot store, each with the reason.
    """

    threads: int
    checkpoints: int
    writes: int
    bytes: int
    lossy: list[Lossy]
    skipped: list[Skipped]


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport:
    """What pruning removed, or would remove.

    Attributes:
        threads: threads of which something went.
        checkpoints: checkpoints that went, with their writes.
        model_calls: rows of the journal that went.
        calls: rows of the ledger that went.
        dry_run: whether nothing was changed.
        skipped: threads that are damaged and were left as they are, each with the reason.
    """

    threads: int
    checkpoints: int
    model_calls: int
    calls: int
    dry_run: bool
    skipped: list[Skipped]


@dataclass(frozen=True, slots=True, kw_only=True)
class GcReport:
    """What a collection removed, or would remove.

    Attributes:
        threads: threads that were cleaned.
        blobs: contents that nothing named any more.
        shares: notes that a thread uses another's content.
        templates: what no frame was compressed against any more.
        chunks: blocks of streams whose answers are durable.
        tombstones: checkpoints of deleted threads that were remembered for long enough.
        bytes: what all that took; inside the file it is free for new rows, `compact` gives it back.
        dry_run: whether nothing was changed.
        skipped: threads that are damaged and were left as they are, each with the reason.
    """

    threads: int
    blobs: int
    shares: int
    templates: int
    chunks: int
    tombstones: int
    bytes: int
    dry_run: bool
    skipped: list[Skipped]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport:
    """What a compaction came to. Sizes are bytes.

    Attributes:
        threads: threads that were packed.
        frames: stored values that stand in archives now.
        frame_bytes_before: what all frames of these threads took.
        frame_bytes_after: what they take now, archives included.
        file_bytes_before: size of the database, its write-ahead log copied into the file.
        file_bytes_after: its size now.
        vacuumed: whether free space was given back to the file system.
        not_vacuumed_because: why not; empty when it was.
        dry_run: whether nothing was changed.
        skipped: threads that are damaged and were left as they are, each with the reason.
    """

    threads: int
    frames: int
    frame_bytes_before: int
    frame_bytes_after: int
    file_bytes_before: int
    file_bytes_after: int
    vacuumed: bool
    not_vacuumed_because: str
    dry_run: bool
    skipped: list[Skipped]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireReport:
    """Which threads were deleted, or would be.

    Attributes:
        threads: their names.
        dry_run: whether nothing was changed.
        skipped: old threads that were left as they are, each with the reason.
    """

    threads: list[str]
    dry_run: bool
    skipped: list[Skipped]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """What was copied of a thread, or would be; all zero when there is no such thread.

    Attributes:
        checkpoints: how many.
        writes: tasks whose pending writes were copied.
        calls: rows of the ledger.
        model_calls: rows of the journal that are not retired.
        dry_run: whether nothing was changed.
    """

    checkpoints: int
    writes: int
    calls: int
    model_calls: int
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """A checkpoint that is lost, and why.

    Attributes:
        checkpoint_ns: its namespace.
        checkpoint_id: its id; empty where nothing is left of it.
        reason: what is damaged.
    """

    checkpoint_ns: str
    checkpoint_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """What falling back to intact checkpoints costs.

    Attributes:
        lost: damaged checkpoints that went, or would go, newest first.
        hopeless: namespaces in which no checkpoint is intact; they stay as they are.
        dry_run: whether nothing was changed.
    """

    lost: list[Lost]
    hopeless: list[str]
    dry_run: bool
