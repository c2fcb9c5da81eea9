-- The first offset of a partition, from a given one on, that has a row.
--
-- Placeholder: is_partition (the condition). Parameters: offset; those of the condition.
SELECT offset
FROM messages
WHERE ${is_partition} AND offset >= {offset:Int64}
ORDER BY topic, partition, offset
LIMIT 1;
