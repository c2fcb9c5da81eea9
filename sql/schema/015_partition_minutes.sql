-- table partition_minutes; cluster: rows of all shards
-- What each minute brought to each partition: the log, counted. The broker adds the minutes that are over, once
-- a minute, so that what people ask (ends of partitions, rates, sizes) is not read from the log itself.
--
-- One insert is one part and covers all minutes up to its last one, which has a row of its own (topic '',
-- partition -1) even when nothing came. So max(minute) says up to where the log is counted, and a crash leaves
-- a window counted or not counted, never half. Rows of a minute that is counted do not come any more: see
-- broker/log/rollup.py. The views on top add the rows of `messages` since then.
--
-- The projection `totals` keeps one row per partition (and part), and serves queries that ask for the same
-- expressions. Minutes become hours after a week.
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
