-- table consumer_offsets; cluster: rows of all shards
-- Committed offsets, all of them: a row per commit and partition, and one with `deleted` where an offset was
-- deleted. Current is the row with the highest version of each (group_id, topic, partition). The projection
-- `latest` keeps exactly these rows, so that no query reads the history to find them. ClickHouse uses it for
-- queries with the same expressions, such as the view latest_offsets.
--
-- A block has one stored_at and one coordinator, so it is one part. Rows of a week expire together, about
-- nine weeks later. Queries for current rows leave out weeks that end more than eight weeks ago: otherwise an
-- older row could outlive the one that replaced it while the engine drops both. An offset that stays current
-- for longer than a week is written again, unchanged and with the same version.
CREATE TABLE IF NOT EXISTS ${consumer_offsets}
(
    group_id     String               COMMENT 'the consumer group',
    topic        String               COMMENT 'topic name',
    topic_id     UUID                 COMMENT 'id of the topic when this was committed; a topic made again has another',
    partition    Int32                COMMENT 'Kafka partition',
    offset       Int64                COMMENT 'the next offset that the group wants' CODEC(Delta, ZSTD(1)),
    leader_epoch Int32                COMMENT 'of the last record read; -1: not known',
    metadata     String               COMMENT 'what the consumer noted with it' CODEC(ZSTD(1)),
    member_id    String               COMMENT 'who committed; empty for a consumer without a group' CODEC(ZSTD(1)),
    client_id    String               COMMENT 'as the client calls itself' CODEC(ZSTD(1)),
    client_host  String               COMMENT 'its address' CODEC(ZSTD(1)),
    generation   Int32                COMMENT 'of the group; -1 for a consumer without a group',
    commit_time  DateTime64(3, 'UTC') COMMENT 'when it was committed' CODEC(Delta, ZSTD(1)),
    expire_time  Nullable(DateTime64(3, 'UTC')) COMMENT 'when it ends, where the client said so (OffsetCommit before v5)',
    deleted      Bool                 COMMENT 'the offset was deleted, has expired, or its topic is gone',
    version      UInt64               COMMENT 'order of commits: microseconds of the coordinator''s clock, never less than before' CODEC(Delta, ZSTD(1)),
    coordinator  Int32                COMMENT 'node id of the broker that wrote this',
    stored_at    DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'when this row was written' CODEC(Delta, ZSTD(1)),

    PROJECTION latest
    (
        SELECT
            group_id,
            topic,
            partition,
            argMax(tuple(topic_id, offset, leader_epoch, metadata, member_id, client_id, client_host, generation, commit_time, expire_time, deleted, coordinator), version),
            max(version),
            max(stored_at)
        GROUP BY group_id, topic, partition
    )
)
ENGINE = ${engine(MergeTree)}
PARTITION BY (toMonday(stored_at), coordinator)
ORDER BY (group_id, topic, partition, version)
TTL toMonday(stored_at) + INTERVAL 64 DAY
SETTINGS ${deduplication_window(1000)}, ttl_only_drop_parts = 1;
