-- name: meta_all
-- Every fact about the database.
SELECT name, number, value
FROM resilient_meta

-- name: meta_put
-- Set one fact.
INSERT OR REPLACE INTO resilient_meta (name, number, value)
VALUES (?, ?, ?)

-- name: clock
-- The epoch, and the sealed count of commits.
SELECT number, value
FROM resilient_meta
WHERE name = 'clock'

-- name: thread_by_id
-- A thread by its name.
SELECT thread, spent, seal
FROM resilient_threads
WHERE thread_id = ?

-- name: thread_by_hash
-- Threads by the second way, used only when the first one finds nothing.
SELECT thread, thread_id, spent, seal
FROM resilient_threads
WHERE name_hash = ?

-- name: thread_by_number
-- A thread by its number.
SELECT thread_id, spent, seal
FROM resilient_threads
WHERE thread = ?

-- name: threads_all
-- Every thread, by number.
SELECT thread, thread_id, spent, seal
FROM resilient_threads
ORDER BY thread

-- name: thread_next
-- The number the next thread gets.
SELECT number + 1
FROM resilient_meta
WHERE name = 'thread'

-- name: thread_taken
-- A number was given to a thread.
UPDATE resilient_meta
SET number = max(number, ?)
WHERE name = 'thread'

-- name: thread_insert
-- A new thread.
INSERT INTO resilient_threads (thread, thread_id, name_hash, spent, seal)
VALUES (?, ?, ?, 0, ?)

-- name: thread_spend
-- Blobs up to an ordinal were deleted, so that it is never given out again; or another seal.
UPDATE resilient_threads
SET spent = ?, seal = ?
WHERE thread = ?

-- name: thread_delete
-- Remove a thread's row.
DELETE FROM resilient_threads
WHERE thread = ?

-- name: namespace
-- One namespace of a thread.
SELECT ns, head, checkpoints, tally, seal
FROM resilient_namespaces
WHERE thread = ?
    AND checkpoint_ns = ?

-- name: namespaces
-- All namespaces of a thread.
SELECT ns, checkpoint_ns, head, checkpoints, tally, seal
FROM resilient_namespaces
WHERE thread = ?
ORDER BY ns

-- name: namespaces_scan
-- All namespaces of a thread without using the index that may be damaged.
SELECT ns, checkpoint_ns
FROM resilient_namespaces NOT INDEXED
WHERE thread = ?

-- name: namespace_by_number
-- A namespace by its number.
SELECT thread, checkpoint_ns, head, checkpoints, tally, seal
FROM resilient_namespaces
WHERE ns = ?

-- name: namespace_next
-- The number the next namespace gets; a number is never reused while rows carry it.
SELECT 1 + max(
    (SELECT coalesce(max(ns), 0) FROM resilient_namespaces),
    (SELECT coalesce(max(ns), 0) FROM resilient_writes),
    (SELECT coalesce(max(ns), 0) FROM resilient_checkpoints)
)

-- name: namespace_insert
-- A new, empty namespace.
INSERT INTO resilient_namespaces (ns, thread, checkpoint_ns, head, checkpoints, tally, seal)
VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: namespace_move
-- Set the newest checkpoint, unless somebody else did or blobs may have been deleted.
UPDATE resilient_namespaces
SET head = ?, checkpoints = ?, tally = ?, seal = ?
WHERE ns = ?
    AND head = ?
    AND checkpoints = ?
    AND (SELECT number FROM resilient_meta WHERE name = 'clock') = ?

-- name: namespace_set
-- Set the newest checkpoint after some were removed.
UPDATE resilient_namespaces
SET head = ?, checkpoints = ?, tally = ?, seal = ?
WHERE ns = ?

-- name: namespaces_delete
-- Remove the namespaces of a thread.
DELETE FROM resilient_namespaces
WHERE thread = ?

