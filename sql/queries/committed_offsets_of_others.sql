-- The newest row of each group and partition that other brokers stored lately, also of deletions.
-- {node_id:Int32}: this broker. {since_ms:Int64}: rows that were stored at this time or later.
SELECT
    group_id, topic, partition, version, topic_id, offset, leader_epoch, metadata,
    toUnixTimestamp64Milli(commit_time), toUnixTimestamp64Milli(expire_time), deleted
FROM consumer_offsets
WHERE coordinator != {node_id:Int32} AND stored_at >= fromUnixTimestamp64Milli({since_ms:Int64})
ORDER BY version DESC
LIMIT 1 BY group_id, topic, partition;
