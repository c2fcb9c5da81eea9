-- view consumer_groups; cluster: rows of all shards
-- The consumer groups that exist now.
CREATE OR REPLACE VIEW ${consumer_groups} AS
SELECT
    group_id, state, state_time, generation, protocol_type, protocol_name, leader, members, coordinator, changed_at
FROM ${consumer_group_versions} FINAL
WHERE NOT removed
ORDER BY group_id;
