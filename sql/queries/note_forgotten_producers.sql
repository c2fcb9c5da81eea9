-- Notes in the checkpoints of partitions that producers have expired there, whose states are about to be deleted.
--
-- Placeholder: expired (the condition). Parameters: those of the condition.
INSERT INTO partition_checkpoints
    (topic_id, partition, log_start_offset, next_offset_floor, forgot_producers)
SELECT DISTINCT topic_id, partition, 0, 0, true FROM producer_states WHERE ${expired};
