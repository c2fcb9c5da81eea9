-- The newest row of each consumer group, also of deleted ones.
-- ${where}: a WHERE clause, or nothing.
SELECT
    group_id, version, state, toUnixTimestamp64Milli(state_time), generation,
    protocol_type, protocol_name, leader, members, removed, coordinator,
    toUnixTimestamp64Milli(changed_at)
FROM consumer_group_versions
${where}
ORDER BY version DESC
LIMIT 1 BY group_id;
