-- Bytes of keys and values that are counted for each partition, from where its log starts.
--
-- Placeholder: ${partitions}: rows (topic id, partition, log start, bytes that may go), numbers and
-- UUIDs only.
SELECT topic_id, partition, sum(bytes)
FROM partition_minutes
INNER JOIN values('topic_id UUID, partition Int32, first Int64, excess Int64', ${partitions}) AS logs
    USING (topic_id, partition)
WHERE max_offset >= first
GROUP BY topic_id, partition;
