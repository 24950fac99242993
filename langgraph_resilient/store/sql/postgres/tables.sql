-- Tables that PostgreSQL needs in another form; all others are translated column by column.

-- name: resilient_checkpoints
-- A column has one type here: the parent's distance and its id stand in two.
CREATE TABLE resilient_checkpoints (
    seq INTEGER PRIMARY KEY,
    ns INTEGER NOT NULL,
    id BLOB NOT NULL,
    parent INTEGER,
    parent_id BLOB,
    frame BLOB NOT NULL
)
