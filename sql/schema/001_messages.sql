-- table messages; cluster: rows of all shards
-- The log: one row per acknowledged Kafka record, control records included.
--
-- Offsets of a (topic_id, partition) are dense when written and only grow. A block of rows is one insert and
-- one part, with one append_time, so it is stored atomically.
--
-- ORDER BY starts with topic, because people ask by name. The broker also asks by topic_id, so that a topic
-- that was deleted and made again never shows the rows of its predecessor.
CREATE TABLE IF NOT EXISTS ${messages}
(
    topic          LowCardinality(String)  COMMENT 'topic name',
    topic_id       UUID                    COMMENT 'Kafka topic id (KIP-516); a topic made again has another',
    partition      Int32                   COMMENT 'Kafka partition',
    offset         Int64                   COMMENT 'Kafka offset' CODEC(Delta, ZSTD(1)),
    timestamp_ms   Int64                   COMMENT 'Kafka timestamp as sent, any int64, milliseconds' CODEC(Delta, ZSTD(1)),
    timestamp_type Enum8('CreateTime' = 0, 'LogAppendTime' = 1) COMMENT 'who set timestamp_ms: the client or the broker',
    timestamp      DateTime64(3, 'UTC')    ALIAS fromUnixTimestamp64Milli(timestamp_ms, 'UTC'),
    key            Nullable(String)        COMMENT 'null is not empty' CODEC(ZSTD(1)),
    value          Nullable(String)        COMMENT 'null is not empty' CODEC(ZSTD(1)),
    headers        Array(Tuple(key String, value Nullable(String))) COMMENT 'in the order sent, repeats kept' CODEC(ZSTD(1)),
    producer_id    Int64                   COMMENT '-1: not idempotent' CODEC(Delta, ZSTD(1)),
    producer_epoch Int16                   COMMENT '-1: not idempotent',
    sequence       Int32                   COMMENT 'of the record within its producer; -1: not idempotent' CODEC(Delta, ZSTD(1)),
    transactional  Bool                    COMMENT 'written inside a transaction',
    control        Bool                    COMMENT 'a transaction marker, not a record of a client',
    transaction_start Int64 DEFAULT -1     COMMENT 'where its transaction began in this partition; -1: not part of one' CODEC(Delta, ZSTD(1)),
    leader_epoch   Int32                   COMMENT 'epoch of the owner that wrote it',
    append_time    DateTime64(3, 'UTC')    COMMENT 'when the broker took it' CODEC(Delta, ZSTD(1)),

    INDEX by_timestamp timestamp_ms TYPE minmax GRANULARITY 1
)
ENGINE = ${engine(MergeTree)}
PARTITION BY toDate(append_time)
ORDER BY (topic, partition, offset)
SETTINGS ${deduplication_window(1000)};
