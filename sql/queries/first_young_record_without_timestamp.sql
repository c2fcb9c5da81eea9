-- As first_young_record, for records without a timestamp: their append time counts.
-- A query of its own, because each of the two is answered by an index (by_timestamp,
-- by_append_time).
--
-- Parameters: topic, topic_id, partition; first, end: the range, without its end; since_ms.
SELECT offset, toUnixTimestamp64Milli(append_time)
FROM messages
WHERE topic = {topic:String} AND topic_id = {topic_id:UUID} AND partition = {partition:Int32}
    AND offset >= {first:Int64} AND offset < {end:Int64}
    AND timestamp_ms < 0
    AND append_time >= fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC')
ORDER BY topic, partition, offset
LIMIT 1;
