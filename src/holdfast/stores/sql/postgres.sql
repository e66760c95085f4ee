-- The version of this schema: one row.
CREATE TABLE schema_version (version integer NOT NULL);

-- One row of plain facts per run. `no` is never used again, so what belongs to a deleted run is never found.
-- `parent` is the key of the run that a run was forked from, empty for none: a fork is read through its parent's journal.
-- `origin` is the provenance of a run from outside, empty for one's own runs. `head` is the last entry that there was
-- when the row was written: a journal that ends before it has lost its end.
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
    owner       text NOT NULL,
    tags        text[] COLLATE "C" NOT NULL DEFAULT '{}',
    queue       text COLLATE "C" NOT NULL DEFAULT '',
    priority    integer NOT NULL DEFAULT 0,
    due_at      double precision,
    parent      bytea NOT NULL DEFAULT '',
    origin      text NOT NULL DEFAULT '',
    head        bigint NOT NULL,
    claim       uuid,
    claim_until timestamptz,
    strikes     integer NOT NULL DEFAULT 0,
    held        text
) WITH (fillfactor = 70);

CREATE INDEX run_by_time ON run (namespace, updated_at DESC, run);
CREATE INDEX run_by_workflow ON run (namespace, workflow, updated_at DESC, run);
CREATE INDEX run_by_status ON run (namespace, status, updated_at DESC, run);
CREATE INDEX run_forks ON run (namespace, parent) WHERE parent <> '';
CREATE INDEX run_by_tag ON run USING gin (tags);

-- What workers look for: what is queued, what may have lost its owner, what sleeps until a time. The most
-- urgent of many that are queued, in all queues or in one, is found without sorting them.
CREATE INDEX run_urgent ON run (namespace, priority DESC, (coalesce(due_at, created_at)), no)
    WHERE status = 'queued' AND queue <> '';
CREATE INDEX run_queued ON run (namespace, queue, priority DESC, (coalesce(due_at, created_at)), no)
    WHERE status = 'queued' AND queue <> '';
CREATE INDEX run_owned ON run (namespace, queue) WHERE status = 'running' AND queue <> '';
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

-- Whoever works in one namespace writes any values there. The views of the owner are over all namespaces, so no value
-- may make them fail: what is no time, no key or no mark is NULL.

CREATE FUNCTION as_time(seconds double precision) RETURNS timestamptz
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN CASE WHEN seconds BETWEEN -62135596800 AND 253402214400 THEN to_timestamp(seconds) END;

-- The id of the checkpoint at `seq` of the run with this key, as Holdfast computes it.
CREATE FUNCTION checkpoint_id(key bytea, seq bigint) RETURNS uuid
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN CASE WHEN octet_length(key) = 8 THEN (
    substr(encode(key, 'hex'), 1, 12) || '4' || substr(encode(key, 'hex'), 13, 3)
    || lpad(to_hex((
        B'10'
        || ('x' || substr(encode(key, 'hex'), 16, 1))::bit(4)
        || mod(
            seq::numeric * 2783377641436327 + ('x' || substr(encode(key, 'hex'), 3, 14))::bit(56)::bigint,
            72057594037927936
        )::bigint::bit(56)
        || B'00'
    )::bit(64)::bigint), 16, '0')
)::uuid END;

-- One MessagePack value of the kinds that marks are made of, from the byte `at` on; `at` is then behind it.
CREATE FUNCTION unpack(bytes bytea, INOUT at integer, OUT value jsonb)
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = @schema@, pg_temp
AS $$
DECLARE
    tag   integer := get_byte(bytes, at);
    size  integer := 0;
    more  integer := 0;
    item  jsonb;
    items jsonb[] := '{}';
BEGIN
    at := at + 1;
    IF tag < 128 THEN
        value := to_jsonb(tag);
        RETURN;
    END IF;
    IF tag = 192 THEN
        value := 'null';
        RETURN;
    END IF;
    more := CASE
        WHEN tag BETWEEN 144 AND 191 THEN 0
        WHEN tag IN (204, 217) THEN 1
        WHEN tag IN (205, 218, 220) THEN 2
        WHEN tag IN (206, 219, 221) THEN 4
    END;
    IF more IS NULL THEN
        RAISE data_exception USING MESSAGE = format('tag %s does not belong in a mark', tag);
    END IF;
    FOR place IN 0 .. more - 1 LOOP
        size := size * 256 + get_byte(bytes, at + place);
    END LOOP;
    at := at + more;
    IF tag BETWEEN 204 AND 206 THEN
        value := to_jsonb(size);
    ELSIF tag BETWEEN 160 AND 191 OR tag BETWEEN 217 AND 219 THEN
        size := CASE WHEN tag < 192 THEN tag - 160 ELSE size END;
        value := to_jsonb(convert_from(substr(bytes, at + 1, size), 'UTF8'));
        at := at + size;
    ELSE
        FOR place IN 1 .. CASE WHEN tag < 160 THEN tag - 144 ELSE size END LOOP
            SELECT unpacked.at, unpacked.value INTO at, item FROM unpack(bytes, at) AS unpacked;
            items := array_append(items, item);
        END LOOP;
        value := to_jsonb(items);
    END IF;
