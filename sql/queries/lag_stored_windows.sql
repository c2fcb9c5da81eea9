-- The windows that lag_history has, of each group and partition.
-- Parameters: groups and topics, regular expressions; seconds of a window; first, where the first
-- window begins (seconds since 1970).
SELECT
    group_id, toString(topic_id) AS topic_id, partition,
    toInt64(toUnixTimestamp(window_start)) AS window_start
FROM lag_history
WHERE window_seconds = {seconds:UInt32} AND match(group_id, {groups:String})
    AND match(topic, {topics:String}) AND toUnixTimestamp(window_start) >= {first:Int64}
GROUP BY group_id, topic_id, partition, window_start;
