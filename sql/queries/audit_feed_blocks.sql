-- The history of feeds: each state of each feed in each partition of the topics that exist.
-- Parameters: topics, a regular expression; feeds, their ids.
SELECT
    concat('feed-', feed) AS group_id, toString(feed_id) AS feed_id, topic, toString(topic_id) AS topic_id,
    partition, toInt64(version) AS version, phase, first_offset AS first, end_offset AS end,
    toInt64(rows) AS rows, toInt64(total_rows) AS total_rows, toUnixTimestamp64Milli(time) AS at_ms
FROM table_feed_blocks FINAL
WHERE match(topic, {topics:String}) AND topic_id GLOBAL IN (SELECT topic_id FROM topics)
    AND has({feeds:Array(String)}, toString(feed_id));
