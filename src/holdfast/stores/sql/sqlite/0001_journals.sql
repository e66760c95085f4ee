-- `no` is never reused: the ids of entries, snapshots and messages are built from it.
CREATE TABLE runs (
    no         INTEGER PRIMARY KEY AUTOINCREMENT,
    run        TEXT NOT NULL UNIQUE,
    key        BLOB NOT NULL UNIQUE,
    workflow   TEXT NOT NULL,
    status     TEXT NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    driver     TEXT NOT NULL
) STRICT;

CREATE INDEX runs_by_time ON runs (updated_at DESC);
CREATE INDEX runs_by_workflow ON runs (workflow, updated_at DESC);
CREATE INDEX runs_by_status ON runs (status, updated_at DESC);

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
