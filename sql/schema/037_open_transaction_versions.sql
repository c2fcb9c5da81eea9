-- table open_transaction_versions; cluster: rows of all shards
-- For each partition the transactions that are open there, as versions: the highest of a producer wins. The leader
-- stores a row before the first record of the transaction, and another, with `ended`, when its marker is stored. A
-- row without a record is possible: the block was refused, or the broker ended. The next leader puts that right.
CREATE TABLE IF NOT EXISTS ${open_transaction_versions}
(
    topic             String COMMENT 'topic name',
    topic_id          UUID   COMMENT 'id of the topic',
    partition         Int32  COMMENT 'Kafka partition',
    producer_id       Int64  COMMENT 'of its records',
    producer_epoch    Int16  COMMENT 'of its records',
    transaction_start Int64  COMMENT 'where it began in this partition, as in messages',
    ended             Bool   COMMENT 'it is not open any more',
    version           UInt64 COMMENT 'of a later leader always higher; else milliseconds of the leader''s clock, never less than before'
)
ENGINE = ${engine(ReplacingMergeTree(version, ended))}
ORDER BY (topic, topic_id, partition, producer_id)
SETTINGS ${deduplication_window(1000)}, allow_experimental_replacing_merge_with_cleanup = 1;
