-- How many rows a table has, those that are masked included.
--
-- Placeholder: table.
SELECT sum(rows)
FROM system.parts
WHERE database = currentDatabase() AND table = '${table}' AND active;
