-- The parts that ClickHouse has detached because they are damaged.
--
-- Parameter: database.
SELECT path
FROM system.detached_parts
WHERE database = {database:String} AND startsWith(name, 'broken')
ORDER BY path;
