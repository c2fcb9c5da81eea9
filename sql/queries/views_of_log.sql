-- The materialized views that an insert into `messages` fills, and the engine's time.
--
-- Parameter: database.
SELECT dependencies_database, dependencies_table, toString(now64(6, 'UTC'))
FROM system.tables
WHERE database = {database:String} AND name = 'messages';
