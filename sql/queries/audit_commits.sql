-- The commits of one week, of one part of the groups; those of deleted topics are left out.
-- Parameters: groups and topics, regular expressions; week, a Monday; parts, and part from 0.
SELECT
    group_id, topic, toString(topic_id) AS topic_id, partition, toInt64(version) AS version,
    offset, generation, member_id, deleted, toUnixTimestamp64Milli(commit_time) AS commit_ms
FROM consumer_offsets
WHERE match(group_id, {groups:String}) AND match(topic, {topics:String})
    AND toMonday(stored_at) = toDate({week:String})
    AND topic_id GLOBAL IN (SELECT topic_id FROM topics)
    AND cityHash64(group_id) % {parts:UInt64} = {part:UInt64};
