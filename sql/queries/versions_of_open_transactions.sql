-- The highest version of a row of each partition in `open_transaction_versions`.
SELECT topic_id, partition, max(version) FROM open_transaction_versions GROUP BY topic_id, partition;
