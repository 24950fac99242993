-- name: calls_in
-- The calls of a range: those that a key can be among, or those of a thread.
SELECT call, key, state, version, frame
FROM resilient_calls
WHERE call BETWEEN ? AND ?
ORDER BY call

-- name: calls_by_key
-- A call by its key, wherever it is; looks at all.
SELECT call, key, state, version, frame
FROM resilient_calls
WHERE key = ?

-- name: calls_page
-- A page of the calls of a range.
SELECT call, key, state, version, frame
FROM resilient_calls
WHERE call > ?
    AND call <= ?
ORDER BY call
LIMIT ?

-- name: call_keys
-- The first keys of a range; looks at all.
SELECT key
FROM resilient_calls
WHERE key BETWEEN ? AND ?
ORDER BY key
LIMIT 3

-- name: call_insert
-- A call begins for the first time.
INSERT INTO resilient_calls (call, key, state, version, frame)
VALUES (?, ?, ?, ?, ?)

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
        ? IS NULL
        OR EXISTS (
            SELECT 1
            FROM resilient_checkpoints
            WHERE id = ?
                AND ns = ?
        )
    )

-- name: call_update
-- A call changes its state; nothing is changed when somebody else was faster.
UPDATE resilient_calls
SET state = ?, version = ?, frame = ?
WHERE call = ?
    AND key = ?
    AND version = ?

-- name: call_settle
-- A call ends; nothing is changed when somebody else was faster or the thread has another owner.
UPDATE resilient_calls
SET state = ?, version = ?, frame = ?
WHERE call = ?
    AND key = ?
    AND version = ?
    AND EXISTS (
        SELECT 1
        FROM resilient_leases
        WHERE thread = ?
            AND epoch = ?
    )

-- name: calls_delete
-- Remove the calls of a thread.
DELETE FROM resilient_calls
WHERE call BETWEEN ? AND ?

-- name: lease
-- Who runs the calls of a thread.
SELECT epoch, expires, frame
FROM resilient_leases
WHERE thread = ?

-- name: lease_insert
-- A thread gets its first owner.
INSERT INTO resilient_leases (thread, epoch, expires, frame)
VALUES (?, ?, ?, ?)

-- name: lease_take
-- A thread changes its owner, or the owner stays for longer.
UPDATE resilient_leases
SET epoch = ?, expires = ?, frame = ?
WHERE thread = ?
    AND epoch = ?

-- name: lease_held
-- Whether a thread's owner is still the one of an epoch.
SELECT 1
FROM resilient_leases
WHERE thread = ?
    AND epoch = ?

-- name: lease_delete
-- Remove a thread's lease.
DELETE FROM resilient_leases
WHERE thread = ?

-- name: calls_key
-- The next call of a range, by its number alone.
SELECT call
FROM resilient_calls
WHERE call > ?
    AND call <= ?
ORDER BY call
LIMIT 1

-- name: call_seal
-- A call's row gets another seal and stays what it is.
UPDATE resilient_calls
SET frame = ?
WHERE call = ?

-- name: lease_seal
-- A lease gets another seal and stays what it is.
UPDATE resilient_leases
SET frame = ?
WHERE thread = ?

-- name: orphan_calls
-- Threads that are not there and have tool calls.
SELECT call >> 32, count(*)
FROM resilient_calls
WHERE call >> 32 NOT IN (SELECT 0 UNION ALL SELECT thread FROM resilient_threads NOT INDEXED)
GROUP BY call >> 32

-- name: orphan_leases
-- Threads that are not there and have an owner.
SELECT thread
FROM resilient_leases
WHERE thread NOT IN (SELECT thread FROM resilient_threads NOT INDEXED)

-- name: sum_calls
-- For each thread: tool calls, and bytes.
SELECT call >> 32, count(*), sum(length(frame) + length(key))
FROM resilient_calls
GROUP BY call >> 32