-- name: checkpoint_insert
-- A new checkpoint behind all others.
INSERT INTO resilient_checkpoints (seq, ns, id, parent, frame)
SELECT place, ?, ?, coalesce(place - ?, ?), ?
FROM (SELECT coalesce(max(seq), 0) + 1 AS place FROM resilient_checkpoints)

-- name: checkpoint_replace
-- The same checkpoint put again keeps its place.
UPDATE resilient_checkpoints
SET parent = coalesce(seq - ?, ?), frame = ?
WHERE seq = ?

-- name: checkpoint_seal
-- The same checkpoint under another seal.
UPDATE resilient_checkpoints
SET frame = ?
WHERE seq = ?

-- name: checkpoint_by_id
-- One checkpoint.
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
            WHERE typeof(c.parent) = 'integer'
                AND p.seq = c.seq - c.parent
                AND p.ns = c.ns
        ),
        c.parent
    ),
    c.frame
FROM resilient_checkpoints AS c
WHERE c.seq = ?
    AND c.ns = ?

-- name: checkpoint_last
-- The newest checkpoint of a namespace, however its record reads.
SELECT max(seq)
FROM resilient_checkpoints
WHERE ns = ?

-- name: checkpoints_count
-- How many checkpoints of a namespace its index leads to.
SELECT count(*)
FROM resilient_checkpoints
WHERE seq IN (
    SELECT seq
    FROM resilient_checkpoints
    WHERE ns = ?
)
    AND +ns = ?

-- name: checkpoints_page
-- Newest first, one page of a namespace.
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
    c.frame
FROM resilient_checkpoints AS c
WHERE c.seq IN (
    SELECT seq
    FROM resilient_checkpoints
    WHERE ns = ?
        AND seq < ?
    ORDER BY seq DESC
    LIMIT ?
)
ORDER BY c.seq DESC

-- name: checkpoints_page_all
-- Newest first, one page of the whole database.
SELECT c.seq, c.ns, c.id,
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
    c.frame
FROM resilient_checkpoints AS c
WHERE c.seq < ?
ORDER BY c.seq DESC
LIMIT ?

-- name: checkpoints_keys
-- Place and name of every checkpoint of a namespace, oldest first.
SELECT seq, id
FROM resilient_checkpoints
WHERE ns = ?
ORDER BY seq

-- name: checkpoints_seals
-- What the tally of a namespace covers: the place and the last bytes of every frame.
SELECT seq, substr(frame, -16)
FROM resilient_checkpoints
WHERE ns = ?
ORDER BY seq

-- name: checkpoint_exists
-- Whether a checkpoint is there.
SELECT seq
FROM resilient_checkpoints
WHERE id = ?
    AND ns = ?

-- name: checkpoint_delete
-- Remove one checkpoint.
DELETE FROM resilient_checkpoints
WHERE seq = ?

-- name: checkpoints_delete
-- Remove a namespace's checkpoints.
DELETE FROM resilient_checkpoints
WHERE ns = ?

-- name: writes_of
-- What tasks wrote under one checkpoint.
SELECT task, frame
FROM resilient_writes
WHERE ns = ?
    AND checkpoint = ?

-- name: writes_all
-- What tasks wrote in a namespace.
SELECT checkpoint, task, frame
FROM resilient_writes
WHERE ns = ?

-- name: writes_one
-- What one task wrote.
SELECT frame
FROM resilient_writes
WHERE ns = ?
    AND checkpoint = ?
    AND task = ?

-- name: writes_insert
-- The writes of a task, unless blobs may have been deleted meanwhile.
INSERT INTO resilient_writes (ns, checkpoint, task, frame)
SELECT ?, ?, ?, ?
WHERE (SELECT number FROM resilient_meta WHERE name = 'clock') = ?

-- name: writes_update
-- The merged writes of a task, unless blobs may have been deleted meanwhile.
UPDATE resilient_writes
SET frame = ?
WHERE ns = ?
    AND checkpoint = ?
    AND task = ?
    AND (SELECT number FROM resilient_meta WHERE name = 'clock') = ?

