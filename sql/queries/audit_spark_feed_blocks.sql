-- The history of feeds that the job `feed` has written: each state of each feed in each partition.
-- Parameter: topics, a regular expression.
SELECT
    concat('feed-', feed) AS group_id, toString(feed_id) AS feed_id, topic, toString(topic_id) AS topic_id,
    partition, toInt64(version) AS version, phase, first_offset AS first, end_offset AS end,
    toInt64(rows) AS rows, toInt64(total_rows) AS total_rows, toUnixTimestamp64Milli(time) AS at_ms
FROM brokerhouse_feeds.table_feed_blocks FINAL
WHERE match(topic, {topics:String}) AND feed IN (SELECT concat(database, '.', name) FROM system.tables);
