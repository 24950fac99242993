-- What PostgreSQL says in other words; all other queries are taken as they are.

-- name: meta_put
-- Set one fact.
INSERT INTO resilient_meta (name, number, value)
VALUES (?, ?, ?)
ON CONFLICT (name) DO UPDATE
SET number = excluded.number, value = excluded.value

-- name: thread_taken
-- A number was given to a thread.
UPDATE resilient_meta
SET number = greatest(number, ?)
WHERE name = 'thread'

-- name: namespace_next
-- The number the next namespace gets; a number is never reused while rows carry it.
SELECT 1 + greatest(
    (SELECT coalesce(max(ns), 0) FROM resilient_namespaces),
    (SELECT coalesce(max(ns), 0) FROM resilient_writes),
    (SELECT coalesce(max(ns), 0) FROM resilient_checkpoints)
)

-- name: checkpoint_insert
-- A new checkpoint behind all others; nothing where it is there already.
INSERT INTO resilient_checkpoints (seq, ns, id, parent, parent_id, frame)
SELECT place, ?, ?, place - ?, CAST(? AS BYTEA), ?
FROM (SELECT coalesce(max(seq), 0) + 1 AS place FROM resilient_checkpoints) AS last
ON CONFLICT (ns, id) DO NOTHING
RETURNING seq

-- name: checkpoint_replace
-- The same checkpoint put again keeps its place.
UPDATE resilient_checkpoints
SET parent = seq - ?, parent_id = CAST(? AS BYTEA), frame = ?
WHERE seq = ?

-- name: checkpoint_by_id
-- One checkpoint.
SELECT c.seq, c.id,
    coalesce(
        (
            SELECT p.id
            FROM resilient_checkpoints AS p
            WHERE p.seq = c.seq - c.parent
                AND p.ns = c.ns
        ),
        c.parent_id
    ),
    c.frame
FROM resilient_checkpoints AS c
WHERE c.id = ?
    AND c.ns = ?

-- name: checkpoint_by_seq
-- One checkpoint by its place.
SELECT c.seq, c.id,
    coalesce(
        (
            SELECT p.id
            FROM resilient_checkpoints AS p
            WHERE p.seq = c.seq - c.parent
                AND p.ns = c.ns
        ),
        c.parent_id
    ),
    c.frame
FROM resilient_checkpoints AS c
WHERE c.seq = ?
    AND c.ns = ?

-- name: checkpoint_at
-- A checkpoint by its place, with its namespace.
SELECT c.seq, c.id,
    coalesce(
        (
            SELECT p.id
            FROM resilient_checkpoints AS p
            WHERE p.seq = c.seq - c.parent
                AND p.ns = c.ns
        ),
        c.parent_id
    ),
    c.frame, c.ns
FROM resilient_checkpoints AS c
WHERE c.seq = ?

-- name: checkpoints_page
-- Newest first, one page of a namespace; a page of -1 rows has all.
SELECT c.seq, c.id,
    coalesce(
        (
            SELECT p.id
            FROM resilient_checkpoints AS p
            WHERE p.seq = c.seq - c.parent
                AND p.ns = c.ns
        ),
        c.parent_id
    ),
    c.frame
FROM resilient_checkpoints AS c
WHERE c.ns = ?
    AND c.seq < ?
ORDER BY c.seq DESC
LIMIT nullif(?, -1)

-- name: checkpoints_page_all
-- Newest first, one page of the whole database.
SELECT c.seq, c.ns, c.id,
    coalesce(
        (
            SELECT p.id
            FROM resilient_checkpoints AS p
            WHERE p.seq = c.seq - c.parent
                AND p.ns = c.ns
        ),
        c.parent_id
    ),
    c.frame
FROM resilient_checkpoints AS c
WHERE c.seq < ?
ORDER BY c.seq DESC
LIMIT ?

-- name: checkpoints_seals
-- What the tally of a namespace covers: the place and the last bytes of every frame.
SELECT seq, substr(frame, greatest(length(frame) - 15, 1))
FROM resilient_checkpoints
WHERE ns = ?
ORDER BY seq

-- name: writes_insert
-- The writes of a task; nothing where they are there already, or blobs may have been deleted.
INSERT INTO resilient_writes (ns, checkpoint, task, frame)
SELECT ?, ?, ?, ?
WHERE (SELECT number FROM resilient_meta WHERE name = 'clock') = ?
ON CONFLICT (ns, checkpoint, task) DO NOTHING

-- name: blob_insert
-- A part of a content; nothing where the content is there already.
INSERT INTO resilient_blobs (part, digest, frame)
VALUES (?, ?, ?)
ON CONFLICT DO NOTHING

-- name: call_begin
-- A new call begins, where the thread has this owner, its places are free and what asked is stored.
INSERT INTO resilient_calls (call, key, state, version, frame)
SELECT ?, ?, ?, ?, ?
FROM resilient_leases
WHERE thread = ?
    AND epoch = ?
    AND expires = ?
    AND frame = ?
    AND NOT EXISTS (
        SELECT 1
        FROM resilient_calls
        WHERE call BETWEEN ? AND ?
    )
    AND (
        CAST(? AS BYTEA) IS NULL
        OR EXISTS (
            SELECT 1
            FROM resilient_checkpoints
            WHERE id = CAST(? AS BYTEA)
                AND ns = ?
        )
    )

-- name: chunk_insert
-- A block of a stream; nothing where the call was deleted, and no deletion of it meanwhile.
INSERT INTO resilient_chunks (first, frame, call)
SELECT ?, ?, call
FROM resilient_journal
WHERE call = ?
FOR KEY SHARE
ON CONFLICT (call, first) DO UPDATE
SET frame = excluded.frame

-- name: chunks_fold
-- Remove blocks of one stream that were folded into one; locks the call first, as deletions do.
DELETE FROM resilient_chunks AS c
USING (
    SELECT call
    FROM resilient_journal
    WHERE call = ?
    FOR KEY SHARE
) AS known
WHERE c.call = known.call
    AND c.first BETWEEN ? AND ?

-- name: sum_blobs
-- For each thread: its own contents, and bytes.
SELECT part >> 32, count(*) FILTER (WHERE part & 255 = 0),
    sum(length(frame) + coalesce(length(digest), 0))
FROM resilient_blobs
GROUP BY part >> 32

-- name: snapshots_put
-- The new counts of a namespace.
INSERT INTO resilient_snapshots (ns, skipped, bridged, removed, seal)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT (ns) DO UPDATE
SET skipped = excluded.skipped, bridged = excluded.bridged, removed = excluded.removed,
    seal = excluded.seal
