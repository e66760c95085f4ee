-- `no` is never reused: the ids of entries, snapshots and messages are built from it.
-- `tags` is a JSON array, empty text for none. `due_at` is NULL for no time. `parent` is the key of the run that a run
-- was forked from, empty for none. `origin` is the provenance of a run from outside, empty for one's own runs.
-- `head` is the last entry that there was when the row was written; `sum` is a checksum of the row.
CREATE TABLE runs (
    no         INTEGER PRIMARY KEY AUTOINCREMENT,
    run        TEXT NOT NULL UNIQUE,
    key        BLOB NOT NULL UNIQUE,
    workflow   TEXT NOT NULL,
    status     TEXT NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    owner      TEXT NOT NULL,
    tags       TEXT NOT NULL,
    queue      TEXT NOT NULL,
    priority   INTEGER NOT NULL,
    due_at     REAL,
    parent     BLOB NOT NULL,
    origin     TEXT NOT NULL,
    head       INTEGER NOT NULL,
    sum        BLOB NOT NULL
) STRICT;

-- In the very order in which runs are listed, so that a page of many needs no sorting.
CREATE INDEX runs_by_time ON runs (updated_at DESC, run);
CREATE INDEX runs_by_workflow ON runs (workflow, updated_at DESC, run);
CREATE INDEX runs_by_status ON runs (status, updated_at DESC, run);
CREATE INDEX runs_by_parent ON runs (parent) WHERE parent <> x'';

-- id = no << 32 | seq. `mark` stands before `body` so that listing marks reads no overflow page.
CREATE TABLE entries (
    id    INTEGER PRIMARY KEY,
    at    REAL NOT NULL,
    chain BLOB NOT NULL,
    mark  BLOB,
    body  BLOB NOT NULL
) STRICT;

-- id = no << 32 | seq.
CREATE TABLE snapshots (
    id    INTEGER PRIMARY KEY,
    at    REAL NOT NULL,
    chain BLOB NOT NULL,
    body  BLOB NOT NULL
) STRICT;

-- id = no << 32 | number.
CREATE TABLE inbox (
    id   INTEGER PRIMARY KEY,
    at   REAL NOT NULL,
    body BLOB NOT NULL
) STRICT;
