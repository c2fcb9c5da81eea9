-- The last transactions of each partition that were aborted.
--
-- Placeholder: kept (how many).
SELECT topic_id, partition, producer_id, transaction_start, last_offset
FROM aborted_transactions FINAL
ORDER BY last_offset DESC
LIMIT ${kept} BY topic_id, partition;
