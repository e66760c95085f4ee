-- needs: 1

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
        'GRANT SELECT ON run, entry, snapshot, inbox, lease, queue, schedule, member, topic_key, migration, '
        'runs, steps, checkpoints, workflow_checkpoints TO %I', role);
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
