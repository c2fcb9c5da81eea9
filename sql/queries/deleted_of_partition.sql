-- Whether rows of a partition were deleted, and whether of producers without a stored state.
--
-- Parameters: topic_id, partition.
SELECT count(), max(forgot_producers)
FROM partition_checkpoints
WHERE topic_id = {topic_id:UUID} AND partition = {partition:Int32};
