-- The tables that may refuse a row. Those of views are not looked at: their definitions are long.
--
-- Parameter: database.
SELECT name
FROM system.tables
WHERE database = {database:String} AND engine NOT IN ('View', 'MaterializedView')
    AND position(create_table_query, ' CONSTRAINT ') > 0;
