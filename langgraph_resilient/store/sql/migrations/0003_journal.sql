-- Model calls in the order of their beginning. `call` is thread << 32 | ordinal. An ended call is
-- given back to a run that repeats it after a crash, until it is retired: until the outcome of what
-- it was made for (`task`, or the tool call `parent`) is durable. `root` is the root graph's
-- checkpoint it was made from. States below 4 are not retired.
CREATE TABLE resilient_journal (
    call INTEGER PRIMARY KEY,
    state INTEGER NOT NULL,
    request BLOB NOT NULL,
    parent BLOB NOT NULL,
    task BLOB NOT NULL,
    root BLOB NOT NULL,
    frame BLOB NOT NULL
);

-- Calls that are not retired: few, and looked for at every call and every checkpoint.
CREATE INDEX resilient_journal_open ON resilient_journal (call)
WHERE state < 4;

-- What a streaming answer has shown so far, in blocks; gone when the answer's checkpoint is durable.
-- `first` is the position of the block's first chunk.
CREATE TABLE resilient_chunks (
    call INTEGER NOT NULL,
    first INTEGER NOT NULL,
    frame BLOB NOT NULL,
    PRIMARY KEY (call, first)
) WITHOUT ROWID;
