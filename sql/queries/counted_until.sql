-- The last minute that is counted (seconds since 1970; 0: none), and how far the minute after it is (milliseconds).
WITH (SELECT max(minute) FROM partition_minutes) AS last
SELECT toUnixTimestamp(last), toUnixTimestamp64Milli(max(until))
FROM partition_seconds
WHERE minute = last + INTERVAL 1 MINUTE;
