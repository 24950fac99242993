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

-- name: call_insert
-- A call begins for the first time.
INSERT INTO resilient_calls (call, key, state, version, frame)
VALUES (?, ?, ?, ?, ?)

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
