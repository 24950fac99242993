-- name: snapshots
-- What was skipped in a namespace, and removed.
SELECT skipped, bridged, removed, seal
FROM resilient_snapshots
WHERE ns = ?

-- name: snapshots_put
-- The new counts of a namespace.
INSERT OR REPLACE INTO resilient_snapshots (ns, skipped, bridged, removed, seal)
VALUES (?, ?, ?, ?, ?)

-- name: snapshots_delete
-- Remove the counts of a namespace.
DELETE FROM resilient_snapshots
WHERE ns = ?

-- name: snapshots_all
-- The counts of every namespace, with its thread.
SELECT n.thread, s.ns, s.skipped, s.bridged, s.removed, s.seal
FROM resilient_snapshots AS s
JOIN resilient_namespaces AS n ON n.ns = s.ns

-- name: orphan_snapshots
-- Namespaces that are not there and have counts.
SELECT ns
FROM resilient_snapshots
WHERE ns NOT IN (SELECT ns FROM resilient_namespaces NOT INDEXED)
