-- needs: 1

-- One row of plain facts per run. `no` is never used again, so what belongs to a deleted run is never found.
-- Texts are compared byte by byte, whatever the database's language. Times are seconds since 1970, UTC.
CREATE TABLE run (
    no          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace   text COLLATE "C" NOT NULL,
    run         text COLLATE "C" NOT NULL,
    key         bytea NOT NULL,
    workflow    text COLLATE "C" NOT NULL,
    status      text COLLATE "C" NOT NULL,
    created_at  double precision NOT NULL,
    updated_at  double precision NOT NULL,
    driver      text NOT NULL,
    tags        text[] COLLATE "C" NOT NULL DEFAULT '{}',
    queue       text COLLATE "C" NOT NULL DEFAULT '',
    priority    integer NOT NULL DEFAULT 0,
    due_at      double precision,
    claim       uuid,
    claim_until timestamptz,
    strikes     integer NOT NULL DEFAULT 0,
    held        text
) WITH (fillfactor = 70);

CREATE INDEX run_by_time ON run (namespace, updated_at DESC, run);
CREATE INDEX run_by_workflow ON run (namespace, workflow, updated_at DESC, run);
CREATE INDEX run_by_status ON run (namespace, status, updated_at DESC, run);
CREATE INDEX run_by_tag ON run USING gin (tags);

-- What workers look for: what is queued, what may have lost its driver, what sleeps until a time. The most
-- urgent of many that are queued, in all queues or in one, is found without sorting them.
CREATE INDEX run_urgent ON run (namespace, priority DESC, (coalesce(due_at, created_at)), no)
    WHERE status = 'queued' AND queue <> '';
CREATE INDEX run_queued ON run (namespace, queue, priority DESC, (coalesce(due_at, created_at)), no)
    WHERE status = 'queued' AND queue <> '';
CREATE INDEX run_driven ON run (namespace, queue) WHERE status = 'running' AND queue <> '';
CREATE INDEX run_asleep ON run (namespace, due_at) WHERE status = 'paused' AND due_at IS NOT NULL;

-- Made last: among indexes that seem equally good, as all do while a table is empty, PostgreSQL takes the
-- newest, and plans that were made then are kept for a while.
CREATE UNIQUE INDEX run_by_key ON run (namespace, key);
CREATE UNIQUE INDEX run_by_name ON run (namespace, run);

-- Bodies are compressed already where that pays: they are kept as they are, out of line when large.
CREATE TABLE entry (
    run_no bigint NOT NULL,
    seq    bigint NOT NULL,
    at     double precision NOT NULL,
    chain  bytea NOT NULL,
    mark   bytea,
    body   bytea NOT NULL,
    PRIMARY KEY (run_no, seq)
);
ALTER TABLE entry ALTER COLUMN body SET STORAGE EXTERNAL, ALTER COLUMN chain SET STORAGE PLAIN;
ALTER TABLE entry SET (autovacuum_vacuum_insert_scale_factor = 0.05);

CREATE TABLE snapshot (
    run_no bigint NOT NULL,
    seq    bigint NOT NULL,
    at     double precision NOT NULL,
    chain  bytea NOT NULL,
    body   bytea NOT NULL,
    PRIMARY KEY (run_no, seq)
);
ALTER TABLE snapshot ALTER COLUMN body SET STORAGE EXTERNAL;

-- `token` tells a message that is sent again because its receipt got lost.
CREATE TABLE inbox (
    run_no bigint NOT NULL,
    number bigint NOT NULL,
    at     double precision NOT NULL,
    body   bytea NOT NULL,
    token  uuid NOT NULL,
    PRIMARY KEY (run_no, number)
);

-- Which processes are alive, by the clock of this server.
CREATE TABLE lease (
    id        uuid PRIMARY KEY,
    namespace text COLLATE "C" NOT NULL,
    host      text NOT NULL,
    pid       bigint NOT NULL,
    began_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    until     timestamptz NOT NULL
) WITH (fillfactor = 50);
