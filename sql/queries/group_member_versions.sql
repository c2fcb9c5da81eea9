-- The newest row of each member of a consumer group, also of those that have left.
-- What clients sent as bytes comes as hexadecimal digits: as text it would have to be UTF-8.
-- ${where}: a WHERE clause, or nothing.
SELECT
    group_id, member_id, version, group_instance_id, client_id, client_host,
    session_timeout_ms, rebalance_timeout_ms,
    arrayMap(p -> (p.name, hex(p.metadata)), protocols), hex(assignment_bytes),
    toUnixTimestamp64Milli(join_time), removed, generation
FROM group_member_versions
${where}
ORDER BY version DESC
LIMIT 1 BY group_id, member_id;
