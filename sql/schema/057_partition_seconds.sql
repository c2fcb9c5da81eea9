-- table partition_seconds; cluster: rows of all shards
-- What partition_minutes does not have yet: parts of the first minute that is not counted there, each counted when
-- millions of rows are new. So views read only the last few million rows of the log, however many a minute brings.
--
-- One insert is one window and one part. A window begins where the one before it ended, the first of a minute where
-- the minute begins, and none goes beyond its minute. Each has a row of its own (topic '', partition -1) that says
-- where it ends. When the minute is over its windows are added up into partition_minutes; some minutes later, when no
-- query can need them any more, their partition is dropped: see broker/log/rollup.py.
CREATE TABLE IF NOT EXISTS ${partition_seconds}
(
    topic             LowCardinality(String) COMMENT 'topic name; empty in the row that ends a window',
    topic_id          UUID                   COMMENT 'a topic made again has another',
    partition         Int32                  COMMENT 'Kafka partition; -1 in the row that ends a window',
    minute            DateTime('UTC')        COMMENT 'start of the minute of append_time',
    until             DateTime64(3, 'UTC')   COMMENT 'end of the window: rows since then are not in it',
    records           UInt64                 COMMENT 'rows of the log, control records included',
    bytes             UInt64                 COMMENT 'of keys and values, before compression',
    min_offset        Int64                  COMMENT 'first offset of the window',
    max_offset        Int64                  COMMENT 'last offset of the window',
    first_append_time DateTime64(3, 'UTC')   COMMENT 'of the first record',
    last_append_time  DateTime64(3, 'UTC')   COMMENT 'of the last record'
)
ENGINE = ${engine(MergeTree)}
PARTITION BY minute
ORDER BY (minute, topic, topic_id, partition, until)
SETTINGS ${deduplication_window(1000)};
