-- Runs are found in the very order in which they are listed, so that a page of many needs no sorting.
DROP INDEX runs_by_time;
DROP INDEX runs_by_workflow;
DROP INDEX runs_by_status;
CREATE INDEX runs_by_time ON runs (updated_at DESC, run);
CREATE INDEX runs_by_workflow ON runs (workflow, updated_at DESC, run);
CREATE INDEX runs_by_status ON runs (status, updated_at DESC, run);
