-- Stores that a batch of removals was applied, or refused.
--
-- Parameters: those of its columns.
INSERT INTO compaction_applied (batch_id, run_id, topic_id, partition, removed, refused)
SELECT
    {batch_id:UUID}, {run_id:UUID}, {topic_id:UUID}, {partition:Int32}, {removed:UInt64}, {refused:String};
