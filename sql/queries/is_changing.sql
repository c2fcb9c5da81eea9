-- A row if a statement that changes a table is not done yet.
--
-- Parameter: table.
SELECT 1
FROM system.mutations
WHERE database = currentDatabase() AND table = {table:String} AND NOT is_done
LIMIT 1;
