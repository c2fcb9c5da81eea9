-- What one engine has of feeds: the newest version of each, of dropped ones, too.
SELECT
    name, toString(feed_id), version, database, table, topics, format,
    mapKeys(paths), mapValues(paths), start, interval_ms, stop_on_error, status,
    toUnixTimestamp64Milli(replay_asked_at), mapKeys(options), mapValues(options)
FROM table_feed_versions FINAL
ORDER BY name;
