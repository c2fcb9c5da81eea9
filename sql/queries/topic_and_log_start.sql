-- Whether a topic exists, and where the log of one of its partitions starts.
-- Parameters: topic_id, partition.
SELECT
    (SELECT toInt64(count()) FROM topics WHERE topic_id = {topic_id:UUID}) AS topics,
    (
        SELECT toInt64(max(log_start_offset)) FROM partition_checkpoints
        WHERE topic_id = {topic_id:UUID} AND partition = {partition:Int32}
    ) AS log_start;
