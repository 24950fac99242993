-- What snapshot policies did in a namespace: checkpoints that were skipped, stored ones that hang on
-- one further back for it, and stored ones that were removed since. Only a namespace with something
-- to tell has a row. From this version on, what the seal of a thread's row covers may say how long the
-- thread lives.
CREATE TABLE resilient_snapshots (
    ns INTEGER PRIMARY KEY,
    skipped INTEGER NOT NULL,
    bridged INTEGER NOT NULL,
    removed INTEGER NOT NULL,
    seal BLOB NOT NULL
);
