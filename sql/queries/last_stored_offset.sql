-- The last offset of a partition that has a row.
--
-- Placeholder: is_partition (the condition). Parameters: those of the condition.
SELECT offset
FROM messages
WHERE ${is_partition}
ORDER BY topic DESC, partition DESC, offset DESC
LIMIT 1;
