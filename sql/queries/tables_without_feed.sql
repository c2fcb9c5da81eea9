-- The tables that records name, and for which there is no feed yet.
--
-- Placeholders: records (with a column `named`: records_with_table.sql), can_be_named (whether a table may have this
-- name), limit. Parameters: own (the tables with feeds); those of the records.
SELECT DISTINCT named
FROM (${records})
WHERE ${can_be_named} AND named NOT IN {own:Array(String)}
ORDER BY named
LIMIT ${limit};
