-- The columns of the table of a feed, in their order, but for the hidden one.
--
-- Placeholder: block_column (the name of the hidden column). Parameters: database and table.
SELECT name, type, default_kind, default_expression, timezone()
FROM system.columns
WHERE database = {database:String} AND table = {table:String} AND name != '${block_column}'
ORDER BY position;
