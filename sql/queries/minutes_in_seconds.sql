-- The minutes before a time of which windows are stored: each is a partition.
--
-- Parameter: before_s (seconds since 1970).
SELECT DISTINCT partition_id
FROM system.parts
WHERE database = currentDatabase() AND table = 'partition_seconds' AND active AND rows > 0
    AND toUInt32(partition_id) < {before_s:UInt32};
