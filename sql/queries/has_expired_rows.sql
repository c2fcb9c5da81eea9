-- A row if a range of a partition has records of producers that were appended before a time.
--
-- Placeholder: is_in_range (the condition). Parameters: since_ms; those of the condition.
SELECT 1
FROM messages
WHERE ${is_in_range} AND producer_id >= 0 AND append_time < fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC')
LIMIT 1;
