-- The columns of a table that an insert may name, and their types.
--
-- Parameters: database and table.
SELECT name, type
FROM system.columns
WHERE database = {database:String} AND table = {table:String} AND default_kind NOT IN ('ALIAS', 'MATERIALIZED');
