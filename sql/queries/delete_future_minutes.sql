-- Deletes what was counted of minutes that lie in the future, because the clock was ahead.
--
-- Placeholder: table. Parameter: now_ms (milliseconds since 1970).
ALTER TABLE ${table} DELETE
WHERE minute >= toStartOfMinute(fromUnixTimestamp64Milli({now_ms:Int64}, 'UTC'))
SETTINGS mutations_sync = 1;
