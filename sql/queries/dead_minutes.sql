-- Counted minutes whose records are all below the start of their log, by partition.
SELECT topic_id, partition, count()
FROM partition_minutes
INNER JOIN
(
    SELECT topic_id, partition, max(log_start_offset) AS log_start
    FROM partition_checkpoints
    GROUP BY topic_id, partition
    HAVING log_start > 0
) AS logs USING (topic_id, partition)
WHERE topic != '' AND max_offset < log_start
GROUP BY topic_id, partition;
