-- The transactional ids that are stored: the newest version of each, of removed ones, too.
SELECT
    transactional_id, version, producer_id, producer_epoch, last_epoch, previous_producer_id,
    next_producer_id, timeout_ms, state, client_version,
    arrayMap(one -> one.1, partitions), arrayMap(one -> toString(one.2), partitions),
    arrayMap(one -> one.3, partitions), groups,
    toUnixTimestamp64Milli(start_time), toUnixTimestamp64Milli(update_time), removed
FROM transaction_versions FINAL;
