-- table lag_alerts; cluster: rows of all shards
-- Alerts on lag: a row per alert, written by `brokerhouse jobs run lag` when the alert begins, and again with
-- `ended_at` when it ends. The last row counts: read the table with FINAL.
CREATE TABLE IF NOT EXISTS ${lag_alerts}
(
    kind           LowCardinality(String)    COMMENT 'records, seconds, growing or stalled',
    group_id       String                    COMMENT 'the consumer group',
    topic          LowCardinality(String)    COMMENT 'topic name',
    topic_id       UUID                      COMMENT 'a topic made again has another',
    partition      Int32                     COMMENT 'Kafka partition',
    began_at       DateTime('UTC')           COMMENT 'end of the first window with it' CODEC(Delta, ZSTD(1)),
    ended_at       Nullable(DateTime('UTC')) COMMENT 'end of the first window without it; null while it lasts',
    threshold      Float64                   COMMENT 'what was passed: records, seconds or windows, as the kind says',
    value          Float64                   COMMENT 'records or seconds behind when it began; records for growing and stalled',
    peak           Float64                   COMMENT 'the most of that, up to evaluated_until',
    window_seconds UInt32                    COMMENT 'of the windows that it was found in',
    evaluated_until DateTime('UTC')          COMMENT 'end of the last window that was looked at when this was written'
)
ENGINE = ${engine(ReplacingMergeTree(evaluated_until))}
PARTITION BY toYYYYMM(began_at)
ORDER BY (kind, group_id, topic, partition, topic_id, window_seconds, began_at)
TTL began_at + INTERVAL 1 YEAR
SETTINGS ${deduplication_window(10000)}, ttl_only_drop_parts = 1;
