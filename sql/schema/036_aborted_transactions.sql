-- table aborted_transactions; cluster: rows of all shards
-- Which transactions were aborted, for each partition with records of them. A row is stored between the marker and
-- the version of open_transaction_versions that says that the transaction has ended. It stays until the log begins
-- behind it.
CREATE TABLE IF NOT EXISTS ${aborted_transactions}
(
    topic             String COMMENT 'topic name',
    topic_id          UUID   COMMENT 'id of the topic',
    partition         Int32  COMMENT 'Kafka partition',
    producer_id       Int64  COMMENT 'of its records',
    transaction_start Int64  COMMENT 'where it began in this partition, as in messages',
    last_offset       Int64  COMMENT 'of its marker'
)
ENGINE = ${engine(ReplacingMergeTree)}
ORDER BY (topic, topic_id, partition, transaction_start)
SETTINGS ${deduplication_window(1000)};
