-- The batches of compaction that no broker has applied or refused yet, oldest first.
--
-- Parameter: since_ms: batches that were written before it have been looked at.
SELECT
    batch_id, any(run_id), any(topic_id), any(partition), any(length(ranges)),
    min(created_at) AS since
FROM compaction_removals
WHERE created_at >= fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC') AND notEmpty(ranges)
    AND batch_id NOT IN (SELECT batch_id FROM compaction_applied)
GROUP BY batch_id
ORDER BY since, batch_id
LIMIT 100000;
