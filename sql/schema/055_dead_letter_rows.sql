-- column of dead_letter_versions; cluster: rows of all shards
-- How many rows a replay has made of the record. For tables that were made before there was this column; a record that was
-- replayed then counts as one row.
ALTER TABLE ${dead_letter_versions} ADD COLUMN IF NOT EXISTS rows UInt32 DEFAULT toUInt32(replayed)
    COMMENT 'that a replay has made of it; 0 if it is dead, or if the rows are counted with its block';
