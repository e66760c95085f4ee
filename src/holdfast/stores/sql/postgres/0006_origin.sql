-- needs: 6

-- `origin` says where a run came from, if from outside, and who confirmed it; empty for one's own runs.
ALTER TABLE run ADD COLUMN origin text NOT NULL DEFAULT '';

-- Who was let in to work may write this column, too: rights on a run's facts are given column by column.
DO $$
DECLARE
    worker name;
BEGIN
    FOR worker IN
        SELECT DISTINCT role FROM member
        WHERE role IN (SELECT rolname FROM pg_roles) AND has_column_privilege(role, 'run', 'status', 'UPDATE')
    LOOP
        EXECUTE format('GRANT INSERT (origin), UPDATE (origin) ON run TO %I', worker);
    END LOOP;
END
$$;
