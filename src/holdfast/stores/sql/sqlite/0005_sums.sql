-- `sum` is a checksum of the other facts; NULL where an earlier version wrote them.
ALTER TABLE runs ADD COLUMN sum BLOB;
