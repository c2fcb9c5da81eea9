-- The first record of a partition that is not older than `time` (milliseconds since 1970).
-- Parameters: topic, topic_id, partition, start and until (offsets), time.
SELECT toInt64(count()), min(offset)
FROM messages
WHERE topic = {topic:String} AND topic_id = {topic_id:UUID} AND partition = {partition:Int32}
    AND offset >= {start:Int64} AND offset < {until:Int64}
    AND NOT control AND timestamp_ms >= {time:Int64};
