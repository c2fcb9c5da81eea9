-- Some aborted transactions of which the log has no records any more.
--
-- Placeholder: limit.
SELECT topic_id, partition, transaction_start FROM aborted_transactions
WHERE (topic_id, partition, transaction_start) NOT IN (
    SELECT topic_id, partition, transaction_start FROM messages WHERE transactional AND NOT control
)
LIMIT ${limit};
