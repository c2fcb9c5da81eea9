-- table partition_checkpoints; cluster: rows of all shards
-- What cannot be read off the rows of a partition: where its log starts, and the floor of its next offset
-- once rows are deleted (retention, DeleteRecords, compaction). Written before rows are deleted.
CREATE TABLE IF NOT EXISTS ${partition_checkpoints}
(
    topic_id          UUID,
    partition         Int32,
    log_start_offset  SimpleAggregateFunction(max, Int64),
    next_offset_floor SimpleAggregateFunction(max, Int64)
)
ENGINE = ${engine(AggregatingMergeTree)}
ORDER BY (topic_id, partition);
