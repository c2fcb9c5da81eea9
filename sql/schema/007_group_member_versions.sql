-- table group_member_versions; cluster: rows of all shards
-- Members of consumer groups, as versions, like consumer_group_versions: written when a member changes, not
-- with every change of its group.
CREATE TABLE IF NOT EXISTS ${group_member_versions}
(
    group_id             String               COMMENT 'the group that it is a member of',
    member_id            String               COMMENT 'given by the coordinator',
    version              UInt64               COMMENT 'that of the group when the member changed last',
    generation           Int32                COMMENT 'that of the group when the member changed last',
    group_instance_id    Nullable(String)     COMMENT 'of a static member (KIP-345), else null',
    client_id            String               COMMENT 'as the client calls itself',
    client_host          String               COMMENT 'its address',
    session_timeout_ms   Int32                COMMENT 'without a heartbeat for this long it is gone',
    rebalance_timeout_ms Int32                COMMENT 'how long a rebalance waits for it',
    protocol_name        String               COMMENT 'the assignor that the group agreed on',
    protocols            Array(Tuple(name String, metadata String))
                                              COMMENT 'assignors that it offers, the preferred one first, each with its subscription as sent',
    assignment           Map(String, Map(Int32, String))
                                              COMMENT 'topic to partition to the member that reads it, which is this one; empty where the bytes are no assignment of a consumer',
    assignment_bytes     String               COMMENT 'its assignment as the leader sent it',
    join_time            DateTime64(3, 'UTC') COMMENT 'when it joined the group first',
    removed              Bool                 COMMENT 'it has left the group',
    coordinator          Int32                COMMENT 'node id of the broker that wrote this',
    changed_at           DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'when this was written',

    INDEX by_coordinator coordinator TYPE minmax
)
ENGINE = ${engine(ReplacingMergeTree(version, removed))}
ORDER BY (group_id, member_id)
SETTINGS ${deduplication_window(1000)}, allow_experimental_replacing_merge_with_cleanup = 1;
