-- needs: 1

-- Whoever works in one namespace writes any values there. The views of the owner are over all namespaces, so no value
-- may make them fail: what is no time, no key or no mark is NULL.

CREATE FUNCTION moment(seconds double precision) RETURNS timestamptz
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

-- How runs stand. `driver_is_live` says whether the process that drives a run gave a sign of life in time.
CREATE VIEW runs WITH (security_invoker = true) AS
SELECT
    run.run,
    run.namespace,
    run.workflow,
    run.status,
    run.tags,
    moment(run.created_at) AS created_at,
    moment(run.updated_at) AS updated_at,
    run.queue,
    run.priority,
    CASE WHEN run.due_at IS NOT NULL THEN moment(least(run.due_at, 253402214400)) END AS due_at,
    run.held,
    run.strikes,
    substring(run.driver FROM '"host": *"([^"]*)"') AS driver_host,
    substring(run.driver FROM '"pid": *([0-9]{1,18})')::bigint AS driver_pid,
    coalesce(lease.until > clock_timestamp(), false) AS driver_is_live
FROM run
LEFT JOIN lease ON lease.id = substring(run.driver FROM '"lease": *"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"')::uuid
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
    moment(entry.at) AS created_at,
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

-- Checkpoints as a plain table, for those who know them from elsewhere. Inputs, context and pauses are in
-- the journal's bodies, which SQL cannot read: `holdfast show` and the Python API can.
CREATE VIEW workflow_checkpoints WITH (security_invoker = true) AS
SELECT
    checkpoint_id,
    workflow AS workflow_name,
    NULL::jsonb AS workflow_inputs,
    jsonb_build_object('finished', to_jsonb(nodes), 'next', to_jsonb(next)) AS execution_waves,
    wave AS completed_waves,
    jsonb_build_object('run', run, 'namespace', namespace, 'seq', seq, 'frame', frame) AS context,
    created_at,
    NULL::jsonb AS pause_metadata
FROM checkpoints;
