-- view table_feeds; cluster: rows of all shards
-- The feeds that exist, each with its topics, its format and the table that it fills.
CREATE OR REPLACE VIEW ${table_feeds} AS
SELECT name, database, table, topics, format, paths, start, interval_ms, stop_on_error, status, changed_at, feed_id
FROM ${table_feed_versions} FINAL
WHERE status != 'dropped'
ORDER BY name;
