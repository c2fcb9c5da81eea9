-- view transactions; cluster: rows of all shards
-- The transactional ids that exist now, each with its current or last transaction.
CREATE OR REPLACE VIEW ${transactions} AS
SELECT
    transactional_id, producer_id, producer_epoch, timeout_ms, state, partitions, groups, start_time, update_time,
    coordinator
FROM ${transaction_versions} FINAL
WHERE NOT removed
ORDER BY transactional_id;
