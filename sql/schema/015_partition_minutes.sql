-- table partition_minutes; cluster: rows of all shards
-- How many records each minute brought to each partition. Once a minute the broker adds the minutes that are
-- over, so that queries for ends of partitions, rates and sizes need not read the log.
--
-- One insert is one part and covers all minutes up to its last one, which has a row of its own (topic '',
-- partition -1) even when no record came. So max(minute) says how far the log is counted, and after a crash a
-- window is counted completely or not at all. No more records are stored with a minute that is counted: see
-- broker/log/rollup.py. The views on top add the rows of `messages` since then.
--
-- The projection `totals` keeps one row per partition (and part), and serves queries with the same
-- expressions. After a week the minutes of an hour become one row.
CREATE TABLE IF NOT EXISTS ${partition_minutes}
(
    topic             LowCardinality(String) COMMENT 'topic name; empty in the row that ends a window',
    topic_id          UUID                   COMMENT 'a topic made again has another',
    partition         Int32                  COMMENT 'Kafka partition; -1 in the row that ends a window',
    minute            DateTime('UTC')        COMMENT 'start of the minute of append_time; of an hour, its last one with records' CODEC(Delta, ZSTD(1)),
    records           UInt64                 COMMENT 'rows of the log, control records included' CODEC(ZSTD(1)),
    bytes             UInt64                 COMMENT 'of keys and values, before compression' CODEC(ZSTD(1)),
    min_offset        Int64                  COMMENT 'first offset of the minute' CODEC(Delta, ZSTD(1)),
    max_offset        Int64                  COMMENT 'last offset of the minute' CODEC(Delta, ZSTD(1)),
    first_append_time DateTime64(3, 'UTC')   COMMENT 'of the first record' CODEC(Delta, ZSTD(1)),
    last_append_time  DateTime64(3, 'UTC')   COMMENT 'of the last record' CODEC(Delta, ZSTD(1)),

    PROJECTION totals
    (
        SELECT
            topic, topic_id, partition,
            max(minute), sum(records), sum(bytes), min(min_offset), max(max_offset), min(first_append_time), max(last_append_time)
        GROUP BY topic, topic_id, partition
    )
)
ENGINE = ${engine(MergeTree)}
ORDER BY (toStartOfHour(minute), topic, topic_id, partition, minute)
TTL minute + INTERVAL 1 WEEK
    GROUP BY toStartOfHour(minute), topic, topic_id, partition
    SET minute = max(minute), records = sum(records), bytes = sum(bytes),
        min_offset = min(min_offset), max_offset = max(max_offset),
        first_append_time = min(first_append_time), last_append_time = max(last_append_time)
SETTINGS ${deduplication_window(100)};
