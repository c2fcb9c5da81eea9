-- table transaction_offsets; cluster: rows of all shards
-- Offsets that were sent to transactions which had not ended then. When a transaction is committed, its offsets
-- become rows of consumer_offsets, with the versions that they have here; either way a row with `ended` follows
-- here.
CREATE TABLE IF NOT EXISTS ${transaction_offsets}
(
    group_id       String               COMMENT 'the consumer group',
    producer_id    Int64                COMMENT 'of the transaction',
    producer_epoch Int16                COMMENT 'of the producer that sent it',
    topic          String               COMMENT 'topic name',
    topic_id       UUID                 COMMENT 'id of the topic when this was sent',
    partition      Int32                COMMENT 'Kafka partition',
    offset         Int64                COMMENT 'the next offset that the group wants',
    leader_epoch   Int32                COMMENT 'of the last record read; -1: not known',
    metadata       String               COMMENT 'what the consumer noted with it' CODEC(ZSTD(1)),
    member_id      String               COMMENT 'who sent it',
    client_id      String               COMMENT 'as the client calls itself',
    client_host    String               COMMENT 'its address',
    generation     Int32                COMMENT 'of the group; -1 for a consumer without a group',
    commit_time    DateTime64(3, 'UTC') COMMENT 'when it was sent',
    version        UInt64               COMMENT 'order of commits in the group, as in consumer_offsets',
    ended          Bool                 COMMENT 'the transaction was committed or aborted',
    coordinator    Int32                COMMENT 'node id of the broker that wrote this'
)
ENGINE = ${engine(ReplacingMergeTree(version, ended))}
ORDER BY (group_id, producer_id, topic, partition)
SETTINGS ${deduplication_window(1000)}, allow_experimental_replacing_merge_with_cleanup = 1;
