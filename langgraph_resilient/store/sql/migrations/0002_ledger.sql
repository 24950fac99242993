-- Tool calls: one row a call, in the order of their first beginning within a thread. `call` is
-- thread << 24 | ordinal; `key` is the call hash; `version` counts the changes of the row.
CREATE TABLE resilient_calls (
    call INTEGER PRIMARY KEY,
    key BLOB NOT NULL UNIQUE,
    state INTEGER NOT NULL,
    version INTEGER NOT NULL,
    frame BLOB NOT NULL
);

-- Calls that have not come to an end: few, and asked for often.
CREATE INDEX resilient_calls_open ON resilient_calls (call)
WHERE state < 4;

-- Who runs the calls of a thread. `epoch` grows with every change of owner; `expires` is in
-- milliseconds since 1970 and counts only for owners on another machine.
CREATE TABLE resilient_leases (
    thread INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    frame BLOB NOT NULL
);
