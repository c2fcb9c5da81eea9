-- view current_offsets; cluster: rows of all shards
-- The committed offsets of each group, now: one row per partition of a topic that exists.
CREATE OR REPLACE VIEW ${current_offsets} AS
SELECT
    group_id, topic, topic_id, partition, offset, leader_epoch, metadata,
    member_id, client_id, client_host, generation, commit_time, expire_time
FROM ${latest_offsets}
WHERE NOT deleted AND topic_id IN (SELECT topic_id FROM ${topics})
ORDER BY group_id, topic, partition;
