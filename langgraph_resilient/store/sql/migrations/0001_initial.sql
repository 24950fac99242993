-- Facts about the database: identity, keys, how rows are sealed; and its counters. `clock` counts
-- the times blobs may have been deleted, `thread` the numbers given to threads.
CREATE TABLE resilient_meta (
    name TEXT PRIMARY KEY,
    number INTEGER NOT NULL,
    value BLOB NOT NULL
) WITHOUT ROWID;

-- A conversation. Its number is the upper part of the numbers of its blobs and templates and is
-- never used again; `spent` is the highest blob ordinal that was ever deleted.
CREATE TABLE resilient_threads (
    thread INTEGER PRIMARY KEY,
    thread_id TEXT NOT NULL UNIQUE,
    name_hash INTEGER NOT NULL,
    spent INTEGER NOT NULL,
    seal BLOB NOT NULL
);

-- The second way to a thread: damage to the first one must not look like a new thread.
CREATE INDEX resilient_threads_name_hash ON resilient_threads (name_hash);

-- A line of checkpoints: the root graph of a thread, or one of its subgraphs.
CREATE TABLE resilient_namespaces (
    ns INTEGER PRIMARY KEY,
    thread INTEGER NOT NULL,
    checkpoint_ns TEXT NOT NULL,
    head INTEGER NOT NULL,
    checkpoints INTEGER NOT NULL,
    tally BLOB NOT NULL,
    seal BLOB NOT NULL,
    UNIQUE (thread, checkpoint_ns)
);

-- `seq` is the order of writing. `parent` is how many places before this one the parent stands,
-- or its id where it is not in the namespace (any more); the seal is bound to the id.
CREATE TABLE resilient_checkpoints (
    seq INTEGER PRIMARY KEY,
    ns INTEGER NOT NULL,
    id BLOB NOT NULL,
    parent,
    frame BLOB NOT NULL
);

CREATE UNIQUE INDEX resilient_checkpoints_id ON resilient_checkpoints (ns, id);

-- What one task wrote while its checkpoint was current; may arrive before the checkpoint.
CREATE TABLE resilient_writes (
    ns INTEGER NOT NULL,
    checkpoint BLOB NOT NULL,
    task BLOB NOT NULL,
    frame BLOB NOT NULL,
    PRIMARY KEY (ns, checkpoint, task)
) WITHOUT ROWID;

-- Every distinct content once, in parts small enough to fill pages. `part` is blob << 8 | index
-- and blob is thread << 24 | ordinal, so a thread's contents are neighbours. The digest stands
-- with the first part.
CREATE TABLE resilient_blobs (
    part INTEGER PRIMARY KEY,
    digest BLOB,
    frame BLOB NOT NULL
);

CREATE UNIQUE INDEX resilient_blobs_digest ON resilient_blobs (digest)
WHERE digest IS NOT NULL;

-- Threads that use a blob made by another thread.
CREATE TABLE resilient_shares (
    thread INTEGER NOT NULL,
    blob INTEGER NOT NULL,
    PRIMARY KEY (thread, blob)
) WITHOUT ROWID;

CREATE INDEX resilient_shares_blob ON resilient_shares (blob);

-- Earlier envelopes or contents of a thread that later ones are compressed against; numbered
-- thread << 24 | ordinal.
CREATE TABLE resilient_templates (
    template INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    frame BLOB NOT NULL
);

-- Newest checkpoints of deleted threads: a late write must not bring one back.
CREATE TABLE resilient_tombstones (
    thread_hash BLOB NOT NULL,
    checkpoint BLOB NOT NULL,
    PRIMARY KEY (thread_hash, checkpoint)
) WITHOUT ROWID;
