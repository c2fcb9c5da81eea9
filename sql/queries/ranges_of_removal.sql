-- The ranges of offsets of a batch of removals, as they were first written; no row where there are too many.
--
-- Parameters: batch_id, max.
SELECT ranges.first, ranges.last
FROM compaction_removals
WHERE batch_id = {batch_id:UUID} AND length(ranges) <= {max:UInt32}
ORDER BY created_at
LIMIT 1;
