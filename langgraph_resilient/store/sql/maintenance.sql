-- name: thread_numbers
-- Every thread, by its number alone.
SELECT thread
FROM resilient_threads NOT INDEXED
ORDER BY thread

-- name: thread_hash
-- What the second way to a thread is.
SELECT name_hash
FROM resilient_threads
WHERE thread = ?

-- name: namespace_numbers
-- A thread's namespaces, by their numbers alone.
SELECT ns
FROM resilient_namespaces
WHERE thread = ?
ORDER BY ns

-- name: checkpoint_numbers
-- A namespace's checkpoints in the order of writing, by their places alone.
SELECT seq
FROM resilient_checkpoints
WHERE ns = ?
ORDER BY seq

-- name: template_numbers
-- A thread's templates, by their numbers alone.
SELECT template
FROM resilient_templates
WHERE template BETWEEN ? AND ?
ORDER BY template

-- name: writes_page
-- A page of what tasks wrote in a namespace.
SELECT checkpoint, task, frame
FROM resilient_writes
WHERE (checkpoint, task) > (?, ?)
    AND ns = ?
ORDER BY checkpoint, task
LIMIT ?

-- name: writes_key
-- The next task's writes in a namespace, by the key alone.
SELECT checkpoint, task
FROM resilient_writes
WHERE (checkpoint, task) > (?, ?)
    AND ns = ?
ORDER BY checkpoint, task
LIMIT 1

-- name: parts_page
-- A page of the parts of a range of contents.
SELECT part, digest, frame
FROM resilient_blobs
WHERE part > ?
    AND part <= ?
ORDER BY part
LIMIT ?

-- name: parts_key
-- The next part of a range of contents, by its number alone.
SELECT part
FROM resilient_blobs
WHERE part > ?
    AND part <= ?
ORDER BY part
LIMIT 1

-- name: blob_exists
-- Whether a content's first part is there.
SELECT 1
FROM resilient_blobs
WHERE part = ?

-- name: share_exists
-- Whether a thread is known to use another thread's content.
SELECT 1
FROM resilient_shares
WHERE thread = ?
    AND blob = ?

-- name: shares_any
-- Whether any thread is known to use a content.
SELECT 1
FROM resilient_shares
WHERE blob = ?
LIMIT 1

-- name: orphan_namespaces
-- Namespaces of threads that are not there.
SELECT ns, thread
FROM resilient_namespaces
WHERE thread NOT IN (SELECT thread FROM resilient_threads NOT INDEXED)

-- name: orphan_checkpoints
-- Namespaces that are not there and have checkpoints.
SELECT ns, count(*)
FROM resilient_checkpoints NOT INDEXED
WHERE ns NOT IN (SELECT ns FROM resilient_namespaces NOT INDEXED)
GROUP BY ns

-- name: orphan_writes
-- Namespaces that are not there and have pending writes.
SELECT ns, count(*)
FROM resilient_writes
WHERE ns NOT IN (SELECT ns FROM resilient_namespaces NOT INDEXED)
GROUP BY ns

-- name: orphan_templates
-- Threads that are not there and have templates.
SELECT template >> 24, count(*)
FROM resilient_templates
WHERE template >> 24 NOT IN (SELECT thread FROM resilient_threads NOT INDEXED)
GROUP BY template >> 24

-- name: orphan_shares
-- Threads that are not there and use contents of others.
SELECT thread, count(*)
FROM resilient_shares
WHERE thread NOT IN (SELECT thread FROM resilient_threads NOT INDEXED)
GROUP BY thread

-- name: table_counts
-- How many rows there are.
SELECT
    (SELECT count(*) FROM resilient_threads),
    (SELECT count(*) FROM resilient_checkpoints),
    (SELECT count(*) FROM resilient_writes),
    (SELECT count(*) FROM resilient_blobs)

-- name: sum_namespaces
-- For each thread: namespaces, checkpoints and their bytes, first and last place.
SELECT n.thread, count(DISTINCT n.ns), count(c.seq), coalesce(sum(length(c.frame)), 0),
    min(c.seq), max(c.seq)
FROM resilient_namespaces AS n
LEFT JOIN resilient_checkpoints AS c ON c.ns = n.ns
GROUP BY n.thread

-- name: sum_writes
-- For each thread: tasks that wrote, and bytes.
SELECT n.thread, count(*), sum(length(w.frame))
FROM resilient_writes AS w
JOIN resilient_namespaces AS n ON n.ns = w.ns
GROUP BY n.thread

-- name: sum_blobs
-- For each thread: its own contents, and bytes.
SELECT part >> 32, sum(part & 255 = 0), sum(length(frame) + coalesce(length(digest), 0))
FROM resilient_blobs
GROUP BY part >> 32

-- name: sum_templates
-- For each thread: templates, and bytes.
SELECT template >> 24, count(*), sum(length(frame))
FROM resilient_templates
GROUP BY template >> 24

-- name: sum_shares
-- Contents that more than one thread uses.
SELECT count(DISTINCT blob)
FROM resilient_shares

-- name: checkpoint_at
-- A checkpoint by its place, with its namespace.
SELECT c.seq, c.id,
    coalesce(
        (
            SELECT p.id
            FROM resilient_checkpoints AS p
            WHERE typeof(c.parent) = 'integer'
                AND p.seq = c.seq - c.parent
                AND p.ns = c.ns
        ),
        c.parent
    ),
    c.frame, c.ns
FROM resilient_checkpoints AS c
WHERE c.seq = ?

-- name: template_kinds
-- A thread's templates without what is in them, newest last.
SELECT template, kind
FROM resilient_templates
WHERE template BETWEEN ? AND ?
ORDER BY template

-- name: parts_size
-- What a range of parts takes.
SELECT sum(length(frame) + coalesce(length(digest), 0))
FROM resilient_blobs
WHERE part BETWEEN ? AND ?

-- name: chunks_of_retired
-- Sizes of the blocks of streams whose calls are not open any more.
SELECT length(frame)
FROM resilient_chunks
WHERE call IN (
    SELECT call
    FROM resilient_journal
    WHERE state >= 4
        AND call BETWEEN ? AND ?
)

-- name: tombstones_all
-- Every checkpoint that is remembered of deleted threads.
SELECT thread_hash, checkpoint
FROM resilient_tombstones

-- name: tombstone_delete
-- Forget one of them.
DELETE FROM resilient_tombstones
WHERE thread_hash = ?
    AND checkpoint = ?
