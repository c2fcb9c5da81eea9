-- The offsets, by partition, of the records that are in a table in memory.
--
-- Placeholder: table.
SELECT topic_id, partition, min(offset), max(offset) + 1 FROM ${table} GROUP BY topic_id, partition;
