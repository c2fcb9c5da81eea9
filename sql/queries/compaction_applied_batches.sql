-- The batches of a run that brokers have applied, per partition: how many, the rows removed, and why
-- one was refused.
-- Parameters: run_id.
SELECT toString(topic_id), partition, toInt64(uniqExact(batch_id)),
    toInt64(sum(removed)), max(refused)
FROM (SELECT * FROM compaction_applied WHERE run_id = {run_id:UUID} LIMIT 1 BY batch_id)
GROUP BY topic_id, partition;
