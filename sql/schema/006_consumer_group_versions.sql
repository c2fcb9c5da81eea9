-- table consumer_group_versions; cluster: rows of all shards
-- Consumer groups, as versions: every change of a group is a new row with a higher version, and the highest
-- wins. The rows of its members are written before it, so a group whose members have higher versions than it
-- has itself was being changed when its broker stopped.
--
-- A group that ended keeps a row with `removed` until the next clean-up: OPTIMIZE ... FINAL CLEANUP, which
-- deletes that row and all that it hides in one merge. A TTL could delete that row alone, and the group would
-- exist again.
CREATE TABLE IF NOT EXISTS ${consumer_group_versions}
(
    group_id      String               COMMENT 'as the clients call it',
    version       UInt64               COMMENT 'microseconds of the coordinator''s clock, never less than before',
    state         LowCardinality(String) COMMENT 'Empty, PreparingRebalance, CompletingRebalance, Stable or Dead',
    state_time    DateTime64(3, 'UTC') COMMENT 'since when it is in this state',
    generation    Int32                COMMENT 'grows with every rebalance',
    protocol_type String               COMMENT '"consumer" for consumers; kept when the last member is gone',
    protocol_name String               COMMENT 'the assignor that the members agreed on; empty without members',
    leader        String               COMMENT 'member id of the one that assigns; empty without members',
    members       UInt32               COMMENT 'how many there are',
    removed       Bool                 COMMENT 'the group is Dead',
    coordinator   Int32                COMMENT 'node id of the broker that wrote this',
    changed_at    DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'when this was written',

    INDEX by_coordinator coordinator TYPE minmax
)
ENGINE = ${engine(ReplacingMergeTree(version, removed))}
ORDER BY group_id
SETTINGS ${deduplication_window(1000)}, allow_experimental_replacing_merge_with_cleanup = 1;
