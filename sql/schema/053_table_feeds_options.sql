-- view table_feeds; cluster: same view, all shards
-- The feeds that exist, each with its topics, its format and the table that it fills. Shards may have different
-- versions of a feed: the highest wins.
CREATE OR REPLACE VIEW ${table_feeds} AS
SELECT
    name, database, table, topics, format, paths, start, interval_ms, stop_on_error, status, changed_at, feed_id, options
FROM
(
    SELECT *
    FROM ${table_feed_versions}
    ORDER BY version DESC
    LIMIT 1 BY name
)
WHERE status != 'dropped'
ORDER BY name;
