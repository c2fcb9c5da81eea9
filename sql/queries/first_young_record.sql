-- The first record in a range of offsets whose timestamp is not older than since_ms.
--
-- Parameters: topic, topic_id, partition; first, end: the range, without its end; since_ms.
SELECT offset, timestamp_ms
FROM messages
WHERE topic = {topic:String} AND topic_id = {topic_id:UUID} AND partition = {partition:Int32}
    AND offset >= {first:Int64} AND offset < {end:Int64}
    AND timestamp_ms >= {since_ms:Int64}
ORDER BY topic, partition, offset
LIMIT 1;