END
$$;

-- What a mark says: how many waves are completed, which nodes finished, which are next, in which sub-graph.
-- NULL for one that cannot be read. Not parallel: PostgreSQL catches no errors in parallel work.
CREATE FUNCTION read_mark(mark bytea) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE STRICT
SET search_path = @schema@, pg_temp
AS $$
DECLARE
    parts jsonb;
BEGIN
    SELECT value INTO parts FROM unpack(mark, 0);
    IF jsonb_typeof(parts -> 0) IS DISTINCT FROM 'number' OR (parts -> 0)::bigint >= 2147483647
        OR jsonb_typeof(parts -> 1) IS DISTINCT FROM 'array' OR jsonb_typeof(parts -> 2) IS DISTINCT FROM 'array' THEN
        RETURN NULL;
    END IF;
    RETURN jsonb_build_object('wave', parts -> 0, 'nodes', parts -> 1, 'next', parts -> 2, 'frame', parts -> 3);
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END
$$;

CREATE FUNCTION texts(list jsonb) RETURNS text[]
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN ARRAY(SELECT jsonb_array_elements_text(list));

-- Runs. `owner_is_live` says whether the owner of a run renewed its lease in time.
CREATE VIEW runs WITH (security_invoker = true) AS
SELECT
    run.run,
    run.namespace,
    run.workflow,
    run.status,
    run.tags,
    as_time(run.created_at) AS created_at,
    as_time(run.updated_at) AS updated_at,
    run.queue,
    run.priority,
    CASE WHEN run.due_at IS NOT NULL THEN as_time(least(run.due_at, 253402214400)) END AS due_at,
    run.held,
    run.strikes,
    substring(run.owner FROM '"host": *"([^"]*)"') AS owner_host,
    substring(run.owner FROM '"pid": *([0-9]{1,18})')::bigint AS owner_pid,
    coalesce(lease.until > clock_timestamp(), false) AS owner_is_live,
    (SELECT parent.run FROM run AS parent WHERE parent.namespace = run.namespace AND parent.key = run.parent) AS forked_from
FROM run
LEFT JOIN lease ON lease.id = substring(run.owner FROM '"lease": *"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"')::uuid
    AND lease.namespace = run.namespace;

-- Every place where a run can be resumed, looked at or forked. `bytes` is what it added to the journal.
CREATE VIEW checkpoints WITH (security_invoker = true) AS
SELECT
    checkpoint_id(run.key, entry.seq) AS checkpoint_id,
    run.run,
    run.namespace,
    run.workflow,
    entry.seq,
    (said ->> 'wave')::integer AS wave,
    texts(said -> 'nodes') AS nodes,
    texts(said -> 'next') AS next,
    said ->> 'frame' AS frame,
    as_time(entry.at) AS created_at,
    octet_length(entry.body) AS bytes
FROM run
JOIN entry ON entry.run_no = run.no
CROSS JOIN LATERAL read_mark(entry.mark) AS said
WHERE entry.mark IS NOT NULL;

-- One row per node that finished, and one per node that is next after a run's newest checkpoint: what the
-- run's status says of it.
CREATE VIEW steps WITH (security_invoker = true) AS
SELECT
    run, namespace, workflow, frame, node, wave, 'finished' AS status, created_at AS finished_at, checkpoint_id
FROM checkpoints
CROSS JOIN LATERAL unnest(nodes) AS node
UNION ALL
SELECT
    run.run,
    run.namespace,
    run.workflow,
    said ->> 'frame',
    node,
    (said ->> 'wave')::integer + 1,
    CASE run.status WHEN 'paused' THEN 'waiting' ELSE run.status END,
    NULL,
    checkpoint_id(run.key, newest.seq)
FROM run
CROSS JOIN LATERAL (
    SELECT entry.seq, entry.mark FROM entry
    WHERE entry.run_no = run.no AND entry.mark IS NOT NULL
    ORDER BY entry.seq DESC LIMIT 1
) AS newest
CROSS JOIN LATERAL read_mark(newest.mark) AS said
CROSS JOIN LATERAL unnest(texts(said -> 'next')) AS node
WHERE run.status <> 'completed';

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

