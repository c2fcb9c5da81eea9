-- When the first record in a time was appended; no row where there is none.
--
-- Parameters: start_ms, end_ms (milliseconds since 1970).
SELECT toUnixTimestamp64Milli(min(append_time))
FROM messages
WHERE append_time >= fromUnixTimestamp64Milli({start_ms:Int64}, 'UTC')
    AND append_time < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')
HAVING count() > 0;
