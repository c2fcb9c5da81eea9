-- Of a partition from `start` on: records, the end, the first offset that was appended after
-- young_ms (milliseconds since 1970), and the records of transactions.
-- Offsets and append times grow together, but the clock may have been set back, so all rows are
-- looked at.
-- Parameters: topic, topic_id, partition, start, young_ms.
SELECT toInt64(count()), toInt64(max(offset)) + 1,
    minOrNullIf(offset, toUnixTimestamp64Milli(append_time) > {young_ms:Int64}),
    toInt64(countIf(transactional))
FROM messages
WHERE topic = {topic:String} AND topic_id = {topic_id:UUID} AND partition = {partition:Int32}
    AND offset >= {start:Int64};
