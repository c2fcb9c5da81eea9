-- view group_assignments; cluster: rows of all shards
-- Who reads what: a row for each partition that a member of a consumer group has been assigned.
CREATE OR REPLACE VIEW ${group_assignments} AS
SELECT group_id, topic, partition, member_id, group_instance_id, client_id, client_host
FROM
(
    SELECT group_id, member_id, group_instance_id, client_id, client_host, topic, mapKeys(owners) AS partitions
    FROM ${group_member_versions} FINAL
    ARRAY JOIN mapKeys(assignment) AS topic, mapValues(assignment) AS owners
    WHERE NOT removed
)
ARRAY JOIN partitions AS partition
ORDER BY group_id, topic, partition;
