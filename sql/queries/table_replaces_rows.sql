-- Whether rows of the same key replace each other in a table. Then the number of a block's rows says nothing about
-- whether it is stored, and rows that are stored twice are one.
--
-- Parameters: database and table.
SELECT engine LIKE '%ReplacingMergeTree'
FROM system.tables
WHERE database = {database:String} AND name = {table:String};
