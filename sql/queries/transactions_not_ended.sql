-- The transactions of partitions that are open, or whose end was not stored.
SELECT topic_id, partition, producer_id, producer_epoch, transaction_start, version
FROM open_transaction_versions FINAL
WHERE NOT ended;
