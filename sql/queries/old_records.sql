-- The last record of each partition whose timestamp is older than since_ms, negative ones included.
-- The index by_timestamp leaves out what is young.
--
-- Parameter: since_ms.
SELECT topic_id, partition, max(offset)
FROM messages
WHERE timestamp_ms < {since_ms:Int64}
GROUP BY topic_id, partition;
