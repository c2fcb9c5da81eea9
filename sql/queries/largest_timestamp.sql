-- The largest timestamp of a range of offsets of a partition, and the first offset that has it.
-- topic String, topic_id UUID, partition Int32, first Int64 (included), end Int64 (excluded)
SELECT timestamp_ms, offset
FROM messages
WHERE topic = {topic:String}
    AND topic_id = {topic_id:UUID}
    AND partition = {partition:Int32}
    AND offset >= {first:Int64}
    AND offset < {end:Int64}
ORDER BY timestamp_ms DESC, offset
LIMIT 1;