-- Which roles may work in which namespaces. The owner of the schema, superusers and roles with BYPASSRLS
-- may in all; whoever is not listed here may in none.
CREATE TABLE member (
    role      name NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    PRIMARY KEY (role, namespace)
);

-- The namespaces that the asking role was admitted to, itself or as a member of a group.
CREATE FUNCTION own_namespaces() RETURNS text[]
LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT coalesce(array_agg(member.namespace), '{}')
    FROM member JOIN pg_roles ON pg_roles.rolname = member.role
    WHERE pg_has_role(current_user, pg_roles.oid, 'usage');
END;

-- A role sees its own rows here. It needs no more, and learns of no other namespace.
ALTER TABLE member ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON member FOR SELECT
    USING (EXISTS (SELECT FROM pg_roles WHERE rolname = role AND pg_has_role(current_user, oid, 'usage')));

-- Asked once per statement, not once per row: a sub-select that depends on no row.
ALTER TABLE run ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON run
    USING (namespace = ANY ((SELECT own_namespaces())::text[]))
    WITH CHECK (namespace = ANY ((SELECT own_namespaces())::text[]));

ALTER TABLE lease ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON lease
    USING (namespace = ANY ((SELECT own_namespaces())::text[]))
    WITH CHECK (namespace = ANY ((SELECT own_namespaces())::text[]));

ALTER TABLE queue ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON queue
    USING (namespace = ANY ((SELECT own_namespaces())::text[]))
    WITH CHECK (namespace = ANY ((SELECT own_namespaces())::text[]));

ALTER TABLE schedule ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON schedule
    USING (namespace = ANY ((SELECT own_namespaces())::text[]))
    WITH CHECK (namespace = ANY ((SELECT own_namespaces())::text[]));

-- Notifications reach every role of the database. What they name is hashed with the key of its namespace, so that only
-- those who may work there know which run is meant.
CREATE TABLE topic_key (
    namespace text COLLATE "C" PRIMARY KEY,
    key       bytea NOT NULL DEFAULT decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex')
);
ALTER TABLE topic_key ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON topic_key FOR SELECT USING (namespace = ANY ((SELECT own_namespaces())::text[]));

-- What belongs to a run is seen by whoever sees the run. Not EXISTS, for which all runs might be read at once.
ALTER TABLE entry ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON entry
    USING ((SELECT true FROM run WHERE run.no = run_no))
    WITH CHECK ((SELECT true FROM run WHERE run.no = run_no));

ALTER TABLE snapshot ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON snapshot
    USING ((SELECT true FROM run WHERE run.no = run_no))
    WITH CHECK ((SELECT true FROM run WHERE run.no = run_no));

ALTER TABLE inbox ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON inbox
    USING ((SELECT true FROM run WHERE run.no = run_no))
    WITH CHECK ((SELECT true FROM run WHERE run.no = run_no));

-- Let a role work in a namespace: as its worker or, with `reads_only`, as somebody who only looks.
CREATE FUNCTION admit(role name, namespace text, reads_only boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql
SET search_path = @schema@, pg_temp
AS $$
DECLARE
    facts text;
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), role);
    EXECUTE format(
        'GRANT SELECT ON run, entry, snapshot, inbox, lease, queue, schedule, member, topic_key, schema_version, '
        'runs, steps, checkpoints TO %I', role);
    IF NOT reads_only THEN
        EXECUTE format(
            'GRANT INSERT, UPDATE, DELETE ON entry, snapshot, inbox, lease, queue, schedule TO %I', role);
        -- Nobody chooses the number of a run: it might be that of another namespace's next one.
        SELECT string_agg(quote_ident(attname), ', ') INTO facts FROM pg_attribute
        WHERE attrelid = 'run'::regclass AND attnum > 0 AND NOT attisdropped AND attname <> 'no';
        EXECUTE format('GRANT DELETE, INSERT (%s), UPDATE (%s) ON run TO %I', facts, facts, role);
    END IF;
    INSERT INTO member VALUES (role, namespace) ON CONFLICT DO NOTHING;
    INSERT INTO topic_key (namespace) VALUES (admit.namespace) ON CONFLICT DO NOTHING;
END
$$;

-- Take a namespace from a role; its rights on the tables stay, and show it nothing.
CREATE FUNCTION dismiss(role name, namespace text) RETURNS void
LANGUAGE sql
SET search_path = @schema@, pg_temp
AS $$
    DELETE FROM member WHERE member.role = dismiss.role AND member.namespace = dismiss.namespace
$$;

-- Everybody may call functions unless told otherwise; these are the owner's.
REVOKE EXECUTE ON FUNCTION admit(name, text, boolean), dismiss(name, text) FROM PUBLIC;
