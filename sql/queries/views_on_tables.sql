-- Tables of a database, with the views that read them as DATABASE.VIEW.
--
-- Parameters: database; names (of tables).
SELECT name, arrayMap((one, its) -> concat(one, '.', its), dependencies_database, dependencies_table)
FROM system.tables
WHERE database = {database:String} AND has({names:Array(String)}, name);
