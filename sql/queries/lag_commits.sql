-- The last commit of each group and partition in each window; w is the number of the window, and -1
-- for all time before the first one. For one part of the groups.
-- Parameters: groups and topics, regular expressions; origin, end and history, in seconds since
-- 1970 (history: how far back commits are read); seconds of a window; parts, and part from 0.
SELECT
    group_id, topic, toString(topic_id) AS topic_id, partition, w,
    argMax(offset, version) AS offset,
    argMax(toUnixTimestamp64Milli(commit_time), version) AS commit_ms,
    argMax(deleted, version) AS deleted
FROM
(
    SELECT
        group_id, topic, topic_id, partition, offset, version, commit_time, deleted,
        toInt32(if(toUnixTimestamp(commit_time) < {origin:Int64}, -1,
            intDiv(toUnixTimestamp(commit_time) - {origin:Int64}, {seconds:Int64}))) AS w
    FROM consumer_offsets
    WHERE match(group_id, {groups:String}) AND match(topic, {topics:String})
        AND topic_id GLOBAL IN (SELECT topic_id FROM topics)
        AND toUnixTimestamp(stored_at) >= {history:Int64}
        AND toUnixTimestamp(commit_time) < {end:Int64}
        AND cityHash64(group_id) % {parts:UInt64} = {part:UInt64}
)
GROUP BY group_id, topic, topic_id, partition, w;
