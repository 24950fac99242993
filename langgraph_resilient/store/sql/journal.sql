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

-- name: journal_closed_like
-- How many closed calls of a range have asked the same.
SELECT count(*)
FROM resilient_journal
WHERE state >= 4
    AND request = ?
    AND call BETWEEN ? AND ?

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
SET state = ?, task = ?, root = ?, frame = ?
WHERE call = ?
    AND state = ?
    AND task = ?

-- name: journal_delete
-- Remove the model calls of a range.
DELETE FROM resilient_journal
WHERE call BETWEEN ? AND ?

-- name: chunks_delete
-- Remove the streams of a range of calls.
DELETE FROM resilient_chunks
WHERE call BETWEEN ? AND ?

-- name: chunks_of_retired_delete
-- Remove what streams have shown whose calls are not open any more.
DELETE FROM resilient_chunks
WHERE call IN (
    SELECT call
    FROM resilient_journal
    WHERE state >= 4
        AND call BETWEEN ? AND ?
)

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
-- A block of a stream; nothing where the call was deleted meanwhile.
INSERT OR REPLACE INTO resilient_chunks (first, frame, call)
SELECT ?, ?, call
FROM resilient_journal
WHERE call = ?

-- name: chunks_fold
-- Remove blocks of one stream that were folded into one.
DELETE FROM resilient_chunks
WHERE call = ?
    AND first BETWEEN ? AND ?

-- name: journal_page
-- A page of the model calls of a range.
SELECT call, state, request, parent, task, root, frame
FROM resilient_journal
WHERE call > ?
    AND call <= ?
ORDER BY call
LIMIT ?

-- name: journal_key
-- The next model call of a range, by its number alone.
SELECT call
FROM resilient_journal
WHERE call > ?
    AND call <= ?
ORDER BY call
LIMIT 1

-- name: journal_seal
-- A model call's row gets another seal and stays what it is.
UPDATE resilient_journal
SET frame = ?
WHERE call = ?

-- name: chunks_page
-- A page of the blocks of a range of streams.
SELECT call, first, frame
FROM resilient_chunks
WHERE (call, first) > (?, ?)
    AND call <= ?
ORDER BY call, first
LIMIT ?

-- name: chunks_key
-- The next block of a range of streams, by its place alone.
SELECT call, first
FROM resilient_chunks
WHERE (call, first) > (?, ?)
    AND call <= ?
ORDER BY call, first
LIMIT 1

-- name: chunks_in
-- The blocks of a range of streams.
SELECT call, first, frame
FROM resilient_chunks
WHERE call BETWEEN ? AND ?
ORDER BY call, first

-- name: chunk_seal
-- A block gets another seal and stays what it is.
UPDATE resilient_chunks
SET frame = ?
WHERE call = ?
    AND first = ?

-- name: orphan_journal
-- Threads that are not there and have model calls.
SELECT call >> 32, count(*)
FROM resilient_journal
WHERE call >> 32 NOT IN (SELECT thread FROM resilient_threads NOT INDEXED)
GROUP BY call >> 32

-- name: orphan_chunks
-- Model calls that are not there and have shown something.
SELECT call, count(*)
FROM resilient_chunks
WHERE call NOT IN (SELECT call FROM resilient_journal)
GROUP BY call

-- name: sum_journal
-- For each thread and state: model calls, and bytes.
SELECT call >> 32, state, count(*), sum(length(frame) + length(request) + length(task) + length(root))
FROM resilient_journal
GROUP BY call >> 32, state

-- name: sum_chunks
-- For each thread: blocks of streams, and bytes.
SELECT call >> 32, count(*), sum(length(frame))
FROM resilient_chunks
GROUP BY call >> 32
