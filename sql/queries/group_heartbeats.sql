-- The time of the last heartbeat of each member of a consumer group.
-- ${where}: a WHERE clause, or nothing.
SELECT group_id, member_id, toUnixTimestamp64Milli(max(heartbeat_time))
FROM group_heartbeats
${where}
GROUP BY group_id, member_id;
