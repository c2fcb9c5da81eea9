-- The records of a range of a partition, in their order.
--
-- Placeholders: columns, is_in_range (the condition). Parameters: those of the condition.
SELECT ${columns}
FROM messages
WHERE ${is_in_range}
ORDER BY topic, partition, offset;
