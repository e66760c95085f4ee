-- needs: 1

-- What limits the workers of a queue. Queues without a row have no limits.
-- `tokens` is how many runs might have begun at `refilled_at`; it grows by `starts` every `per_seconds`.
CREATE TABLE queue (
    namespace   text COLLATE "C" NOT NULL,
    name        text COLLATE "C" NOT NULL,
    max_running integer CHECK (max_running > 0),
    starts      integer CHECK (starts > 0),
    per_seconds double precision CHECK (per_seconds > 0),
    tokens      double precision NOT NULL DEFAULT 0,
    refilled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    paused      boolean NOT NULL DEFAULT false,
    PRIMARY KEY (namespace, name),
    CHECK ((starts IS NULL) = (per_seconds IS NULL))
) WITH (fillfactor = 50);

-- Runs that are to be submitted again and again. `config` and `input` are encoded, and sealed if there is a key.
-- `trouble` is why the last time could not be submitted; it is tried again at `retry_at`.
CREATE TABLE schedule (
    namespace  text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    cron       text NOT NULL,
    zone       text NOT NULL,
    workflow   text COLLATE "C" NOT NULL,
    config     bytea NOT NULL,
    input      bytea NOT NULL,
    queue      text COLLATE "C" NOT NULL,
    priority   integer NOT NULL DEFAULT 0,
    missed     text NOT NULL CHECK (missed IN ('skip', 'one', 'all')),
    paused     boolean NOT NULL DEFAULT false,
    next_at    timestamptz NOT NULL,
    last_at    timestamptz,
    last_run   text,
    trouble    text,
    retry_at   timestamptz,
    created_by text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (namespace, name)
) WITH (fillfactor = 50);

CREATE INDEX schedule_due ON schedule (namespace, next_at) WHERE NOT paused;
