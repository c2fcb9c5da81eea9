-- How many rows of a fence are stored.
--
-- Parameters: topic_id (of the session), partition, offset; first_ms and last_ms (of their times).
SELECT uniqExact(append_time)
FROM messages
WHERE topic = '' AND topic_id = {topic_id:UUID} AND partition = {partition:Int32} AND offset = {offset:Int64}
    AND append_time >= fromUnixTimestamp64Milli({first_ms:Int64}, 'UTC')
    AND append_time <= fromUnixTimestamp64Milli({last_ms:Int64}, 'UTC');
