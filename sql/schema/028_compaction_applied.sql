-- table compaction_applied; cluster: rows of all shards
-- The batches of compaction_removals that the broker has applied or refused. A batch that a crash interrupted is
-- applied again, and the last row counts.
CREATE TABLE IF NOT EXISTS ${compaction_applied}
(
    batch_id   UUID   COMMENT 'as in compaction_removals',
    run_id     UUID   COMMENT 'as in compaction_removals',
    topic_id   UUID   COMMENT 'as in compaction_removals',
    partition  Int32  COMMENT 'as in compaction_removals',
    removed    UInt64 COMMENT 'rows that were there and were removed',
    refused    String COMMENT 'why nothing was removed; empty when the batch was applied',
    applied_at DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'when the rows were gone'
)
ENGINE = ${engine(ReplacingMergeTree(applied_at))}
ORDER BY batch_id;
