-- `head` is the last entry that there was when the facts were written; `sum` is a checksum of it and of the facts,
-- NULL where an earlier version wrote them.
ALTER TABLE runs ADD COLUMN head INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN sum BLOB;
