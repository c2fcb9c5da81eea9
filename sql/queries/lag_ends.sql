-- The end of each partition's log when the first window began, and where the log starts now.
-- Parameters: topics, a regular expression; origin, the begin of the first window (seconds).
SELECT
    toString(topic_id) AS topic_id, partition,
    max(counted) AS end_offset, max(start) AS log_start
FROM
(
    SELECT topic_id, partition, max_offset + 1 AS counted, toInt64(0) AS start
    FROM partition_minutes
    WHERE toUnixTimestamp(minute) < {origin:Int64} AND match(topic, {topics:String})
        AND topic != ''
    UNION ALL
    SELECT topic_id, partition, toInt64(0) AS counted, log_start_offset AS start
    FROM partition_checkpoints
)
WHERE topic_id GLOBAL IN (SELECT topic_id FROM topics WHERE match(name, {topics:String}))
GROUP BY topic_id, partition;
