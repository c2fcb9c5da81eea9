-- The tables that the job `feed` fills, as far as they exist. Parameter: topics, a regular expression.
SELECT DISTINCT toString(feed_id) AS feed_id, splitByChar('.', feed)[1] AS database, splitByChar('.', feed)[2] AS table
FROM brokerhouse_feeds.table_feed_blocks
WHERE match(topic, {topics:String})
    AND feed IN (SELECT concat(database, '.', name) FROM system.tables);
