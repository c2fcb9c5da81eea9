-- Of the log below `bound`: how many records it has, the bytes that an earlier run has seen (below
-- clean_end), the new bytes, the append time of the oldest new record (milliseconds), and the
-- tombstones below due_end.
-- Parameters: topic, topic_id, partition, start, clean_end, bound and due_end (offsets).
SELECT
    toInt64(count()),
    toInt64(sumIf(ifNull(length(key), 0) + ifNull(length(value), 0) + 1,
        offset < {clean_end:Int64})),
    toInt64(sumIf(ifNull(length(key), 0) + ifNull(length(value), 0) + 1,
        offset >= {clean_end:Int64})),
    minIf(toUnixTimestamp64Milli(append_time), offset >= {clean_end:Int64}),
    toInt64(countIf(value IS NULL AND NOT control AND offset < {due_end:Int64}))
FROM messages
WHERE topic = {topic:String} AND topic_id = {topic_id:UUID} AND partition = {partition:Int32}
    AND offset >= {start:Int64} AND offset < {bound:Int64};
