-- Removes aborted transactions of which the log has no records any more. They are named: on a replica that lacks
-- records, a query would find too many.
--
-- Placeholder: named (the topic id, the partition and the first offset of each).
ALTER TABLE aborted_transactions DELETE WHERE (topic_id, partition, transaction_start) IN (${named})
SETTINGS mutations_sync = 0;
