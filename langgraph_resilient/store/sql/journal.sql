-- name: journal_in
-- The model calls of a range, in the order of their beginning.
SELECT call, state, request, parent, task, root, frame
FROM resilient_journal
WHERE call BETWEEN ? AND ?
ORDER BY call

-- name: journal_open
-- Those of a range that are not retired.
SELECT call, state, request, parent, task, root, frame
FROM resilient_journal
WHERE state < 4
    AND call BETWEEN ? AND ?
ORDER BY call

-- name: journal_last
-- The number of a thread's last model call.
SELECT max(call)
FROM resilient_journal
WHERE call BETWEEN ? AND ?

-- name: journal_insert
-- A model call begins.
INSERT INTO resilient_journal (call, state, request, parent, task, root, frame)
VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: journal_update
-- A model call changes its state; nothing is changed when it has another one than expected.
UPDATE resilient_journal
SET state = ?, frame = ?
WHERE call = ?
    AND state = ?

-- name: journal_reopen
-- An interrupted model call is made again, for another task.
UPDATE resilient_journal
SET task = ?, root = ?, frame = ?
WHERE call = ?
    AND state = 1
    AND task = ?

-- name: journal_delete
-- Remove the model calls of a range.
DELETE FROM resilient_journal
WHERE call BETWEEN ? AND ?

-- name: chunks_delete
-- Remove the streams of a range of calls.
DELETE FROM resilient_chunks
WHERE call BETWEEN ? AND ?

-- name: chunks_after
-- The blocks of one stream that may hold chunks from a position on.
SELECT call, first, frame
FROM resilient_chunks
WHERE call = ?
    AND first >= coalesce((
        SELECT max(first)
        FROM resilient_chunks
        WHERE call = ?
            AND first <= ?
    ), 0)
ORDER BY first

-- name: chunk_insert
-- A block of a stream.
INSERT OR REPLACE INTO resilient_chunks (call, first, frame)
VALUES (?, ?, ?)

-- name: chunks_fold
-- Remove blocks of one stream that were folded into one.
DELETE FROM resilient_chunks
WHERE call = ?
    AND first BETWEEN ? AND ?
