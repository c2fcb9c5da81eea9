-- The first record of a range of offsets of a partition whose timestamp is not before `timestamp`.
-- topic String, topic_id UUID, partition Int32, first Int64 (included), end Int64 (excluded),
-- timestamp Int64 (ms)
SELECT timestamp_ms, offset, leader_epoch
FROM messages
WHERE ${is_in_range}
    AND timestamp_ms >= {timestamp:Int64}
ORDER BY topic, partition, offset
LIMIT 1;
