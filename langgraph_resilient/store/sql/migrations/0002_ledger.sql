-- Tool calls, one row a call. `key` is the call hash and `version` counts the changes of the row.
-- `call` is thread << 32 | part of the key | probe, so that a row is found by its key without a
-- second index: calls whose parts of the key are equal stand side by side. Thread 0 has the calls
-- whose business key holds for all threads.
CREATE TABLE resilient_calls (
    call INTEGER PRIMARY KEY,
    key BLOB NOT NULL,
    state INTEGER NOT NULL,
    version INTEGER NOT NULL,
    frame BLOB NOT NULL
);

-- Who runs the calls of a thread. `epoch` grows with every change of owner; `expires` is in
-- milliseconds since 1970 and counts only for owners on another machine.
CREATE TABLE resilient_leases (
    thread INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    frame BLOB NOT NULL
);
