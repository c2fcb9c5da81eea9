-- table group_heartbeats; cluster: rows of all shards
-- When each member sent its last heartbeat. Written in the background, a block every few seconds.
CREATE TABLE IF NOT EXISTS ${group_heartbeats}
(
    group_id       String               COMMENT 'the group that it is a member of',
    member_id      String               COMMENT 'given by the coordinator',
    heartbeat_time DateTime64(3, 'UTC') COMMENT 'the last heartbeat, join or sync',
    coordinator    Int32                COMMENT 'node id of the broker that wrote this',

    INDEX by_coordinator coordinator TYPE minmax
)
ENGINE = ${engine(ReplacingMergeTree(heartbeat_time))}
ORDER BY (group_id, member_id)
TTL toDateTime(heartbeat_time) + INTERVAL 1 DAY
SETTINGS ${deduplication_window(1000)};
