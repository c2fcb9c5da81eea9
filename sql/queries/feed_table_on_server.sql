-- How a server has the table of a feed: its engine, the statement that makes it, and whether it has the hidden column.
--
-- Parameters: database and table; block (the name of the hidden column).
SELECT engine, create_table_query, (
    SELECT count() FROM system.columns
    WHERE database = {database:String} AND table = {table:String} AND name = {block:String}
)
FROM system.tables
WHERE database = {database:String} AND name = {table:String};
