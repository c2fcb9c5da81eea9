-- table compaction_removals; cluster: rows of all shards
-- What compaction removed from the log, or decided to remove. Written by `brokerhouse jobs run compaction` alone;
-- the leader of each partition removes the rows and records that in compaction_applied. Rows of this table are
-- kept: they account for offsets that are missing from a compacted log.
--
-- A batch is one row: ranges of offsets that had rows, each of which may be removed. A row without ranges says
-- how far a run came once all its batches were applied: below log_end every superseded record is removed, and
-- below tombstones_end no tombstone has an older record of its key before it. The time for which a tombstone has
-- to stay begins with the first such row.
CREATE TABLE IF NOT EXISTS ${compaction_removals}
(
    run_id         UUID                   COMMENT 'the run of the job that decided this',
    batch_id       UUID                   COMMENT 'unique to the batch',
    topic          LowCardinality(String) COMMENT 'topic name',
    topic_id       UUID                   COMMENT 'a topic made again has another',
    partition      Int32                  COMMENT 'Kafka partition',
    ranges         Array(Tuple(first Int64, last Int64)) COMMENT 'offsets to remove, both ends included; empty: how far a run came' CODEC(ZSTD(1)),
    records        UInt64                 COMMENT 'rows in these ranges',
    tombstones     UInt64                 COMMENT 'of them, those without a value',
    bytes          UInt64                 COMMENT 'of their keys and values, before compression',
    log_end        Int64                  COMMENT 'rows from here on were not looked at',
    tombstones_end Int64                  COMMENT 'tombstones below this had no older record of their key',
    created_at     DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'when this was written' CODEC(Delta, ZSTD(1))
)
ENGINE = ${engine(MergeTree)}
ORDER BY (created_at, topic_id, partition)
SETTINGS ${deduplication_window(10000)};
