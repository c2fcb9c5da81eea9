-- table failed_view_offsets; cluster: rows of all shards
-- The first offset of each partition that a failed view has not got. Rows are there until the view is repaired.
CREATE TABLE IF NOT EXISTS ${failed_view_offsets}
(
    database     String COMMENT 'of the view',
    view         String COMMENT 'its name',
    topic        String COMMENT 'topic name',
    topic_id     UUID   COMMENT 'id of the topic',
    partition    Int32  COMMENT 'Kafka partition',
    first_offset Int64  COMMENT 'from here on the view has nothing',
    changed_at   DateTime64(6, 'UTC') DEFAULT now64(6) COMMENT 'when this was written'
)
ENGINE = ${engine(ReplacingMergeTree(changed_at))}
ORDER BY (database, view, topic, topic_id, partition);
