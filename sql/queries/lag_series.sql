-- Lag over time of the twelve groups and topics with the highest lag: what --plot draws.
-- Parameters: groups and topics, regular expressions; seconds of a window; first, where the first
-- window begins (seconds since 1970).
SELECT group_id, topic, toInt64(toUnixTimestamp(window_start)) + {seconds:Int64} AS at,
    toInt64(sum(lag)) AS records
FROM lag_history FINAL
WHERE window_seconds = {seconds:UInt32} AND match(group_id, {groups:String})
    AND match(topic, {topics:String}) AND toUnixTimestamp(window_start) >= {first:Int64}
    AND (group_id, topic) GLOBAL IN
    (
        SELECT group_id, topic FROM lag_history
        WHERE window_seconds = {seconds:UInt32} AND match(group_id, {groups:String})
            AND match(topic, {topics:String}) AND toUnixTimestamp(window_start) >= {first:Int64}
        GROUP BY group_id, topic ORDER BY max(lag) DESC, group_id, topic LIMIT 12
    )
GROUP BY group_id, topic, window_start
ORDER BY group_id, topic, window_start;
