-- Where each log starts once its oldest minutes are deleted, as many as together have no more than
-- the bytes that may be deleted. Minutes overlap where the clock was set back: then the log starts before the
-- first one that stays.
--
-- Placeholder: ${partitions}: rows (topic id, partition, log start, bytes that may go), numbers and
-- UUIDs only.
SELECT
    topic_id, partition, countIf(gone > excess) AS staying,
    if(staying > 0, least(maxIf(end, gone <= excess), minIf(begin, gone > excess)), max(end))
FROM
(
    SELECT
        topic_id, partition, excess, min_offset AS begin, max_offset + 1 AS end,
        sum(bytes) OVER
            (PARTITION BY topic_id, partition ORDER BY min_offset, max_offset) AS gone
    FROM partition_minutes
    INNER JOIN values('topic_id UUID, partition Int32, first Int64, excess Int64', ${partitions})
        AS logs USING (topic_id, partition)
    WHERE max_offset >= first
)
GROUP BY topic_id, partition;
