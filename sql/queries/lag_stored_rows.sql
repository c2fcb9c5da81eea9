-- The rows that lag_history has of windows that begin at `from` or later and before `until`, each
-- once, with a hash of its key.
-- Parameters: seconds of a window; from and until (seconds since 1970).
SELECT DISTINCT
    group_id, toString(topic_id) AS topic_id, partition,
    toInt64(toUnixTimestamp(window_start)) AS window_start,
    sipHash64(group_id, topic_id, partition, window_start) AS hash
FROM lag_history
WHERE window_seconds = {seconds:UInt32}
    AND window_start >= toDateTime({from:Int64}, 'UTC')
    AND window_start < toDateTime({until:Int64}, 'UTC');
