-- A row if a table stores every row that it is sent: a MergeTree that is not replicated and has no constraint.
--
-- Parameters: database and table.
SELECT 1
FROM system.tables
WHERE database = {database:String} AND name = {table:String} AND endsWith(engine, 'MergeTree')
    AND NOT startsWith(engine, 'Replicated') AND position(create_table_query, ' CONSTRAINT ') = 0;
