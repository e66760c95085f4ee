-- `origin` says where a run came from, if from outside, and who confirmed it; empty for one's own runs.
ALTER TABLE runs ADD COLUMN origin TEXT NOT NULL DEFAULT '';
-- The checksum of the facts is over this column, too.
UPDATE runs SET sum = NULL;
