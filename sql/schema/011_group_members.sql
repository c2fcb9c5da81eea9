-- view group_members; cluster: rows of all shards
-- The members that consumer groups have now, with what each reads and the time of its last heartbeat.
CREATE OR REPLACE VIEW ${group_members} AS
SELECT
    group_id, member_id, group_instance_id, client_id, client_host, session_timeout_ms, rebalance_timeout_ms,
    protocol_name, assignment, join_time,
    greatest(join_time, heartbeat.heartbeat_time) AS heartbeat_time,
    coordinator, changed_at
FROM ${group_member_versions} AS member FINAL
LEFT JOIN (SELECT group_id, member_id, max(heartbeat_time) AS heartbeat_time FROM ${group_heartbeats} GROUP BY group_id, member_id) AS heartbeat
    USING (group_id, member_id)
WHERE NOT removed
ORDER BY group_id, member_id;
