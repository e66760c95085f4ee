-- `parent` is the key of the run that a run was forked from, empty for none.
ALTER TABLE runs ADD COLUMN parent BLOB NOT NULL DEFAULT x'';
CREATE INDEX runs_by_parent ON runs (parent) WHERE parent <> x'';
