-- The parts of the log: their day, their rows on disk, and whether some of these are masked.
SELECT name, partition_id, rows, has_lightweight_delete
FROM system.parts
WHERE database = currentDatabase() AND table = 'messages' AND active;
