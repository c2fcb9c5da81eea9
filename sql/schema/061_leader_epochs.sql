-- table leader_epochs; cluster: rows of all shards
-- Where each leader epoch of a partition began: where its log ended when a broker took it over. A leader stores that
-- before it serves the partition, so it is known when no record of an epoch is left, or when none was written. Of
-- epochs that began at the same offset, only the last one has records. A single broker has one epoch and no rows.
CREATE TABLE IF NOT EXISTS ${leader_epochs}
(
    topic_id     UUID  COMMENT 'id of the topic',
    partition    Int32 COMMENT 'Kafka partition',
    leader_epoch Int32 COMMENT 'as in messages',
    start_offset Int64 COMMENT 'first offset of the epoch'
)
ENGINE = ${engine(ReplacingMergeTree(leader_epoch))}
ORDER BY (topic_id, partition, start_offset)
SETTINGS ${deduplication_window(1000)};
