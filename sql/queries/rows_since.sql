-- About how many rows of the log were added since a time: those of parts whose first row is not older.
--
-- Parameter: time_ms (milliseconds since 1970).
SELECT toUInt64(sum(rows))
FROM system.parts
WHERE database = currentDatabase() AND table = 'messages' AND active
    AND min_time >= toDateTime(intDiv({time_ms:Int64}, 1000), 'UTC');
