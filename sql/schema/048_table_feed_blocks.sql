-- table table_feed_blocks; cluster: rows of all shards
-- The history of feeds: every intention to insert a block, and every completion. The state itself is in the
-- registry, where each change has a version; a change whose row here was lost is written again by the next
-- feeder.
CREATE TABLE IF NOT EXISTS ${table_feed_blocks}
(
    feed               String                 COMMENT 'its name',
    feed_id            UUID                   COMMENT 'a feed made again with this name has another',
    topic              LowCardinality(String) COMMENT 'topic name',
    topic_id           UUID                   COMMENT 'a topic made again has another',
    partition          Int32                  COMMENT 'Kafka partition',
    version            UInt64                 COMMENT 'of the state in the registry' CODEC(Delta, ZSTD(1)),
    epoch              UInt64                 COMMENT 'grows with every feeder; earlier ones are fenced' CODEC(Delta, ZSTD(1)),
    feeder             String                 COMMENT 'who wrote this',
    phase              LowCardinality(String) COMMENT 'before: the block is to be inserted; after: its rows are stored',
    first_offset       Int64                  COMMENT 'of the block; -1: none was begun' CODEC(Delta, ZSTD(1)),
    end_offset         Int64                  COMMENT 'the offset after the last of the block' CODEC(Delta, ZSTD(1)),
    attempt            UInt32                 COMMENT 'part of the token in column _block of the rows',
    rows               UInt64                 COMMENT 'that the block has in the table, once it is complete' CODEC(ZSTD(1)),
    dead_letters       UInt64                 COMMENT 'records of the block that did not fit' CODEC(ZSTD(1)),
    reference_offset   Int64                  COMMENT 'where the feed began',
    total_rows         UInt64                 COMMENT 'of all complete blocks from reference_offset on' CODEC(Delta, ZSTD(1)),
    total_dead_letters UInt64                 COMMENT 'of all complete blocks from reference_offset on' CODEC(Delta, ZSTD(1)),
    time               DateTime64(3, 'UTC')   COMMENT 'when this was written' CODEC(Delta, ZSTD(1))
)
ENGINE = ${engine(ReplacingMergeTree(time))}
PARTITION BY toMonday(time)
ORDER BY (feed_id, topic_id, partition, version)
TTL toDateTime(time) + INTERVAL 90 DAY
SETTINGS ${deduplication_window(1000)}, ttl_only_drop_parts = 1;
