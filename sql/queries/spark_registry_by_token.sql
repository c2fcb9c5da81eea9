-- Makes the registry of the feeds that Spark fills, on one server without Keeper: a row for each version of a key. Its
-- deduplication token is the key and the version.
--
-- Placeholders: table; window (the tokens that it remembers).
CREATE TABLE IF NOT EXISTS ${table}
(key String, version UInt64, writer String, value String, time DateTime64(6, 'UTC') DEFAULT now64(6))
ENGINE = MergeTree
ORDER BY (key, version)
SETTINGS non_replicated_deduplication_window = ${window};
