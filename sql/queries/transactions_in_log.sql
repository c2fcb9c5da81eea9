-- What the log has of transactions: the last offset, that of the marker (0: none), and whether they were aborted.
--
-- Placeholder: places (conditions for the transactions). Parameters: those of the conditions.
SELECT topic_id, partition, producer_id, transaction_start, max(offset),
    maxIf(offset, control), anyIf(key, control) = '\0\0\0\0'
FROM messages
WHERE transactional AND (${places})
GROUP BY topic_id, partition, producer_id, transaction_start;
