-- table view_doubts; cluster: rows of all shards
-- Ranges of the log that a materialized view has or lacks: the process was killed between the insert into messages and
-- that of the view. Rows are there until somebody says which it is.
CREATE TABLE IF NOT EXISTS ${view_doubts}
(
    database     String COMMENT 'of the view',
    view         String COMMENT 'its name',
    topic        String COMMENT 'topic name',
    topic_id     UUID   COMMENT 'id of the topic',
    partition    Int32  COMMENT 'Kafka partition',
    first_offset Int64  COMMENT 'where the range begins',
    end_offset   Int64  COMMENT 'the first offset behind the range',
    changed_at   DateTime64(6, 'UTC') DEFAULT now64(6) COMMENT 'when this was written'
)
ENGINE = ${engine(ReplacingMergeTree(changed_at))}
ORDER BY (database, view, topic, topic_id, partition, first_offset);
