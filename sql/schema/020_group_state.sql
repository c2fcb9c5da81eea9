-- view group_state; cluster: rows of all shards
-- Consumer groups at a glance: one row per group, with the number of partitions that its members read and the
-- time of their last heartbeat (null while it has no members).
CREATE OR REPLACE VIEW ${group_state} AS
SELECT
    group_id, state, state_time, generation, protocol_type, protocol_name AS protocol, leader, members,
    assigned.partitions AS partitions,
    if(beating.last_heartbeat > 0, beating.last_heartbeat, NULL) AS last_heartbeat,
    coordinator
FROM ${consumer_groups}
LEFT JOIN (SELECT group_id, count() AS partitions FROM ${group_assignments} GROUP BY group_id) AS assigned USING (group_id)
LEFT JOIN (SELECT group_id, max(heartbeat_time) AS last_heartbeat FROM ${group_members} GROUP BY group_id) AS beating USING (group_id)
ORDER BY group_id
SETTINGS join_use_nulls = 0;