-- name: writes_replace
-- The same writes under another seal.
UPDATE resilient_writes
SET frame = ?
WHERE ns = ?
    AND checkpoint = ?
    AND task = ?

-- name: writes_delete_of
-- Remove what tasks wrote under one checkpoint.
DELETE FROM resilient_writes
WHERE ns = ?
    AND checkpoint = ?

-- name: writes_delete
-- Remove what tasks wrote in a namespace.
DELETE FROM resilient_writes
WHERE ns = ?

-- name: blob_insert
-- A part of a content that is new.
INSERT INTO resilient_blobs (part, digest, frame)
VALUES (?, ?, ?)

-- name: blob_by_digest
-- Where a content is stored.
SELECT part >> 8
FROM resilient_blobs
WHERE digest = ?

-- name: blob_parts
-- The parts of contents whose numbers are neighbours.
SELECT part, digest, frame
FROM resilient_blobs
WHERE part BETWEEN ? AND ?
ORDER BY part

-- name: blob_last
-- The last part a thread has stored.
SELECT part >> 8
FROM resilient_blobs
WHERE part BETWEEN ? AND ?
ORDER BY part DESC
LIMIT 1

-- name: blob_keys
-- The contents a thread has stored.
SELECT part >> 8
FROM resilient_blobs
WHERE part BETWEEN ? AND ?
    AND part & 255 = 0

-- name: blob_delete
-- Remove contents.
DELETE FROM resilient_blobs
WHERE part BETWEEN ? AND ?

-- name: blobs_delete
-- Remove a thread's contents but those that others use.
DELETE FROM resilient_blobs
WHERE part BETWEEN ? AND ?
    AND part >> 8 NOT IN (SELECT blob FROM resilient_shares)

-- name: share_insert
-- Note that a thread uses another thread's content.
INSERT OR IGNORE INTO resilient_shares (thread, blob)
VALUES (?, ?)

-- name: shares_of_thread
-- Other threads' contents that a thread uses.
SELECT blob
FROM resilient_shares
WHERE thread = ?

-- name: shares_of_blobs
-- A thread's contents that other threads use.
SELECT DISTINCT blob
FROM resilient_shares
WHERE blob BETWEEN ? AND ?

-- name: shares_left
-- Whether anybody still uses a content.
SELECT thread
FROM resilient_shares
WHERE blob = ?
LIMIT 1

-- name: share_delete
-- A thread no longer uses another thread's content.
DELETE FROM resilient_shares
WHERE thread = ?
    AND blob = ?

-- name: shares_delete
-- A thread no longer uses any other thread's content.
DELETE FROM resilient_shares
WHERE thread = ?

-- name: template_insert
-- A new template.
INSERT INTO resilient_templates (template, kind, frame)
VALUES (?, ?, ?)

-- name: template
-- One template.
SELECT kind, frame
FROM resilient_templates
WHERE template = ?

-- name: templates_of
-- A thread's templates, newest last.
SELECT template, kind, frame
FROM resilient_templates
WHERE template BETWEEN ? AND ?
ORDER BY template

-- name: template_replace
-- The same template under another seal.
UPDATE resilient_templates
SET frame = ?
WHERE template = ?

-- name: templates_delete
-- Remove a thread's templates.
DELETE FROM resilient_templates
WHERE template BETWEEN ? AND ?

-- name: tombstone_insert
-- Remember the newest checkpoints of a deleted thread.
INSERT OR IGNORE INTO resilient_tombstones (thread_hash, checkpoint)
VALUES (?, ?)

-- name: tombstone
-- Whether a checkpoint belongs to a deleted life of its thread.
SELECT 1
FROM resilient_tombstones
WHERE thread_hash = ?
    AND checkpoint = ?

-- name: tombstones
-- Whether a thread was ever deleted.
SELECT 1
FROM resilient_tombstones
WHERE thread_hash = ?
LIMIT 1
