-- How far earlier runs came in a partition: log_end; tombstones_end, below which a tombstone has no
-- older record of its key; and tombstones_end of the runs before due_ms (milliseconds since 1970).
-- Parameters: topic_id, partition, due_ms.
SELECT toInt64(max(log_end)), toInt64(max(tombstones_end)),
    toInt64(maxIf(tombstones_end, toUnixTimestamp64Milli(created_at) <= {due_ms:Int64}))
FROM compaction_removals
WHERE topic_id = {topic_id:UUID} AND partition = {partition:Int32} AND empty(ranges);
