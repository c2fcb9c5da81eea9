-- table lag_history; cluster: rows of all shards
-- How far each group was behind at the end of each window, per partition that it has committed. Written by
-- `brokerhouse jobs run lag`, a block per quarter of an hour; nothing in the broker reads it.
--
-- A window that is computed twice gives the same row, and runs at the same time store it once
-- (spark_jobs/lag_writer.py). A row that was stored twice all the same is replaced: FINAL shows each row once.
CREATE TABLE IF NOT EXISTS ${lag_history}
(
    window_start     DateTime('UTC')        COMMENT 'when the window began; all values are those of its end' CODEC(Delta, ZSTD(1)),
    window_seconds   UInt32                 COMMENT 'how long it is',
    group_id         String                 COMMENT 'the consumer group',
    topic            LowCardinality(String) COMMENT 'topic name',
    topic_id         UUID                   COMMENT 'a topic made again has another',
    partition        Int32                  COMMENT 'Kafka partition',
    committed_offset Int64                  COMMENT 'the next offset that the group wanted' CODEC(Delta, ZSTD(1)),
    commit_time      DateTime64(3, 'UTC')   COMMENT 'when it had said so' CODEC(Delta, ZSTD(1)),
    end_offset       Int64                  COMMENT 'the offset that the next record would get' CODEC(Delta, ZSTD(1)),
    lag              Int64                  COMMENT 'records between the two' CODEC(ZSTD(1)),
    lag_seconds      Float64                COMMENT 'since the oldest record that was not committed came in; 0 when all were' CODEC(ZSTD(1)),
    rate_in          Float64                COMMENT 'records a second that came in during the window' CODEC(ZSTD(1)),
    rate_out         Nullable(Float64)      COMMENT 'records a second that were committed during it; null in the window of the first commit' CODEC(ZSTD(1)),
    catch_up_seconds Nullable(Float64)      COMMENT 'until lag is 0 at these rates; null when that never comes' CODEC(ZSTD(1)),
    trend            Float64                COMMENT 'records a second by which lag grew over the last windows (least squares)' CODEC(ZSTD(1)),
    computed_at      DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'when this was written' CODEC(Delta, ZSTD(1))
)
ENGINE = ${engine(ReplacingMergeTree(computed_at))}
PARTITION BY toMonday(window_start)
ORDER BY (group_id, topic, partition, topic_id, window_seconds, window_start)
TTL window_start + INTERVAL 90 DAY
SETTINGS ${deduplication_window(20000)}, ttl_only_drop_parts = 1;
