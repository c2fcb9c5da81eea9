-- The largest timestamp of a range of offsets of a partition, and the first offset that has it.
-- topic String, topic_id UUID, partition Int32, first Int64 (included), end Int64 (excluded)
SELECT timestamp_ms, offset, leader_epoch
FROM messages
WHERE ${is_in_range}
ORDER BY timestamp_ms DESC, offset
LIMIT 1;
