-- Records of producers in a range of offsets that were appended lately: their batches may still be sent again.
--
-- Parameters: topic, topic_id, partition; start and bound (offsets); recent_ms (milliseconds since 1970).
SELECT count()
FROM messages
WHERE topic = {topic:String} AND topic_id = {topic_id:UUID} AND partition = {partition:Int32}
    AND offset >= {start:Int64} AND offset < {bound:Int64}
    AND producer_id >= 0 AND NOT control
    AND toUnixTimestamp64Milli(append_time) > {recent_ms:Int64};
