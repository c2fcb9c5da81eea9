-- 1 if a data directory is that of a single broker, 0 if it is that of a shard, or empty.
--
-- Placeholders: database (of a single broker), shard_database.
SELECT count()
FROM system.tables
WHERE database = '${database}' AND name = 'schema_migrations'
    AND NOT (SELECT count() > 0 FROM system.databases WHERE name = '${shard_database}');
