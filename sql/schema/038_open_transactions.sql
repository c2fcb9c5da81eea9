-- view open_transactions; cluster: rows of all shards
-- The transactions that hold up read_committed consumers, by partition, and where they began. One that is being
-- aborted is open until it is among the aborted ones.
CREATE OR REPLACE VIEW ${open_transactions} AS
SELECT topic, topic_id, partition, producer_id, transaction_start
FROM ${open_transaction_versions} FINAL
WHERE NOT ended;
