-- The counted minutes of partitions that groups have committed: those of the windows, and earlier
-- ones from the smallest committed offset on. For one part of the topics.
-- Parameters: as of lag_commits.
SELECT
    toString(topic_id) AS topic_id, partition, toInt64(toUnixTimestamp(minute)) AS minute,
    min_offset, max_offset, toUnixTimestamp64Milli(first_append_time) AS first_ms,
    toUnixTimestamp64Milli(last_append_time) AS last_ms
FROM partition_minutes
GLOBAL INNER JOIN
(
    SELECT topic_id, partition, min(offset) AS wanted_from
    FROM consumer_offsets
    WHERE match(group_id, {groups:String}) AND match(topic, {topics:String})
        AND topic_id GLOBAL IN (SELECT topic_id FROM topics)
        AND toUnixTimestamp(stored_at) >= {history:Int64}
    GROUP BY topic_id, partition
) AS wanted USING (topic_id, partition)
WHERE toUnixTimestamp(minute) < {end:Int64}
    AND (toUnixTimestamp(minute) >= {origin:Int64} OR max_offset >= wanted_from)
    AND cityHash64(topic_id) % {parts:UInt64} = {part:UInt64};
