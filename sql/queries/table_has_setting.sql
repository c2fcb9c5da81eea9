-- 1 if a table has a setting of its own, 0 if it has not.
--
-- Parameters: database and table; setting (its name).
SELECT count()
FROM system.tables
WHERE database = {database:String} AND name = {table:String} AND position(create_table_query, {setting:String}) > 0;
