-- Stores the floor of the next offset of a partition, before its last rows are removed.
--
-- Parameters: topic_id, partition, floor; forgot (whether producers without a stored state are forgotten).
INSERT INTO partition_checkpoints (topic_id, partition, log_start_offset, next_offset_floor, forgot_producers)
SELECT {topic_id:UUID}, {partition:Int32}, 0, {floor:Int64}, {forgot:Bool};
