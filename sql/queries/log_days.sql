-- The days of the log (ClickHouse partitions) with their rows on disk, oldest first. Equal
-- signatures mean that the parts are the same, so the same rows are visible.
SELECT
    partition_id, sum(rows), max(has_lightweight_delete),
    toString(groupBitXor(cityHash64(name))) AS signature
FROM system.parts
WHERE database = currentDatabase() AND table = 'messages' AND active
GROUP BY partition_id
HAVING sum(rows) > 0
ORDER BY partition_id;
