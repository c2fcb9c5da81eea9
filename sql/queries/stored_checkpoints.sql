-- Where the log of each partition starts, and the floor of its next offset.
--
-- Placeholder: where (the condition, with its WHERE; empty: all partitions). Parameters: those of the condition.
SELECT topic_id, partition, max(log_start_offset), max(next_offset_floor)
FROM partition_checkpoints
${where}
GROUP BY topic_id, partition;
