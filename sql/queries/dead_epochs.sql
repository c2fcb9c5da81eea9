-- Leader epochs that ended before the start of their log, by partition: the offset at which the first epoch begins
-- that is needed, and how many rows are before it.
SELECT topic_id, partition, max(start_offset) AS needed, count() - 1
FROM leader_epochs
INNER JOIN
(
    SELECT topic_id, partition, max(log_start_offset) AS log_start
    FROM partition_checkpoints
    GROUP BY topic_id, partition
    HAVING log_start > 0
) AS logs USING (topic_id, partition)
WHERE start_offset <= log_start
GROUP BY topic_id, partition
HAVING min(start_offset) < needed;
