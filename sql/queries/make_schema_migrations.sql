-- The migrations that were applied: the files of sql/schema.
--
-- Placeholder: database.
CREATE TABLE IF NOT EXISTS ${database}.schema_migrations
(number UInt32, name String, applied_at DateTime64(3, 'UTC') DEFAULT now64(3))
ENGINE = MergeTree
ORDER BY number;
