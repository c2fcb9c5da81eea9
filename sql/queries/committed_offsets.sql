-- The current committed offset of each group and partition.
SELECT
    group_id, topic, partition, version, topic_id, offset, leader_epoch, metadata,
    toUnixTimestamp64Milli(commit_time), toUnixTimestamp64Milli(expire_time)
FROM latest_offsets
WHERE NOT deleted;
