-- The last migration that was applied, and the id of the cluster.
--
-- Placeholder: database.
SELECT
    max(number),
    (SELECT argMax(value, version) FROM ${database}.cluster_state WHERE key = 'cluster_id')
FROM ${database}.schema_migrations;
