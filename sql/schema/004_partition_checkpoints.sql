-- table partition_checkpoints; cluster: rows of all shards
-- What the rows of a partition do not tell once some are deleted (retention, DeleteRecords, compaction): where
-- its log starts, and below which offset no record may be written. Written before rows are deleted.
CREATE TABLE IF NOT EXISTS ${partition_checkpoints}
(
    topic_id          UUID,
    partition         Int32,
    log_start_offset  SimpleAggregateFunction(max, Int64),
    next_offset_floor SimpleAggregateFunction(max, Int64)
)
ENGINE = ${engine(AggregatingMergeTree)}
ORDER BY (topic_id, partition);
