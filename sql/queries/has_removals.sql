-- A row if jobs have asked for removals since a time.
--
-- Parameter: since_ms (milliseconds since 1970).
SELECT 1
FROM compaction_removals
WHERE created_at >= fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC')
LIMIT 1;
