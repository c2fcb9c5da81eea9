-- Where the log of each partition starts and ends.
-- Parameters: topics, a regular expression.
SELECT
    topic, toString(topic_id) AS topic_id, partition,
    log_start_offset AS log_start, end_offset
FROM partition_stats
WHERE match(topic, {topics:String});
