-- The alerts of these kinds that have not ended, or ended at `first` or later.
-- Parameters: groups and topics, regular expressions; seconds of a window; kinds; first (seconds
-- since 1970).
SELECT
    kind, group_id, topic, toString(topic_id) AS topic_id, partition,
    toInt64(toUnixTimestamp(began_at)) AS began_at,
    toInt64(toUnixTimestamp(ended_at)) AS ended_at,
    threshold, value, peak
FROM lag_alerts FINAL
WHERE window_seconds = {seconds:UInt32} AND match(group_id, {groups:String})
    AND match(topic, {topics:String}) AND has({kinds:Array(String)}, kind)
    AND (ended_at IS NULL OR toUnixTimestamp(assumeNotNull(ended_at)) >= {first:Int64});
