-- needs: 5

-- `parent` is the key of the run that a run was forked from, empty for none. A fork is read through its parent's
-- journal, so whoever prunes or deletes runs has to know of it.
ALTER TABLE run ADD COLUMN parent bytea NOT NULL DEFAULT '';
CREATE INDEX run_forks ON run (namespace, parent) WHERE parent <> '';

-- `head` is the last entry that there was when the facts were written, 0 where an earlier version wrote them: a journal
-- that ends before it has lost its end.
ALTER TABLE run ADD COLUMN head bigint NOT NULL DEFAULT 0;

-- Who was let in to work may write these columns, too: rights on a run's facts are given column by column.
DO $$
DECLARE
    worker name;
BEGIN
    FOR worker IN
        SELECT DISTINCT role FROM member
        WHERE role IN (SELECT rolname FROM pg_roles) AND has_column_privilege(role, 'run', 'status', 'UPDATE')
    LOOP
        EXECUTE format('GRANT INSERT (parent, head), UPDATE (parent, head) ON run TO %I', worker);
    END LOOP;
END
$$;

CREATE OR REPLACE VIEW runs WITH (security_invoker = true) AS
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
    coalesce(lease.until > clock_timestamp(), false) AS driver_is_live,
    (SELECT parent.run FROM run AS parent WHERE parent.namespace = run.namespace AND parent.key = run.parent) AS forked_from
FROM run
LEFT JOIN lease ON lease.id = substring(run.driver FROM '"lease": *"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"')::uuid
    AND lease.namespace = run.namespace;
