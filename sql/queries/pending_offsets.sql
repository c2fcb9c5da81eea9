-- The offsets that were sent to transactions that have not ended.
SELECT
    group_id, producer_id, producer_epoch, topic, toString(topic_id), partition, offset,
    leader_epoch, metadata, member_id, client_id, client_host, generation,
    toUnixTimestamp64Milli(commit_time), version
FROM transaction_offsets FINAL
WHERE NOT ended
ORDER BY version;
