-- table dead_letter_versions; cluster: rows of all shards
-- Records that a feed could not put into its table, as versions: the highest wins. The record itself is in
-- `messages`.
CREATE TABLE IF NOT EXISTS ${dead_letter_versions}
(
    feed      String                 COMMENT 'name of the feed',
    feed_id   UUID                   COMMENT 'a feed made again with this name has another',
    topic     LowCardinality(String) COMMENT 'topic name',
    topic_id  UUID                   COMMENT 'a topic made again has another',
    partition Int32                  COMMENT 'Kafka partition',
    offset    Int64                  COMMENT 'of the record',
    error     String                 COMMENT 'what is wrong with it',
    time      DateTime64(3, 'UTC')   COMMENT 'when it was found',
    replayed  Bool                   COMMENT 'it has been parsed since, and is in the table',
    rows      UInt32 DEFAULT toUInt32(replayed) COMMENT 'that a replay has made of it; 0 if it is dead, or if the rows are counted with its block'
)
ENGINE = ${engine(ReplacingMergeTree(time))}
ORDER BY (feed_id, topic_id, partition, offset)
SETTINGS ${deduplication_window(1000)};
